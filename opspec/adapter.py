"""Generates the adapter's kernels: one C++ file a family of `aten/*.yaml`, with registrations.

Signatures, structured groups and argument translation come from torchgen, so that they are those of the installed
torch. A row of a structured overload yields the functional, in-place and out= kernels; PyTorch's own meta function
infers shapes and dtypes (called directly, never through the dispatcher).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import torchgen
from torchgen.api import meta, structured
from torchgen.api.translate import translate
from torchgen.api.types import Binding, NativeSignature
from torchgen.context import native_function_manager
from torchgen.gen import get_grouped_native_functions, parse_native_yaml
from torchgen.model import DeviceCheckType, NativeFunction, NativeFunctionsGroup, SchemaKind

from opspec.table import AclnnOp, AtenRow, Param, TableError, aclnn_ops, aten_rows

# c10::ScalarType's numbers.
TORCH_DTYPE = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex32": 8, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15,
}  # fmt: skip

# TensorIterator operators whose result is bool whatever they compare.
_COMPARISONS = {
    "eq", "ne", "lt", "le", "gt", "ge", "isposinf", "isneginf", "signbit", "logical_and", "logical_or", "logical_xor",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """`Add(self, other, alpha, out)` of a row, resolved against the aclnn table."""

    op: AclnnOp
    arguments: tuple[str, ...]  # C++ expressions, one a parameter

    def __str__(self) -> str:
        return f"aclnn_{self.op.name}({', '.join(self.arguments)})"

    def tensors(self, *, outputs: bool) -> list[tuple[str, Param]]:
        """(expression, parameter) of plain variables that carry a dtype restriction."""
        return [
            (text, p)
            for text, p in zip(self.arguments, self.op.params, strict=True)
            if p.is_tensor and p.dtypes and p.is_output == outputs and re.fullmatch(r"\w+", text) and text != "nullptr"
        ]


@dataclass(frozen=True)
class Kernel:
    """One overload to register: its C++ signature and what its body needs to know."""

    row: AtenRow
    function: NativeFunction
    kind: str  # functional, inplace, out
    group: NativeFunctionsGroup | None

    @property
    def name(self) -> str:
        return str(self.function.func.name).replace(".", "_")

    @property
    def schema_name(self) -> str:
        return str(self.function.func.name)

    def declare(self, name: str) -> str:
        """The C++ function head, as PyTorch calls kernels."""
        with native_function_manager(self.function):
            return NativeSignature(self.function.func, symint=False).decl(name=name)

    @property
    def arguments(self) -> list[Binding]:
        with native_function_manager(self.function):
            return NativeSignature(self.function.func, symint=False).arguments()

    @property
    def argument_names(self) -> list[str]:
        return [b.name for b in self.arguments]

    @property
    def ops_class(self) -> str:
        """The struct of `at::_ops` for this overload."""
        return f"at::_ops::{self.function.func.name.unambiguous_name()}"

    @property
    def is_foreach(self) -> bool:
        """Whether the overload works through lists of tensors."""
        return self.schema_name.startswith("_foreach_")

    @property
    def device_checked(self) -> list[str]:
        """Tensor arguments that must share a device; none for operators that check themselves (TensorIterator)."""
        if self.function.device_check == DeviceCheckType.NoCheck:
            return []
        return [b.name for b in self.arguments if "at::Tensor" in b.type or "TensorList" in b.type]

    @property
    def returned(self) -> list[str]:
        """Names of the C++ variables that hold the outputs, in order."""
        if self.kind == "inplace":
            return ["self"]
        if self.kind == "out":
            return [a.name for a in self.function.func.arguments.out]
        if self.group is not None:
            return [a.name for a in self.group.out.func.arguments.out]
        return [o.get("name", "out") for o in self.row.out]

    @property
    def meta_class(self) -> str:
        assert self.group is not None
        return f"at::meta::structured_{meta.name(self.group)}"

    @property
    def is_tensor_iterator(self) -> bool:
        return self.group is not None and self.group.out.structured_inherits == "TensorIteratorBase"

    @property
    def plain_inputs(self) -> list[str]:
        return [b.name for b in self.arguments if b.name in ("self", "other")]

    @property
    def plain(self) -> str:
        """The output's dtype, in C++, if the inputs are floating point of one dtype and shape and contiguous; empty
        where the overload has no such simple case (other arguments than self, other and alpha; several outputs)."""
        if not self.is_tensor_iterator or self.kind == "out" or len(self.returned) != 1:
            return ""
        simple = {"self": "Tensor", "other": "Tensor", "alpha": "Scalar"}
        if any(simple.get(b.name, "none") not in b.type for b in self.arguments):
            return ""
        if self.function.root_name.rstrip("_") in _COMPARISONS:
            return "at::kBool" if self.kind == "functional" else ""
        return "self.scalar_type()"

    @property
    def staged(self) -> list[str]:
        """Tensor arguments that may be CPU scalars: those of TensorIterator operators with more than one tensor."""
        names = [b.name for b in self.arguments if b.type == "const at::Tensor &"]
        names = [n for n in names if n not in self.returned] if self.kind != "inplace" else names
        return names if self.is_tensor_iterator and len(names) + (self.kind == "inplace") > 1 else []

    @property
    def meta_arguments(self) -> list[str]:
        assert self.group is not None
        bindings = [b for b in self.arguments if b.name not in self.returned or self.kind == "inplace"]
        with native_function_manager(self.function):
            return [e.expr for e in translate(bindings, structured.meta_arguments(self.group), method=False)]


@cache
def native_functions() -> tuple[dict[str, NativeFunction], dict[str, NativeFunctionsGroup]]:
    """All overloads by name, and the structured groups by the name of their functional overload."""
    root = Path(torchgen.__file__).parent / "packaged/ATen/native"
    functions = parse_native_yaml(str(root / "native_functions.yaml"), str(root / "tags.yaml")).native_functions
    groups = {
        str(g.functional.func.name): g
        for g in get_grouped_native_functions(functions)
        if isinstance(g, NativeFunctionsGroup) and g.structured
    }
    return {str(f.func.name): f for f in functions}, groups


def parse_call(text: str, where: str) -> Call:
    """Splits a call at its top-level commas and looks the operator up."""
    name, _, rest = text.strip().partition("(")
    op = aclnn_ops().get(name)
    if op is None:
        raise TableError(f"{where}: aclnn{name} is not in opspec/aclnn")
    arguments, depth, current = [], 0, ""
    for char in rest[: rest.rindex(")")]:
        depth += char in "([{"
        depth -= char in ")]}"
        if char == "," and depth == 0:
            arguments.append(current.strip())
            current = ""
        else:
            current += char
    if current.strip():
        arguments.append(current.strip())
    if len(arguments) != len(op.params):
        raise TableError(
            f"{where}: {op.symbol} takes {len(op.params)} arguments ({', '.join(p.name for p in op.params)}), "
            f"the row gives {len(arguments)}"
        )
    return Call(op, tuple(arguments))


_KIND = {SchemaKind.functional: "functional", SchemaKind.inplace: "inplace", SchemaKind.out: "out"}


def kernels_of(row: AtenRow) -> list[Kernel]:
    """The overloads that a row stands for."""
    functions, groups = native_functions()
    if row.aten not in functions:
        raise TableError(f"opspec/aten/{row.family}.yaml:{row.line}: torch has no overload aten::{row.aten}")
    if row.meta is not None:
        function = functions[row.aten]
        return [Kernel(row, function, _KIND.get(function.func.kind(), "functional"), groups[row.meta])]
    group = groups.get(row.aten)
    if group is None or row.kernel is not None or row.out:
        function = functions[row.aten]
        kind = _KIND.get(function.func.kind(), "functional")
        return [Kernel(row, function, kind, None)]
    members = [(group.functional, "functional"), (group.out, "out")]
    if group.inplace is not None:
        members.append((group.inplace, "inplace"))
    return [Kernel(row, function, kind, group) for function, kind in members]


@dataclass(frozen=True)
class Row:
    """What the template needs of one row."""

    row: AtenRow
    kernels: list[Kernel]
    call: Call | None
    scalar: Call | None
    inplace: Call | None

    @property
    def headers(self) -> set[str]:
        names = {f"ATen/ops/{k.function.root_name}_ops.h" for k in self.kernels}
        return names | {f"ATen/ops/{k.group.functional.root_name}_meta.h" for k in self.kernels if k.group}

    @property
    def calls(self) -> list[Call]:
        return [c for c in (self.call, self.scalar, self.inplace) if c is not None]


def rows() -> Iterator[tuple[str, list[Row]]]:
    """Rows by family."""
    seen: dict[str, str] = {}
    for family, members in groupby(aten_rows(), key=lambda r: r.family):
        resolved = []
        for row in members:
            where = f"opspec/aten/{family}.yaml:{row.line}"
            calls = [
                parse_call(c, where) if c and not row.kernel else None for c in (row.call, row.scalar, row.inplace)
            ]
            kernels = kernels_of(row)
            for kernel in kernels:
                if kernel.schema_name in seen:
                    raise TableError(
                        f"{where}: aten::{kernel.schema_name} already stands at {seen[kernel.schema_name]}"
                    )
                seen[kernel.schema_name] = where
            resolved.append(Row(row, kernels, *calls))
        yield family, resolved


def call_outputs(row: Row, kernel: Kernel) -> list[str]:
    """Names under which a row's call speaks of the outputs: those of the out= overload."""
    assert kernel.group is not None
    names = [a.name for a in kernel.group.out.func.arguments.out]
    return [n for n in names if kernel.kind != "out"]


