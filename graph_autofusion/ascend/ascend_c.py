"""Prints a tile program as Ascend C: a kernel class with queues, one row a step. Not compiled, not run on hardware."""

from __future__ import annotations

from graph_autofusion.ascend.basic import INDICES, basic_program
from graph_autofusion.dtypes import DType
from graph_autofusion.program import Node, Stride
from graph_autofusion.schedule import Schedule

_TYPE = {DType.F32: "float", DType.F16: "half", DType.BF16: "bfloat16_t", DType.I64: "int64_t", DType.I32: "int32_t"}
_UNARY = {"abs": "Abs", "exp": "Exp", "log": "Ln", "sqrt": "Sqrt", "tanh": "Tanh", "erf": "Erf", "sin": "Sin",
          "cos": "Cos", "floor": "Floor", "ceil": "Ceil"}  # fmt: skip
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
_SCALAR = {"add": "Adds", "mul": "Muls", "maximum": "Maxs", "minimum": "Mins"}
_COMPARE = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_ROW = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "lt": "{0} < {1}", "where": "{0} ? {1} : {2}",
        "maximum": "{0} > {1} ? {0} : {1}", "minimum": "{0} < {1} ? {0} : {1}", "cast": "{0}"}  # fmt: skip
_REDUCE = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}


def print_ascend_c(schedule: Schedule) -> str:
    """The translation unit: kernel class and entry.

    Raises:
        ValueError: an instruction that the printer does not have.
    """
    return _AscendCPrinter(schedule).unit()


