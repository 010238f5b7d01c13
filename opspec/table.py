"""Reads the op table: `aclnn/*.yaml` (CANN's operators) and `aten/*.yaml` (PyTorch overloads mapped to them)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent


class TableError(ValueError):
    """A row of the op table that cannot be right. The message names file and row."""


# ---- dtypes ---------------------------------------------------------------------------------------------------


@cache
def dtype_groups() -> dict[str, list[str]]:
    """Named groups of dtypes, from `dtypes.yaml`."""
    return yaml.safe_load((ROOT / "dtypes.yaml").read_text())


def parse_dtypes(expression: str) -> tuple[str, ...]:
    """`"float + int"` -> every dtype name of these groups; a plain dtype name counts as a group of one."""
    groups = dtype_groups()
    names: list[str] = []
    for term in (t.strip() for t in expression.split("+")):
        if term not in groups and term not in groups["all"]:
            raise TableError(f"unknown dtype group {term!r} in {expression!r}; known: {', '.join(groups)}")
        names += [d for d in groups.get(term, [term]) if d not in names]
    return tuple(names)


# ---- aclnn ops ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CType:
    """How one kind of argument looks in CANN's C ABI and in the body of a host operator."""

    abi: str
    host: str


# The vocabulary of signatures in aclnn/*.yaml. `!` is written, `?` may be null, `^` is an output whose shape
# the operator finds out and writes back.
C_TYPES: dict[str, CType] = {
    "Tensor": CType("const aclTensor*", "const at::Tensor&"),
    "Tensor?": CType("const aclTensor*", "const std::optional<at::Tensor>&"),
    "Tensor!": CType("aclTensor*", "at::Tensor&"),
    "Tensor!?": CType("aclTensor*", "const std::optional<at::Tensor>&"),
    "Tensor^": CType("aclTensor*", "DynamicOutput&"),
    "Tensor[]": CType("const aclTensorList*", "const std::vector<at::Tensor>&"),
    "Tensor?[]": CType("const aclTensorList*", "const std::vector<at::Tensor>&"),
    "Tensor![]": CType("aclTensorList*", "std::vector<at::Tensor>&"),
    "Tensor[]?": CType("const aclTensorList*", "const std::vector<at::Tensor>&"),  # empty: null
    "Tensor![]?": CType("aclTensorList*", "std::vector<at::Tensor>&"),
    "Scalar": CType("const aclScalar*", "const at::Scalar&"),
    "Scalar?": CType("const aclScalar*", "const std::optional<at::Scalar>&"),
    "Scalar[]": CType("const aclScalarList*", "const std::vector<at::Scalar>&"),
    "int[]": CType("const aclIntArray*", "at::IntArrayRef"),
    "int[]?": CType("const aclIntArray*", "at::OptionalIntArrayRef"),
    "bool[]": CType("const aclBoolArray*", "const std::vector<bool>&"),
    "bool[]?": CType("const aclBoolArray*", "const std::vector<bool>&"),  # empty: null
    "float[]": CType("const aclFloatArray*", "at::ArrayRef<float>"),
    "bool": CType("bool", "bool"),
    "int": CType("int64_t", "int64_t"),
    "int32": CType("int32_t", "int32_t"),
    "int8": CType("int8_t", "int8_t"),
    "float": CType("double", "double"),
    "float32": CType("float", "float"),
    "dtype": CType("aclDataType", "at::ScalarType"),
    "str": CType("const char*", "std::string_view"),
}

_PARAM = re.compile(r"(?P<base>\w+)(?:<(?P<dtypes>[^>]+)>)?(?P<suffix>[!?^\[\]]*) (?P<name>\w+)")


@dataclass(frozen=True)
class Param:
    """One parameter of an aclnn operator."""

    name: str
    kind: str  # a key of C_TYPES
    dtypes: tuple[str, ...]  # what CANN takes; empty for anything that is not a tensor, or any dtype

    @property
    def is_tensor(self) -> bool:
        return self.kind.startswith("Tensor")

    @property
    def is_output(self) -> bool:
        return "!" in self.kind or "^" in self.kind

    @property
    def is_optional(self) -> bool:
        return self.kind.endswith("?")

    @property
    def abi(self) -> str:
        return C_TYPES[self.kind].abi

    @property
    def host(self) -> str:
        return C_TYPES[self.kind].host


@dataclass(frozen=True)
class AclnnOp:
    """One row of `aclnn/*.yaml`."""

    name: str
    params: tuple[Param, ...]
    checks: tuple[str, ...]  # C++ calls of cann_host/opapi/checks.h, run in phase 1
    host: str | None  # C++ statement over the parameters; None: the function host::<name> is written by hand
    fast: str | None  # C++ bool expression over the descriptors, tried before `host`
    fractal_nz: tuple[str, ...]  # parameters that may lie in FRACTAL_NZ
    max_workspace: bool  # aclnn…GetMaxWorkspaceSize exists, which captured graphs ask once for calls of any lengths
    family: str  # the file it stands in
    line: int

    @property
    def symbol(self) -> str:
        return f"aclnn{self.name}"

    @property
    def outputs(self) -> list[Param]:
        return [p for p in self.params if p.is_output]

    def param(self, name: str) -> Param:
        for p in self.params:
            if p.name == name:
                return p
        raise TableError(f"{self.symbol} has no parameter {name!r}; it has {[p.name for p in self.params]}")


