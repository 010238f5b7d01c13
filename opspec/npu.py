"""Generates the operators of `torch.ops.npu` from `npu/*.yaml`: schema, kernel, meta function, autograd, autocast.

The shape of each output stands once, as an expression (expressions.py) from which come the kernel's allocation, the
meta function (fake tensors, torch.compile) and the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from typing import Any

import jinja2
from torchgen import local
from torchgen.api import native
from torchgen.api.types import Binding, NativeSignature
from torchgen.model import FunctionSchema

from opspec.adapter import TORCH_DTYPE, Call, parse_call
from opspec.expressions import SCALAR_TYPE, translate
from opspec.table import ROOT, AclnnOp, TableError, parse_dtypes, yaml_rows

# How an argument of the schema is kept between forward and backward.
_OWNED = {
    "at::IntArrayRef": "std::vector<int64_t>",
    "at::OptionalIntArrayRef": "std::optional<std::vector<int64_t>>",
    "c10::string_view": "std::string",
    "const at::Scalar &": "at::Scalar",
}

# Types of arguments that error messages show.
_PRINTED = {"int64_t", "double", "bool", "c10::string_view", "at::IntArrayRef"}

_KEYS = {
    "npu", "doc", "check", "dtypes", "let", "out", "aclnn", "kernel", "meta", "uses", "returns", "composite",
    "differentiable", "backward", "autocast", "ahead", "random", "into", "none", "note", "__line__",
}  # fmt: skip

AUTOCAST = {"lower": "the autocast dtype", "float32": "float32"}


@dataclass(frozen=True)
class Output:
    """One tensor that the operator makes."""

    name: str
    shape: str  # expressions.py
    dtype: str  # a dtype, the name of an argument that has it, or C++


@dataclass(frozen=True)
class Check:
    """A condition on the arguments that the kernel and the meta function share."""

    condition: str  # C++
    text: str  # as the row has it
    message: str  # what is expected, in words
    error: str
    values: list[str]  # numbers and strings to show beside the tensors

    @property
    def macro(self) -> str:
        return {
            "ValueError": "TORCH_CHECK_VALUE",
            "TypeError": "TORCH_CHECK_TYPE",
            "NotImplementedError": "TORCH_CHECK_NOT_IMPLEMENTED",
        }[self.error]


@dataclass(frozen=True)
class Backward:
    """Gradients of some arguments, as one C++ expression."""

    names: tuple[str, ...]  # arguments; "_" drops a result
    formula: str

    @property
    def identifiers(self) -> set[str]:
        return set(re.findall(r"\w+", self.formula))


@dataclass(frozen=True)
class NpuOp:
    """One row of `npu/*.yaml`."""

    row: dict[str, Any]
    family: str
    line: int

    @property
    def where(self) -> str:
        return f"opspec/npu/{self.family}.yaml:{self.line}"

    @cached_property
    def schema(self) -> FunctionSchema:
        return FunctionSchema.parse(self.row["npu"])

    @property
    def name(self) -> str:
        return str(self.schema.name.name)

    @property
    def symbol(self) -> str:
        """A C++ identifier; overloads have a name of their own."""
        return self.schema.name.unambiguous_name()

    @property
    def full_name(self) -> str:
        return str(self.schema.name)

    @cached_property
    def signature(self) -> NativeSignature:
        return NativeSignature(self.schema, symint=False)

    @cached_property
    def arguments(self) -> list[Binding]:
        with local.parametrize(use_const_ref_for_mutable_tensors=False, use_ilistref_for_tensor_lists=False):
            return self.signature.arguments()

    @property
    def returns_type(self) -> str:
        with local.parametrize(use_const_ref_for_mutable_tensors=False, use_ilistref_for_tensor_lists=False):
            return native.returns_type(self.schema.returns, symint=False).cpp_type()

    @property
    def parameters(self) -> str:
        """C++ parameters, without defaults."""
        return ", ".join(f"{b.type} {b.name}" for b in self.arguments)

    @property
    def names(self) -> str:
        return ", ".join(b.name for b in self.arguments)

    @property
    def ahead(self) -> dict[str, str]:
        """Arguments that are replaced before autograd sees the call, and by which C++ expression."""
        return {name: text for name, text in self.row.get("ahead", {}).items() if name != "__line__"}

    @property
    def names_after(self) -> str:
        return ", ".join(f"{b.name}_ahead" if b.name in self.ahead else b.name for b in self.arguments)

    @property
    def tags(self) -> str:
        random = ", at::Tag::nondeterministic_seeded" if self.row.get("random") else ""
        return f"{{at::Tag::pt2_compliant_tag{random}}}"

    @property
    def tensors(self) -> list[str]:
        """Arguments that are one tensor, given or not."""
        return [b.name for b in self.arguments if "at::Tensor" in b.type and "List" not in b.type]

    @property
    def lists(self) -> list[str]:
        """Arguments that are lists of tensors."""
        return [b.name for b in self.arguments if "TensorList" in b.type]

    @property
    def required_lists(self) -> list[str]:
        """Those of them that are always given."""
        return [n for n in self.lists if "optional" not in self.type_of(n)]

    def type_of(self, name: str) -> str:
        for b in self.arguments:
            if b.name == name:
                return b.type
        raise TableError(f"{self.where}: {self.name} has no argument {name!r}")

    @property
    def kinds(self) -> dict[str, str]:
        """What expressions need to know of the arguments."""
        kinds = {"at::IntArrayRef": "list", "int64_t": "int", "bool": "bool"}
        return {b.name: kinds.get(b.type, "any") for b in self.arguments}

    @cached_property
    def outputs(self) -> list[Output]:
        first = self.tensors[0] if self.tensors else ""
        outputs = []
        for name, spec in self.row.get("out", {}).items():
            if name == "__line__":
                continue
            like = spec.get("like", first)
            outputs.append(Output(name, str(spec.get("shape", f"{like}.shape")), str(spec.get("dtype", like))))
        return outputs

    @property
    def first(self) -> str:
        """The argument on whose device the outputs are."""
        given = [t for t in self.tensors if t not in self.optional_tensors]
        return given[0] if given else f"{self.lists[0]}[0]"

    def shape(self, output: Output) -> str:
        return self.translate(output.shape)

    def dtype(self, output: Output) -> str:
        if output.dtype in SCALAR_TYPE:
            return SCALAR_TYPE[output.dtype]
        return f"dtype_of({output.dtype})" if output.dtype in self.tensors else output.dtype

    def translate(self, text: str) -> str:
        try:
            return translate(text, self.kinds)
        except TableError as error:
            raise TableError(f"{self.where}: {error}") from None

    @cached_property
    def checks(self) -> list[Check]:
        """What the arguments must fulfil."""
        found = []
        for condition, message, *kinds in self.row.get("check", []):
            words = set(re.findall(r"\w+", condition))
            values = [b.name for b in self.arguments if b.name in words and b.type in _PRINTED]
            error = kinds[0] if kinds else "ValueError"
            found.append(Check(self.translate(condition), condition, message, error, values))
        return found

    @cached_property
    def branches(self) -> list[tuple[str, Call]]:
        """(C++ condition, call); the first whose condition holds runs. An empty condition always holds."""
        row = self.row.get("aclnn", [])
        cases = [["", row]] if isinstance(row, str) else [["", c] if isinstance(c, str) else c for c in row]
        return [(self.translate(c) if c else "", parse_call(text, self.where)) for c, text in cases]

    @property
    def calls(self) -> list[Call]:
        return [call for _, call in self.branches]

    @property
    def aclnn_ops(self) -> list[AclnnOp]:
        return [c.op for c in self.calls]

    @property
    def uses(self) -> list[str]:
        """CANN's operators that the kernel may call."""
        return [op.name for op in self.aclnn_ops] or list(self.row.get("uses", []))

    @cached_property
    def dtypes(self) -> dict[str, tuple[str, ...]]:
        """What each tensor argument may be, from the row or from CANN's operator."""
        own = {k: parse_dtypes(v) for k, v in self.row.get("dtypes", {}).items() if k != "__line__"}
        for call in self.calls:
            for text, param in call.tensors(outputs=False) + call.tensors(outputs=True):
                if text in self.tensors + self.lists:
                    own.setdefault(text, param.dtypes)
        return own

    @property
    def optional_tensors(self) -> list[str]:
        return [n for n in self.tensors if "optional" in self.type_of(n)]

    def return_position(self, name: str) -> int:
        """Place of a result among all results."""
        return self.row.get("returns", [o.name for o in self.outputs]).index(name)

    @property
    def schema_literal(self) -> str:
        """The schema as a C++ string."""
        text = self.row["npu"].replace("\\", "\\\\").replace('"', '\\"')
        return f'"{text}"'

    @property
    def is_into(self) -> bool:
        """Whether it also has an overload `.out` that takes results and workspace, as graphs need that are updated."""
        return "into" in self.row

    @property
    def used_outputs(self) -> list[tuple[Output, str]]:
        """(output, C++ condition under which the overload `.out` writes it; empty: always)."""
        conditions = self.row["into"] or {}
        return [(o, self.translate(conditions[o.name]) if o.name in conditions else "") for o in self.outputs]

    @property
    def into_schema_literal(self) -> str:
        text = self.schema_literal.replace("(", ".out(", 1)
        head, returns = text.rsplit(") -> ", 1)
        return f"{head}, Tensor? workspace=None, Tensor(a!)[] out) -> {returns}"

    @property
    def workspace_schema_literal(self) -> str:
        arguments = self.schema_literal.rsplit(" -> ", 1)[0]
        return arguments.replace('"', '"_', 1).replace("(", "_get_max_workspace(", 1) + ' -> Tensor"'

    @property
    def has_outputs_function(self) -> bool:
        return not (self.row.get("kernel") and self.row.get("meta"))

    @property
    def is_plain(self) -> bool:
        """Whether it has a kernel of its own, against being composed of other operators."""
        return "composite" not in self.row

    @property
    def is_composite(self) -> bool:
        return "composite" in self.row

    @property
    def is_backward(self) -> bool:
        return bool(self.backward)

    @property
    def is_underivable(self) -> bool:
        """Whether whoever differentiates it gets an error: PyTorch alone would warn once and take zeros."""
        return self.is_plain and not self.backward

    @property
    def is_autocast(self) -> bool:
        return "autocast" in self.row

    @property
    def let(self) -> list[str]:
        let = self.row.get("let", [])
        return [let] if isinstance(let, str) else let

    @property
    def result(self) -> str:
        """What the kernel returns."""
        names = [self.or_none(n) for n in self.row.get("returns", [o.name for o in self.outputs])]
        if not self.schema.returns:
            return ""
        return names[0] if len(self.schema.returns) == 1 else f"{{{', '.join(names)}}}"

    def or_none(self, name: str) -> str:
        """A result in C++: undefined, None in Python, where the row says so."""
        condition = self.row.get("none", {}).get(name)
        return f"({self.translate(condition)} ? at::Tensor() : {name})" if condition else name

    @property
    def meta_result(self) -> str:
        """What the meta function returns: the numbers that a kernel finds out are 0."""
        made = {o.name for o in self.outputs} | {b.name for b in self.arguments}
        returns = self.row.get("returns", [o.name for o in self.outputs])
        names = [self.or_none(n) if n in made else "0" for n in returns]
        if not self.schema.returns:
            return ""
        return names[0] if len(self.schema.returns) == 1 else f"{{{', '.join(names)}}}"

    # ---- autograd

    @cached_property
    def backward(self) -> list[Backward]:
        return [
            Backward(tuple(n.strip() for n in names.split(",")), formula)
            for names, formula in self.row.get("backward", {}).items()
            if names != "__line__"
        ]

    @property
    def tensor_returns(self) -> list[str]:
        """Names of the tensors that the operator returns, in order."""
        names = self.row.get("returns", [o.name for o in self.outputs])
        return [n for n, r in zip(names, self.schema.returns, strict=True) if r.type.is_tensor_like()]

    @property
    def differentiable(self) -> list[str]:
        return self.row.get("differentiable", self.tensor_returns[:1])

    @property
    def may_be_none(self) -> list[str]:
        """Results that can be undefined, which autograd does not take: it sees a placeholder instead."""
        return [n for n in self.tensor_returns if n in self.row.get("none", {})]

    def returned(self, name: str, results: str) -> str:
        """A result among those of a call, in C++."""
        return results if len(self.schema.returns) == 1 else f"std::get<{self.return_position(name)}>({results})"

    @property
    def saved_tensors(self) -> list[str]:
        """Arguments and results that formulas mention."""
        used = set().union(*(b.identifiers for b in self.backward))
        return [n for n in self.tensors + self.tensor_returns if n in used]

    @property
    def saved_values(self) -> list[tuple[str, str]]:
        """(name, type to keep it) of the other arguments and results that formulas mention."""
        used = set().union(*(b.identifiers for b in self.backward))
        return [
            (b.name, _OWNED.get(b.type, b.type))
            for b in self.arguments
            if b.name in used and b.name not in self.tensors
        ]

    @property
    def saved_numbers(self) -> list[tuple[int, str]]:
        """(position, name) of results that are numbers and that formulas mention."""
        used = set().union(*(b.identifiers for b in self.backward))
        names = [r.name or f"result{i}" for i, r in enumerate(self.schema.returns)]
        return [
            (i, names[i]) for i, r in enumerate(self.schema.returns) if not r.type.is_tensor_like() and names[i] in used
        ]

    @property
    def differentiated(self) -> list[str]:
        """Arguments that have a gradient."""
        return [n for b in self.backward for n in b.names if n != "_"]

    def position(self, name: str) -> int:
        return [b.name for b in self.arguments].index(name)


