"""Translates the shapes and conditions of operator rows from a small part of Python to C++.

The C++ works on sizes that are numbers (the kernel, Int = int64_t) and on sizes that are symbols (the meta function,
Int = c10::SymInt). `[*self.shape[:-1], 1]`, `self.shape[-1] // 2`, `gamma.shape == self.shape[-gamma.dim():]`,
`input_layout == 'TND'`, `bias is None or bias.shape[0] == n`. Functions of torch_npu/csrc/dispatch/npu_operator.h may
be called by name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from opspec.table import TableError

# Names of dtypes in C++.
SCALAR_TYPE = {
    "float16": "at::kHalf", "bfloat16": "at::kBFloat16", "float32": "at::kFloat", "float64": "at::kDouble",
    "uint8": "at::kByte", "int8": "at::kChar", "int16": "at::kShort", "int32": "at::kInt", "int64": "at::kLong",
    "bool": "at::kBool", "qint8": "at::kQInt8",
}  # fmt: skip

# Functions of torch_npu/csrc that return sizes; they are templates over Int.
SIZE_FUNCTIONS = {
    "attention_mask_shape", "attention_shape", "halved", "inference_shape", "quant_product_shape", "repeat_one",
    "statistics_shape", "transposed_product_shape",
}  # fmt: skip
# The same for one size.
COUNT_FUNCTIONS = {
    "active_rows", "finalized_rows", "kept_tokens", "last_size", "mask_bytes", "packed_convolution_bytes",
    "permuted_size", "positive_or", "routed_rows", "size_at", "whole_number",
}  # fmt: skip

_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
_COMPARISON = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class _Translator:
    """One method a kind of node; each returns (C++, kind), kind being list, int, bool, dtype or any."""

    def __init__(self, text: str, kinds: Mapping[str, str]) -> None:
        self.text = text
        self.kinds = kinds

    def refuse(self, node: ast.AST) -> TableError:
        return TableError(f"cannot translate {ast.unparse(node)!r} in {self.text!r}")

    def visit(self, node: ast.AST) -> tuple[str, str]:
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            raise self.refuse(node)
        return method(node)

    def sizes(self, node: ast.AST) -> str:
        text, kind = self.visit(node)
        if kind == "list":
            return f"SizeList<Int>({text})"
        if kind == "int":
            return f"Int({text})"
        return text

    def visit_Constant(self, node: ast.Constant) -> tuple[str, str]:
        if node.value is None:
            return "std::nullopt", "any"
        if isinstance(node.value, bool):
            return str(node.value).lower(), "bool"
        if isinstance(node.value, int):
            return str(node.value), "int"
        if isinstance(node.value, str):
            return f'std::string_view("{node.value}")', "any"
        raise self.refuse(node)

    def visit_Name(self, node: ast.Name) -> tuple[str, str]:
        if node.id in SCALAR_TYPE:
            return SCALAR_TYPE[node.id], "dtype"
        return node.id, self.kinds.get(node.id, "any")

    def visit_Attribute(self, node: ast.Attribute) -> tuple[str, str]:
        owner, _ = self.visit(node.value)
        if node.attr == "shape":
            return f"shape_of<Int>({owner})", "list"
        if node.attr == "dtype":
            return f"dtype_of({owner})", "dtype"
        raise self.refuse(node)

    def visit_Subscript(self, node: ast.Subscript) -> tuple[str, str]:
        owner, _ = self.visit(node.value)
        if isinstance(node.slice, ast.Slice):
            start = self.visit(node.slice.lower)[0] if node.slice.lower else "0"
            end = self.visit(node.slice.upper)[0] if node.slice.upper else "kEnd"
            return f"part<Int>({owner}, {start}, {end})", "list"
        index, _ = self.visit(node.slice)
        return f"entry<Int>({owner}, {index})", "int"

    def visit_List(self, node: ast.List) -> tuple[str, str]:
        text = "SizeList<Int>()"
        for element in node.elts:
            if isinstance(element, ast.Starred):
                text += f".extend({self.sizes(element.value)})"
            else:
                text += f".append({self.sizes(element)})"
        return text, "list"

    def visit_BinOp(self, node: ast.BinOp) -> tuple[str, str]:
        operator = _ARITHMETIC.get(type(node.op))
        if operator is None:
            raise self.refuse(node)
        return f"({self.visit(node.left)[0]} {operator} {self.visit(node.right)[0]})", "int"

    def visit_UnaryOp(self, node: ast.UnaryOp) -> tuple[str, str]:
        text, kind = self.visit(node.operand)
        if isinstance(node.op, ast.USub):
            return f"-{text}", kind
        if isinstance(node.op, ast.Not):
            return f"!{text}", "bool"
        raise self.refuse(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> tuple[str, str]:
        operator = " && " if isinstance(node.op, ast.And) else " || "
        return f"({operator.join(self.visit(v)[0] for v in node.values)})", "bool"

    def visit_Compare(self, node: ast.Compare) -> tuple[str, str]:
        terms = []
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            a, kind = self.visit(left)
            if isinstance(op, (ast.Is, ast.IsNot)) and isinstance(right, ast.Constant) and right.value is None:
                terms.append(f"{'!' if isinstance(op, ast.Is) else ''}given({a})")
            elif isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List)):
                equal = " || ".join(f"{a} == {self.visit(e)[0]}" for e in right.elts)
                terms.append(f"{'!' if isinstance(op, ast.NotIn) else ''}({equal})")
            elif kind == "list":
                if not isinstance(op, (ast.Eq, ast.NotEq)):
                    raise self.refuse(node)
                terms.append(f"{'!' if isinstance(op, ast.NotEq) else ''}equal<Int>({a}, {self.visit(right)[0]})")
            elif type(op) in _COMPARISON:
                terms.append(f"{a} {_COMPARISON[type(op)]} {self.visit(right)[0]}")
            else:
                raise self.refuse(node)
        return "(" + " && ".join(terms) + ")", "bool"

    def visit_IfExp(self, node: ast.IfExp) -> tuple[str, str]:
        kind = self.visit(node.body)[1]
        return f"({self.visit(node.test)[0]} ? {self.sizes(node.body)} : {self.sizes(node.orelse)})", kind

    def visit_Call(self, node: ast.Call) -> tuple[str, str]:
        arguments = ", ".join(self.visit(a)[0] for a in node.args)
        if isinstance(node.func, ast.Attribute):
            owner, _ = self.visit(node.func.value)
            if node.func.attr == "dim":
                return f"rank_of({owner})", "int"
            if node.func.attr == "numel":
                return f"count_of<Int>({owner})", "int"
            raise self.refuse(node)
        if not isinstance(node.func, ast.Name):
            raise self.refuse(node)
        if node.func.id in SIZE_FUNCTIONS:
            return f"{node.func.id}<Int>({arguments})", "list"
        if node.func.id in COUNT_FUNCTIONS:
            return f"{node.func.id}<Int>({arguments})", "int"
        return f"{node.func.id}({arguments})", "any"


def translate(text: str, kinds: Mapping[str, str]) -> str:
    """C++ of an expression; `kinds` says of each argument whether it is an int, a bool, a list (of ints) or any."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise TableError(f"{text!r} is no expression: {error.msg}") from None
    return _Translator(text, kinds).sizes(tree.body)
