"""Prints a tile program as MLIR for the AscendNPU-IR compiler: linalg on tensors with tiles of our own choice.

The entry's convention is that of its Triton front end: lock and workspace, the tensors, the number of rows, then grid
sizes and program ids. Accepted by the compiler is not tested here, run on hardware was none of it.
"""

from __future__ import annotations

from graph_autofusion.ascend.basic import basic_program
from graph_autofusion.dtypes import BOOL, DType
from graph_autofusion.program import Node, Stride
from graph_autofusion.schedule import Schedule

CORES = 40  # vector cores of an Ascend910B3
UNIFIED_BUFFER = 192 * 1024  # bytes of a vector core's memory
_ELEMENT = {DType.F32: "f32", DType.F16: "f16", DType.BF16: "bf16", BOOL: "i1"}
_BINARY = {"add": "arith.addf", "sub": "arith.subf", "mul": "arith.mulf", "div": "arith.divf",
           "maximum": "arith.maximumf", "minimum": "arith.minimumf"}  # fmt: skip
_UNARY = {"neg": "arith.negf", "abs": "math.absf", "exp": "math.exp", "log": "math.log", "sqrt": "math.sqrt",
          "tanh": "math.tanh", "erf": "math.erf", "sin": "math.sin", "cos": "math.cos", "floor": "math.floor",
          "ceil": "math.ceil"}  # fmt: skip
_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_REDUCE = {"sum": ("arith.addf", "0.0"), "max": ("arith.maximumf", "0xFF800000"),
           "min": ("arith.minimumf", "0x7F800000")}  # fmt: skip


def print_mlir(schedule: Schedule, columns: int = 1024) -> str:
    """The module.

    Args:
        columns: length of the rows, which is fixed on this backend.

    Raises:
        ValueError: what the backend does not have, or rows that do not fit into a core's memory.
    """
    return _MlirPrinter(schedule, columns).module()