def parse_signature(text: str, dtypes: tuple[str, ...]) -> tuple[str, tuple[Param, ...]]:
    """`"Add(Tensor self, Tensor other, Scalar alpha, Tensor! out)"` -> name and parameters."""
    head, _, rest = text.partition("(")
    params = []
    for part in filter(None, (p.strip() for p in rest.rstrip(")").split(","))):
        m = _PARAM.fullmatch(part)
        if m is None or m["base"] + m["suffix"] not in C_TYPES:
            raise TableError(f"cannot read parameter {part!r} in {text!r}")
        own = dtypes if m["dtypes"] is None else () if m["dtypes"] == "any" else parse_dtypes(m["dtypes"])
        kind = m["base"] + m["suffix"]
        params.append(Param(m["name"], kind, own if m["base"] == "Tensor" else ()))
    return head.strip(), tuple(params)


def _checks(row: dict[str, Any], params: tuple[Param, ...]) -> tuple[str, ...]:
    """`shape: broadcast` is short for the check over all plain inputs and the first output."""
    inputs = ", ".join(p.name for p in params if p.kind == "Tensor")
    written = next((p.name for p in params if p.kind == "Tensor!"), None)
    shorthand = {
        "broadcast": f"broadcast({written}, {{{inputs}}})",
        "same": f"same_shape({written}, {{{inputs}}})",
        "none": None,
    }
    checks = [shorthand[row["shape"]]] if "shape" in row else []
    more = row.get("check", [])
    return tuple(c for c in [*checks, *([more] if isinstance(more, str) else more)] if c)


class _LineLoader(yaml.SafeLoader):
    """Keeps the line of each row, so that generated code can point back to it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        mapping["__line__"] = node.start_mark.line + 1
        return mapping


def _substitute(value: Any, names: dict[str, str]) -> Any:
    """Replaces `$Op` and `$op` in every string of a row."""
    if isinstance(value, str):
        for placeholder, name in names.items():
            value = value.replace(placeholder, name)
        return value
    if isinstance(value, list):
        return [_substitute(v, names) for v in value]
    if isinstance(value, dict):
        return {k: _substitute(v, names) for k, v in value.items()}
    return value


def yaml_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; one with `each: {CANN's name: ATen's name}` stands for a row for each pair."""
    rows = []
    for row in yaml.load(path.read_text(), _LineLoader) or []:
        pairs = row.pop("each", None)
        if pairs is None:
            rows.append(row)
        else:
            rows += [_substitute(row, {"$Op": a, "$op": b}) for a, b in pairs.items() if a != "__line__"]
    return rows


@cache
def aclnn_ops() -> dict[str, AclnnOp]:
    """Every aclnn operator by name (without the `aclnn` prefix)."""
    ops: dict[str, AclnnOp] = {}
    for path in sorted((ROOT / "aclnn").glob("*.yaml")):
        for row in yaml_rows(path):
            where = f"opspec/aclnn/{path.name}:{row['__line__']}"
            known = {"aclnn", "dtypes", "shape", "check", "host", "fast", "fractal_nz", "max_workspace", "__line__"}
            if unknown := set(row) - known:
                raise TableError(f"{where}: unknown keys {sorted(unknown)}; known: {sorted(known - {'__line__'})}")
            try:
                name, params = parse_signature(row["aclnn"], parse_dtypes(str(row.get("dtypes", "all"))))
            except TableError as error:
                raise TableError(f"{where}: {error}") from None
            if name in ops:
                raise TableError(f"{where}: aclnn{name} stands in the table twice")
            host = row.get("host")
            checks, most = _checks(row, params), row.get("max_workspace", False)
            packed = tuple(row.get("fractal_nz", []))
            ops[name] = AclnnOp(name, params, checks, host, row.get("fast"), packed, most, path.stem, row["__line__"])
    return ops


# ---- ATen overloads -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtenRow:
    """One row of `aten/*.yaml`: an overload (or a structured group) and the aclnn call that implements it."""

    aten: str
    call: str | None  # "Add(self, other, alpha, out)"; None for hand-written kernels
    inplace: str | None  # call of the in-place variant where it is not the out call with out = self
    scalar: str | None  # call for a CPU scalar as `other`
    out: tuple[dict[str, str], ...]  # outputs of an overload that is not structured: sizes, dtype, like
    when: str | None  # C++ condition for the native route, else CPU fallback
    kernel: str | None  # name of a hand-written kernel in torch_npu/csrc/ops
    uses: tuple[str, ...]  # aclnn ops called by a hand-written kernel (docs, dtype tables)
    let: tuple[str, ...]  # C++ statements before the call
    meta: str | None  # structured overload whose meta function also says this overload's outputs
    family: str
    line: int = field(default=0)


@cache
def aten_rows() -> list[AtenRow]:
    """Every row of `aten/*.yaml`, in file order."""
    rows: list[AtenRow] = []
    for path in sorted((ROOT / "aten").glob("*.yaml")):
        for row in yaml_rows(path):
            where = f"opspec/aten/{path.name}:{row['__line__']}"
            known = {"aten", "aclnn", "inplace", "scalar", "out", "when", "kernel", "uses", "let", "meta", "__line__"}
            if unknown := set(row) - known:
                raise TableError(f"{where}: unknown keys {sorted(unknown)}; known: {sorted(known - {'__line__'})}")
            out = row.get("out", [])
            out = [{k: v for k, v in o.items() if k != "__line__"} for o in ([out] if isinstance(out, dict) else out)]
            let = row.get("let", [])
            names = row["aten"] if isinstance(row["aten"], list) else [row["aten"]]
            rows += [
                AtenRow(
                    name,
                    row.get("aclnn"),
                    row.get("inplace"),
                    row.get("scalar"),
                    tuple(out),
                    row.get("when"),
                    row.get("kernel"),
                    tuple(row.get("uses", [])),
                    tuple([let] if isinstance(let, str) else let),
                    row.get("meta"),
                    path.stem,
                    row["__line__"],
                )
                for name in names
            ]
    return rows