class _AscendCPrinter:
    def __init__(self, schedule: Schedule) -> None:
        self.program = basic_program(schedule.program, "Ascend C", gathers=True)

    def unit(self) -> str:
        program = self.program
        title = "".join(part.title() for part in program.name.split("_"))
        names = [p.name for p in program.parameters]
        addresses = ", ".join(f"GM_ADDR {name}" for name in names)
        tiles = [p for p in program.parameters if p.dtype not in INDICES]
        numbers = [f"scalar{number}" for number in range(len(program.scalars))]
        arguments = "".join(f", int64_t {name}" for name in numbers)
        buffers = "\n".join(
            f"    pipe.InitBuffer({'to' if p.is_output else 'from'}_{p.name}, 2, cols * sizeof({_TYPE[p.dtype]}));"
            for p in tiles
        )
        globals_ = "\n".join(
            f"    {p.name}_gm.SetGlobalBuffer((__gm__ {_TYPE[p.dtype]}*){p.name});" for p in program.parameters
        )
        values = [i for i, n in enumerate(program.nodes) if n.op not in ("store", "const") and not self.is_number(i)]
        temporaries = "\n".join(f"    pipe.InitBuffer(b{i}, cols * sizeof(float));" for i in values)
        fields = "\n".join(
            [
                *(f"  GlobalTensor<{_TYPE[p.dtype]}> {p.name}_gm;" for p in program.parameters),
                *(
                    f"  TQue<QuePosition::{'VECOUT, 2> to' if p.is_output else 'VECIN, 2> from'}_{p.name};"
                    for p in tiles
                ),
                *(f"  int64_t {name};" for name in numbers),
            ]
        )
        taken = "".join(f"\n    this->{name} = {name};" for name in numbers)
        calculations = "\n".join(f"  TBuf<QuePosition::VECCALC> b{i};" for i in values)
        body = "\n".join(line for i, node in enumerate(program.nodes) for line in self.step(i, node))
        return f"""#include "kernel_operator.h"
using namespace AscendC;

class {title} {{
 public:
  __aicore__ inline void Init({addresses}, uint32_t rows, uint32_t cols{arguments}) {{
    this->rows = rows;
    this->cols = cols;{taken}
{globals_}
{buffers}
{temporaries}
    pipe.InitBuffer(work, cols * sizeof(float));
  }}
  __aicore__ inline void Process() {{
    for (uint32_t row = GetBlockIdx(); row < rows; row += GetBlockNum()) Row(row);
  }}

 private:
  __aicore__ inline void Row(uint32_t row) {{
    LocalTensor<float> shared = work.Get<float>();
{body}
  }}

  TPipe pipe;
{fields}
{calculations}
  TBuf<QuePosition::VECCALC> work;
  uint32_t rows, cols;
}};

extern "C" __global__ __aicore__ void {program.name}({addresses}, uint32_t rows, uint32_t cols{arguments}) {{
  {title} kernel;
  kernel.Init({", ".join([*names, "rows", "cols", *numbers])});
  kernel.Process();
}}
"""

    def step(self, i: int, node: Node) -> list[str]:
        lines = self.instructions(i, node)
        return [f"    {line}" for line in lines]

    def instructions(self, i: int, node: Node) -> list[str]:
        if node.op == "const":
            return []
        if self.is_number(i):
            return [f"const {'bool' if node.dtype is DType.BOOL else 'int64_t'} t{i} = {self.row_number(node)};"]
        if node.op == "load":
            return self.load(i, node)
        if node.op == "store":
            return self.store(node)
        kind = "uint8_t" if node.op in _COMPARE else "float"
        lines = [f"LocalTensor<{kind}> t{i} = b{i}.Get<{kind}>();"]
        if node.op.startswith("reduce."):
            if node.op[7:] not in _REDUCE:
                raise ValueError(f"{self.program.name}: the Ascend C printer has no reduction {node.op[7:]}")
            # The result is in the first element; spread over the row, it meets the row's elements.
            value = self.operand(node.args[0], lines)
            lines.append(f"{_REDUCE[node.op[7:]]}(t{i}, {value}, shared, cols);")
            lines.append(f"Duplicate(t{i}, t{i}.GetValue(0), cols);")
            return lines
        return lines + self.elementwise(i, node)

    def is_number(self, i: int) -> bool:
        """Whether a value is one number a row: an index, or made of indices."""
        node = self.program.nodes[i]
        return node.dtype in INDICES or (node.op == "lt" and self.program.nodes[node.args[0]].dtype in INDICES)

    def row_number(self, node: Node) -> str:
        """A number of the row as a C++ expression."""
        if node.op == "load":
            p = self.program.parameters[node.attr]
            return f"{p.name}_gm.GetValue({'0' if p.strides[0] is Stride.ZERO else 'row'})"
        if node.op == "scalar":
            return f"scalar{node.attr}"
        if node.op not in _ROW:
            raise ValueError(f"{self.program.name}: the Ascend C printer has no {node.op} of indices")
        constants = self.program.nodes
        return _ROW[node.op].format(
            *(str(constants[a].attr) if constants[a].op == "const" else f"t{a}" for a in node.args)
        )

    def elementwise(self, i: int, node: Node) -> list[str]:
        lines: list[str] = []
        numbers = [self.program.nodes[a].op == "const" for a in node.args]
        if node.op == "neg":
            return [*lines, f"Muls(t{i}, {self.operand(node.args[0], lines)}, -1.0f, cols);"]
        if node.op in _SCALAR and any(numbers) and not all(numbers):
            tensor, number = node.args if numbers[1] else node.args[::-1]
            value = self.operand(tensor, lines)
            return [*lines, f"{_SCALAR[node.op]}(t{i}, {value}, {self.number(number)}, cols);"]
        if sum(numbers) > 1:
            raise ValueError(
                f"{self.program.name}: the Ascend C printer takes one number in {node.op}, not {sum(numbers)}"
            )
        values = [self.operand(a, lines) for a in node.args]
        if node.op in _UNARY:
            call = f"{_UNARY[node.op]}(t{i}, {values[0]}, cols);"
        elif node.op in _BINARY:
            call = f"{_BINARY[node.op]}(t{i}, {values[0]}, {values[1]}, cols);"
        elif node.op in _COMPARE:
            call = f"Compare(t{i}, {values[0]}, {values[1]}, CMPMODE::{_COMPARE[node.op]}, cols);"
        else:
            call = f"Select(t{i}, {values[0]}, {values[1]}, {values[2]}, SELMODE::VSEL_TENSOR_TENSOR_MODE, cols);"
        return [*lines, call]

    def operand(self, node: int, lines: list[str]) -> str:
        """The local tensor of a value; a number is spread over the shared one first."""
        if self.program.nodes[node].op != "const":
            return f"t{node}"
        lines.append(f"Duplicate(shared, {self.number(node)}, cols);")
        return "shared"

    def number(self, node: int) -> str:
        return f"{float(self.program.nodes[node].attr)!r}f"

    def load(self, i: int, node: Node) -> list[str]:
        p = self.program.parameters[node.attr]
        kind, offset = _TYPE[p.dtype], "0" if p.strides[0] is Stride.ZERO else "row * cols"
        if node.args:  # MGATHER: a row of the table
            offset = f"t{node.args[0]} * cols"
        copy = f"DataCopyPad(loaded{i}, {p.name}_gm[{offset}], {{1, uint32_t(cols * sizeof({kind})), 0, 0, 0}}, {{}});"
        move = f"Cast(t{i}, loaded{i}, RoundMode::CAST_NONE, cols);"
        if p.dtype is DType.F32:
            move = f"Adds(t{i}, loaded{i}, 0.0f, cols);"
        return [
            f"LocalTensor<{kind}> loaded{i} = from_{p.name}.AllocTensor<{kind}>();",
            copy,
            f"from_{p.name}.EnQue(loaded{i});",
            f"loaded{i} = from_{p.name}.DeQue<{kind}>();",
            f"LocalTensor<float> t{i} = b{i}.Get<float>();",
            move,
            f"from_{p.name}.FreeTensor(loaded{i});",
        ]

    def store(self, node: Node) -> list[str]:
        p = self.program.parameters[node.attr]
        kind, value = _TYPE[p.dtype], f"t{node.args[0]}"
        count = "1" if p.strides[1] is Stride.ZERO else "cols"
        offset = "row" if count == "1" else "row * cols"
        move = f"Adds(stored, {value}, 0.0f, {count});"
        if p.dtype is not DType.F32:
            move = f"Cast(stored, {value}, RoundMode::CAST_RINT, {count});"
        return [
            "{",
            f"  LocalTensor<{kind}> stored = to_{p.name}.AllocTensor<{kind}>();",
            f"  {move}",
            f"  to_{p.name}.EnQue(stored);",
            f"  stored = to_{p.name}.DeQue<{kind}>();",
            f"  DataCopyPad({p.name}_gm[{offset}], stored, {{1, uint32_t({count} * sizeof({kind})), 0, 0, 0}});",
            f"  to_{p.name}.FreeTensor(stored);",
            "}",
        ]