class _MlirPrinter:
    def __init__(self, schedule: Schedule, columns: int) -> None:
        self.program = basic_program(schedule.program, "MLIR")
        self.columns = columns
        live = len([n for n in self.program.nodes if n.op not in ("store", "const")]) + 2
        self.rows = min(8, UNIFIED_BUFFER // (2 * 4 * columns * min(live, 6)))
        if self.rows < 1:
            raise ValueError(f"{self.program.name}: a row of {columns} does not fit into {UNIFIED_BUFFER} bytes")
        self.lines: list[str] = []
        self.count = 0

    def put(self, line: str) -> None:
        self.lines.append(line)

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def tile(self, dtype: DType = DType.F32) -> str:
        return f"tensor<{self.rows}x{self.columns}x{_ELEMENT[dtype]}>"

    def row(self, dtype: DType = DType.F32) -> str:
        return f"tensor<{self.rows}x{_ELEMENT[dtype]}>"

    def module(self) -> str:
        arguments = [
            f"%{p.name}: memref<?x{_ELEMENT[p.dtype]}> {{tt.tensor_kind = {int(p.is_output)} : i32}}"
            for p in self.program.parameters
        ]
        ids = ", ".join(f"%{name}: i32" for name in ("rows32", "gx", "gy", "gz", "px", "py", "pz"))
        self.put("module {")
        self.put(f"func.func @{self.program.name}(%lock: memref<?xi8>, %workspace: memref<?xi8>, ")
        self.put(f"    {', '.join(arguments)}, {ids})")
        self.put("    attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, ")
        self.put('                global_kernel = "local", parallel_mode = "simd"} {')
        for name, value in (("R", self.rows), ("N", self.columns), ("step", CORES * self.rows)):
            self.put(f"  %{name} = arith.constant {value} : index")
        self.put("  %block = arith.index_cast %px : i32 to index")
        self.put("  %m = arith.index_cast %rows32 : i32 to index")
        self.put("  %low = arith.muli %block, %R : index")
        self.put("  scf.for %i = %low to %m step %step {")
        self.put("    %rest = arith.subi %m, %i : index")
        self.put("    %len = arith.minsi %rest, %R : index")
        self.put("    %off = arith.muli %i, %N : index")
        values: list[str] = []
        for number, node in enumerate(self.program.nodes):
            values.append(self.node(number, node, values))
        self.put("  }\n  return\n}\n}")
        return "\n".join(self.lines) + "\n"

    def node(self, number: int, node: Node, values: list[str]) -> str:
        if node.op == "load":
            return self.load(node)
        if node.op == "store":
            return self.store(node, values[node.args[0]])
        is_row = self.program.is_row(number)
        kind = self.row if is_row else self.tile
        if node.op == "const":
            return self.splat(repr(float(node.attr)), kind())
        if node.op.startswith("reduce."):
            return self.reduce(node, values[node.args[0]])
        arguments = [values[a] if self.program.is_row(a) == is_row else self.spread(values[a]) for a in node.args]
        result = self.fresh()
        if node.op == "where":
            text = f"arith.select {', '.join(arguments)} : {kind(BOOL)}, {kind()}"
        elif node.op in _COMPARE:
            text = f"arith.cmpf {_COMPARE[node.op]}, {', '.join(arguments)} : {kind()}"
        else:
            text = f"{ {**_UNARY, **_BINARY}[node.op] } {', '.join(arguments)} : {kind()}"
        self.put(f"    {result} = {text}")
        return result

    def splat(self, number: str, kind: str) -> str:
        constant, empty, result = self.fresh(), self.fresh(), self.fresh()
        self.put(f"    {constant} = arith.constant {number} : f32")
        self.put(f"    {empty} = tensor.empty() : {kind}")
        self.put(f"    {result} = linalg.fill ins({constant} : f32) outs({empty} : {kind}) -> {kind}")
        return result

    def spread(self, row: str) -> str:
        """A value of each row at all its columns."""
        empty, result = self.fresh(), self.fresh()
        self.put(f"    {empty} = tensor.empty() : {self.tile()}")
        operands = f"ins({row} : {self.row()}) outs({empty} : {self.tile()})"
        self.put(f"    {result} = linalg.broadcast {operands} dimensions = [1]")
        return result

    def reduce(self, node: Node, value: str) -> str:
        name = node.op[7:]
        if name not in _REDUCE:
            raise ValueError(f"{self.program.name}: the MLIR printer has no reduction {name}")
        operation, identity = _REDUCE[name]
        start, result = self.splat(identity, self.row()), self.fresh()
        self.put(
            f"    {result} = linalg.reduce {{{operation}}} ins({value} : {self.tile()}) outs({start} : {self.row()}) "
            "dimensions = [1]"
        )
        return result

    def load(self, node: Node) -> str:
        p = self.program.parameters[node.attr]
        element, shared = _ELEMENT[p.dtype], p.strides[0] is Stride.ZERO
        view, memory, part, tensor = (self.fresh() for _ in range(4))
        if shared:
            kind = f"memref<{self.columns}x{element}>"
            strided = f"memref<{self.columns}x{element}, strided<[1]>>"
            extent = f"offset: [0], sizes: [{self.columns}], strides: [1]"
            self.put(f"    {view} = memref.reinterpret_cast %{p.name} to {extent} : memref<?x{element}> to {strided}")
            self.put(f"    {memory} = memref.alloc() : {kind}")
            self.put(f"    memref.copy {view}, {memory} : {strided} to {kind}")
            flat = f"tensor<{self.columns}x{element}>"
            self.put(f"    {tensor} = bufferization.to_tensor {memory} restrict writable : {kind}")
            empty, result = self.fresh(), self.fresh()
            self.put(f"    {empty} = tensor.empty() : {self.tile(p.dtype)}")
            self.put(
                f"    {result} = linalg.broadcast ins({tensor} : {flat}) outs({empty} : {self.tile(p.dtype)}) "
                "dimensions = [0]"
            )
            return self.widened(result, p.dtype)
        kind = f"memref<{self.rows}x{self.columns}x{element}>"
        rows = f"memref<?x{self.columns}x{element}, strided<[{self.columns}, 1]"
        self.put(f"    {view} = {self.rows_of(p.name, element)}")
        self.put(f"    {memory} = memref.alloc() : {kind}")
        self.put(f"    {part} = memref.subview {memory}[0, 0] [%len, {self.columns}] [1, 1] : {kind} to {rows}>")
        self.put(f"    memref.copy {view}, {part} : {rows}, offset: ?> to {rows}>")
        self.put(f"    {tensor} = bufferization.to_tensor {memory} restrict writable : {kind}")
        return self.widened(tensor, p.dtype)

    def rows_of(self, name: str, element: str) -> str:
        return (
            f"memref.reinterpret_cast %{name} to offset: [%off], sizes: [%len, {self.columns}], "
            f"strides: [{self.columns}, 1] : memref<?x{element}> to "
            f"memref<?x{self.columns}x{element}, strided<[{self.columns}, 1], offset: ?>>"
        )

    def widened(self, tensor: str, dtype: DType) -> str:
        if dtype is DType.F32:
            return tensor
        result = self.fresh()
        self.put(f"    {result} = arith.extf {tensor} : {self.tile(dtype)} to {self.tile()}")
        return result

    def store(self, node: Node, value: str) -> str:
        p = self.program.parameters[node.attr]
        if p.strides[1] is Stride.ZERO:
            raise ValueError(f"{self.program.name}, {p.name}: the MLIR printer stores whole rows")
        if p.dtype is not DType.F32:
            narrow = self.fresh()
            self.put(f"    {narrow} = arith.truncf {value} : {self.tile()} to {self.tile(p.dtype)}")
            value = narrow
        element = _ELEMENT[p.dtype]
        part, view = self.fresh(), self.fresh()
        some = f"tensor<?x{self.columns}x{element}>"
        extent = f"[0, 0] [%len, {self.columns}] [1, 1]"
        self.put(f"    {part} = tensor.extract_slice {value}{extent} : {self.tile(p.dtype)} to {some}")
        self.put(f"    {view} = {self.rows_of(p.name, element)}")
        self.put(
            f"    bufferization.materialize_in_destination {part} in writable {view} : ({some}, "
            f"memref<?x{self.columns}x{element}, strided<[{self.columns}, 1], offset: ?>>) -> ()"
        )
        return ""