def output_dtype(out: dict[str, str]) -> str:
    """C++ expression of the dtype of an output of an overload that is not structured."""
    return out.get("dtype", f"{out['like']}.scalar_type()")


def declare_output(out: dict[str, str], kernel: Kernel) -> str:
    """C++ that provides an output of an overload that is not structured.

    `like` names the tensor that gives device, and dtype and sizes where the row does not say them.
    """
    name, like, dtype = out.get("name", "out"), out["like"], output_dtype(out)
    arguments = f"{out['sizes']}, {dtype}, {like}" if "sizes" in out else f"{like}, {dtype}"
    if "format" in out:
        arguments += f", {out['format']}"
    if kernel.kind == "out":
        return f"resize_output{'' if 'sizes' in out else '_like'}({name}, {arguments})"
    if kernel.kind == "inplace":
        return f"at::Tensor& {name} = self"
    return f"at::Tensor {name} = new_output{'' if 'sizes' in out else '_like'}({arguments})"


def given_dtypes(row: Row, kernel: Kernel) -> list[str]:
    """C++ conditions: tensors that are written to have the dtype of the result (else the CPU kernel converts)."""
    if kernel.group is not None or kernel.kind == "functional":
        return []
    written = {o.get("name", "out"): output_dtype(o) for o in row.row.out}
    if kernel.kind == "inplace":
        written = {"self": dtype for dtype in written.values()}  # noqa: B035, there is at most one
    return [f"{n}.scalar_type() == ({dtype})" for n, dtype in written.items() if dtype != f"{n}.scalar_type()"]


