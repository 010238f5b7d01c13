"""Writes everything that is generated from the op table.

    python -m opspec.generate OUT          C ABI prototypes, cann_host operators, adapter kernels (run by CMake)
    python -m opspec.generate OUT --list   prints the files that would be written, one a line

Only files whose text changed are rewritten, so that an unchanged row costs no compilation.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import jinja2

from opspec import adapter, npu
from opspec.table import ROOT, AclnnOp, Param, aclnn_ops

# aclDataType's numbers, an ABI fact.
ACL_DTYPE = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7, "uint32": 8, "int64": 9,
    "uint64": 10, "float64": 11, "bool": 12, "complex64": 16, "complex128": 17, "bfloat16": 27, "complex32": 33,
}  # fmt: skip

# Kind of a parameter -> the struct of cann_host/opapi/arguments.h that carries it.
ARG_TAG = {
    "Tensor": "Tensor", "Tensor?": "OptionalTensor", "Tensor!": "OutTensor", "Tensor!?": "OptionalOutTensor",
    "Tensor^": "DynamicTensor", "Tensor[]": "TensorList", "Tensor?[]": "TensorList", "Tensor![]": "OutTensorList",
    "Tensor[]?": "TensorList", "Tensor![]?": "OutTensorList",
    "Scalar": "Scalar", "Scalar?": "OptionalScalar", "Scalar[]": "ScalarList", "int[]": "IntArray",
    "int[]?": "OptionalIntArray", "bool[]": "BoolArray", "bool[]?": "OptionalBoolArray", "float[]": "FloatArray",
    "bool": "Bool", "int": "Int", "int32": "Int32", "int8": "Int8", "float": "Float", "float32": "Float32",
    "dtype": "Dtype", "str": "String",
}  # fmt: skip

# Arguments that an executor holds in another type than the ABI has.
_AS_HELD = {"Tensor!?": "const aclTensor*", "str": "const std::string&"}


def dtype_mask(dtypes: tuple[str, ...]) -> str:
    """Bit i stands for aclDataType i; 0 means any."""
    return f"{sum(1 << ACL_DTYPE[d] for d in dtypes):#x}"


def _places(op: AclnnOp) -> bool:
    """Whether the body hands results to assign(), which profits from outputs offered to the allocator.

    What an in-place operator writes it also reads, so that its memory is not on offer.
    """
    return op.host is not None and "assign(" in op.host and not op.name.startswith("Inplace")


def _placement(op: AclnnOp) -> str:
    """Arguments of Placement: the outputs, then what the body reads."""

    def one(p: Param) -> str:
        return f"{p.name}.value_or(at::Tensor())" if p.is_optional else p.name

    outputs = ", ".join(one(p) for p in op.outputs if p.kind in ("Tensor!", "Tensor!?"))
    inputs = [p.name for p in op.params if p.is_tensor and not p.is_output]
    return ", ".join([f"{{{outputs}}}", *inputs])


def environment() -> jinja2.Environment:
    """Jinja with the filters that the templates use."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    filters: dict[str, Callable[..., object]] = {
        "host_param": lambda p: f"{p.host} {p.name}",
        "raw_param": lambda p: f"{_AS_HELD.get(p.kind, p.abi)} {p.name}",
        "arg_tag": lambda p: f"cann_host::arg::{ARG_TAG[p.kind]}",
        "mask": dtype_mask,
        "places": _places,
        "placement": _placement,
    }
    env.filters |= filters
    return env


def outputs() -> Iterator[tuple[str, str]]:
    """(path below OUT, text) of every generated file."""
    env = environment()
    ops = list(aclnn_ops().values())
    families = [(family, list(members)) for family, members in groupby(ops, key=lambda op: op.family)]
    yield "cann/aclnn.h", "".join(["#pragma once\n", *(f'#include "cann/aclnn/{f}.h"\n' for f, _ in families)])
    yield "opapi/host_functions.h", env.get_template("host_functions.h.jinja").render(ops=ops)
    for family, members in families:
        # One header a family, so that a new operator compiles its own users again and no others.
        yield f"cann/aclnn/{family}.h", env.get_template("aclnn.h.jinja").render(family=family, ops=members)
        yield f"opapi/{family}.cpp", env.get_template("opapi.cpp.jinja").render(family=family, ops=members)
    yield from adapter.outputs(env)
    yield from npu.outputs(env)


def finish(name: str, text: str) -> str:
    """Squeezes blank lines, and lets `#line here` end a stretch whose errors point to the table."""
    lines = re.sub(r"\n{3,}", "\n\n", text).split("\n")
    return "\n".join(f'#line {i + 2} "{name}"' if s == "#line here" else s for i, s in enumerate(lines))


def write(out: Path) -> None:
    """Rewrites the files below `out` whose text changed, and removes those that no row makes any more."""
    made = set()
    for name, text in outputs():
        path = out / name
        made.add(path)
        text = finish(name, text)
        if path.exists() and path.read_text() == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in {path.parent for path in made}:
        # A family that was renamed or split would define its operators twice.
        for path in {p for p in folder.iterdir() if p.is_file()} - made:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m opspec.generate", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the generated sources")
    parser.add_argument("--list", action="store_true", help="print the names of the files instead of writing them")
    args = parser.parse_args()
    if args.list:
        print("\n".join(name for name, _ in outputs()))
    else:
        write(args.out)


if __name__ == "__main__":
    main()
