"""The public way from a pattern, or a tile program of one's own, to a kernel: for this machine or for an NPU."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graph_autofusion.ascend import ascend_c, mlir, pto
from graph_autofusion.host.compiler import toolchain
from graph_autofusion.host.printer import kernel_text
from graph_autofusion.kernel import HostKernel
from graph_autofusion.launch_words import Binding
from graph_autofusion.patterns import FusionPattern
from graph_autofusion.program import Parameter, Stride, TileProgram
from graph_autofusion.schedule import Schedule, schedule

_PRINTERS = {"ascendc": ascend_c.print_ascend_c, "pto": pto.print_pto, "mlir": mlir.print_mlir}
_BACKENDS = "'host', 'Ascend C', 'PTO' or 'MLIR'"


@dataclass(frozen=True)
class FusedKernel:
    """One fused kernel: its program, how it is scheduled and what was printed for its backend."""

    tile_program: TileProgram
    schedule: Schedule
    backend: str
    target: str
    source: str
    pattern: FusionPattern | None = None

    def __call__(self, *tensors: Any) -> Any:
        """Runs on tensors in the order of the program's inputs; returns its output, or a tuple of them.

        Tensors are what has ``shape``, ``stride()``, ``data_ptr()`` and ``new_empty()`` (torch's, on npu or CPU). All
        dimensions but the last are one axis; an input may have the last one or a size-1 dimension only.

        Raises:
            RuntimeError: the kernel was printed for an NPU, which this machine has not.
            ValueError: number, type or layout of the tensors do not fit.
        """
        if self.backend != "host":
            raise RuntimeError(
                f"{self.tile_program.name} was printed as {self.backend} for {self.target}: running it needs an "
                "NPU and CANN's compiler; jit_compile(pattern, backend='host', target='host') runs here"
            )
        return run_on_tensors(self.tile_program, tensors)

    def report(self) -> str:
        """What the kernel does and how, as text."""
        of = f" of {self.pattern}" if self.pattern else ""
        lines = [f"{self.tile_program.name}{of}: {self.backend} for {self.target}", str(self.tile_program)]
        return "\n".join([*lines, self.schedule.explain(), f"{len(self.source.splitlines())} lines of source"])


def jit_compile(
    pattern: FusionPattern | TileProgram, backend: str = "host", target: str = "host", name: str | None = None
) -> FusedKernel:
    """Prints, and on the host compiles, the kernel of a pattern or of a tile program.

    Args:
        pattern: from :func:`detect_fusion_pattern`, or a program built with :class:`TileBuilder`.
        backend: 'host' (C++, runs here), 'Ascend C', 'PTO' or 'MLIR' (text for an NPU, not run on hardware).
        target: 'host', or an Ascend product such as 'Ascend 910' or 'Ascend910B3'.

    Raises:
        ValueError: an unknown backend or target, or an instruction that the backend does not have.
        CompilerError: the host's compiler is missing or refuses.
    """
    program = pattern.program if isinstance(pattern, FusionPattern) else pattern
    plan = schedule(program)
    key = backend.replace(" ", "").lower()
    of = pattern if isinstance(pattern, FusionPattern) else None
    if key == "host":
        if target != "host":
            raise ValueError(f"target={target!r} for backend 'host': expected 'host'")
        toolchain()
        _ = _host_kernel(program).function
        return FusedKernel(program, plan, "host", "host", kernel_text(plan), of)
    if key not in _PRINTERS:
        raise ValueError(f"backend={backend!r}: expected {_BACKENDS}")
    if not re.fullmatch(r"ascend ?(310|910|950)\w*", target, re.IGNORECASE):
        raise ValueError(f"target={target!r} for backend {backend!r}: expected an Ascend product, such as 'Ascend 910'")
    return FusedKernel(program, plan, backend, target, _PRINTERS[key](plan), of)


_host_kernels: dict[str, HostKernel] = {}
_lock = threading.Lock()


def _host_kernel(program: TileProgram) -> HostKernel:
    with _lock:
        return _host_kernels.setdefault(repr(program), HostKernel(program))


_registered: list[FusedKernel] = []


def register_fused_kernel(kernel: FusedKernel) -> None:
    """Lets graphs that are compiled from now on use the kernel wherever its pattern is.

    Raises:
        ValueError: the kernel has no pattern, or is not one of the host.
    """
    if kernel.pattern is None:
        raise ValueError(f"{kernel.tile_program.name} has no pattern by which graphs could be searched for it")
    with _lock:
        _registered[:] = [k for k in _registered if str(k.pattern) != str(kernel.pattern)] + [kernel]


def registered_kernels() -> tuple[FusedKernel, ...]:
    """Kernels that graphs are searched for, the last registered first."""
    with _lock:
        return tuple(reversed(_registered))


def unregister_fused_kernel(kernel: FusedKernel) -> None:
    """Forgets the kernel; graphs that are compiled keep it."""
    with _lock:
        _registered[:] = [k for k in _registered if k is not kernel]


def run_on_tensors(program: TileProgram, tensors: Sequence[Any], stream: int | None = None) -> Any:
    """Runs a program of rows and columns as a host kernel on a stream; see :meth:`FusedKernel.__call__`."""
    inputs = program.inputs
    if len(tensors) != len(inputs):
        raise ValueError(f"{program.name} takes {len(inputs)} tensors ({[p.name for p in inputs]}), not {len(tensors)}")
    if program.scalars or any(p.gathered or p.window is not None for p in program.parameters):
        raise ValueError(
            f"{program.name} takes numbers of the launch, tables or windows, which no tensor says; launch a "
            "graph_autofusion.kernel.HostKernel with a Binding for each parameter"
        )
    shape = max((tuple(t.shape) for t in tensors), key=lambda s: (len(s), s))
    rows = 1
    for size in shape[:-1]:
        rows *= size
    sizes = (rows, shape[-1] if shape else 1)
    given = {p.name: t for p, t in zip(inputs, tensors, strict=True)}
    bindings, outputs = [], []
    for parameter in program.parameters:
        if parameter.is_output:
            column = parameter.strides[1] is not Stride.ZERO
            tensor = tensors[0].new_empty(shape if column else shape[:-1])
            outputs.append(tensor)
        else:
            tensor = given[parameter.name]
        bindings.append(Binding(tensor.data_ptr(), _row_strides(program, parameter, tensor, shape)))
    _host_kernel(program).launch(sizes, bindings, stream=stream)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _row_strides(program: TileProgram, parameter: Parameter, tensor: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Strides of a tensor seen as rows of its last dimension.

    Raises:
        ValueError: its type, shape or layout is not what the program takes.
    """
    where = f"{program.name}, {parameter.name}"
    if not str(tensor.dtype).endswith(parameter.dtype.value):
        raise ValueError(f"{where}: takes {parameter.dtype.value}, not {tensor.dtype}")
    own = tuple(tensor.shape)
    if parameter.is_output or own == shape:
        if not tensor.is_contiguous():
            raise ValueError(f"{where}: takes a contiguous tensor, not strides {tensor.stride()}; call contiguous()")
        return (own[-1] if own else 1, 1) if len(own) == len(shape) else (1, 0)
    if own == shape[-1:] and tensor.is_contiguous():
        return (0, 1)
    raise ValueError(f"{where}: shape {own} is neither {shape} nor {shape[-1:]}")