@cache
def npu_ops() -> list[NpuOp]:
    """Every row of `npu/*.yaml`, in file order."""
    ops: list[NpuOp] = []
    seen: dict[str, str] = {}
    for path in sorted((ROOT / "npu").glob("*.yaml")):
        for row in yaml_rows(path):
            op = NpuOp(row, path.stem, row["__line__"])
            if unknown := set(row) - _KEYS:
                raise TableError(f"{op.where}: unknown keys {sorted(unknown)}; known: {sorted(_KEYS - {'__line__'})}")
            if op.full_name in seen:
                raise TableError(f"{op.where}: {op.full_name} already stands at {seen[op.full_name]}")
            seen[op.full_name] = op.where
            ops.append(op)
    return ops


def torch_mask(dtypes: tuple[str, ...]) -> str:
    """Bit i stands for at::ScalarType i."""
    return f"{sum(1 << TORCH_DTYPE[d] for d in dtypes):#x}"


def outputs(env: jinja2.Environment) -> Iterator[tuple[str, str]]:
    """(path below OUT, text) of the generated files."""
    env.filters["torch_mask"] = torch_mask
    ops = npu_ops()
    yield "adapter/npu_calls.h", env.get_template("npu_calls.h.jinja").render(ops=ops)
    for family, members in groupby(ops, key=lambda op: op.family):
        family_ops = list(members)
        used = {a.name: a for op in family_ops for a in op.aclnn_ops}
        text = env.get_template("npu.cpp.jinja").render(family=family, ops=family_ops, aclnn=list(used.values()))
        yield f"adapter/npu_{family}.cpp", text