@dataclass(frozen=True)
class ListCall:
    """A call of a list operator, over slices of its lists."""

    call: Call
    lists: tuple[str, ...]  # names of the tensor lists, `out` not among them
    scalars: tuple[str, ...]  # names of the numbers and lists of numbers
    count: int  # tensor lists in all

    def __str__(self) -> str:
        sliced = [a + ".slice(start, count)" if self._is_list(a, p) else a for a, p in self._pairs()]
        return f"aclnn_{self.call.op.name}({', '.join(sliced)})"

    def _pairs(self) -> Iterator[tuple[str, Param]]:
        return zip(self.call.arguments, self.call.op.params, strict=True)

    @staticmethod
    def _is_list(argument: str, param: Param) -> bool:
        return param.kind.endswith("[]") and re.fullmatch(r"\w+", argument) is not None


def list_call(call: Call, kernel: Kernel) -> ListCall:
    """How the kernel of a `_foreach_` overload calls its operator."""
    bindings = kernel.arguments
    lists = tuple(b.name for b in bindings if b.type == "at::TensorList")
    scalars = tuple(b.name for b in bindings if "Scalar" in b.type)
    count = sum(p.kind in ("Tensor[]", "Tensor![]") for p in call.op.params)
    return ListCall(call, lists, scalars, count)


def result(kernel: Kernel) -> str:
    """What the kernel returns: the outputs, as PyTorch's signature wants them."""
    names = kernel.returned
    if not names:
        return ""
    if kernel.kind in ("inplace", "out") or len(names) == 1:
        if kernel.kind != "functional" and len(names) > 1:
            return f"std::tie({', '.join(names)})"
        if kernel.group is not None and kernel.kind == "functional":
            return f"std::move({names[0]})"  # it lives in the rule object
        return names[0] if names else ""
    return f"std::make_tuple({', '.join(f'std::move({n})' for n in names)})"


def torch_mask(dtypes: tuple[str, ...]) -> str:
    """Bit i stands for at::ScalarType i."""
    return f"{sum(1 << TORCH_DTYPE[d] for d in dtypes):#x}"


def outputs(env: jinja2.Environment) -> Iterator[tuple[str, str]]:
    """(path below OUT, text) of the adapter's generated files."""
    env.filters["torch_mask"] = torch_mask
    env.globals |= {"call_outputs": call_outputs, "result": result}
    env.globals |= {"declare_output": declare_output, "given_dtypes": given_dtypes, "list_call": list_call}
    template = env.get_template("adapter.cpp.jinja")
    for family, members in rows():
        used = {c.op.name: c.op for r in members for c in r.calls}
        context: dict[str, Any] = {
            "family": family,
            "rows": members,
            "ops": list(used.values()),
            "headers": sorted({h for r in members for h in r.headers}),
        }
        yield f"adapter/{family}.cpp", template.render(**context)
