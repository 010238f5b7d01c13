"""What must be over before the interpreter ends."""

import atexit
from pathlib import Path

import torch
from torch.autograd import Variable

from torch_npu import _C
from torch_npu.npu.devices import _is_in_bad_fork, is_initialized


def _has_autograd_threads() -> bool:
    """Whether autograd has started the threads that run backward passes of devices."""
    return any(_name_of(task).startswith("pt_autograd") for task in Path("/proc/self/task").iterdir())


def _name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
        return ""


def _let_autograd_finish() -> None:
    """Wait until the threads of autograd have let go of the last backward pass.

    ``backward()`` returns a moment before its thread drops the pass, and with it a Python object that PyTorch keeps
    there. If the interpreter ends in between, PyTorch aborts the process. A thread takes one pass after the other, so
    a small one that carries no Python object is the last: it is run by the engine itself, below
    ``torch.autograd.backward``.
    """
    for index in {segment["device"] for segment in _C._memory_segments((0, 0))}:  # devices that have been used
        with torch.enable_grad():
            leaf = torch.zeros((), device=f"npu:{index}", requires_grad=True)
            root = leaf.clone()
        Variable._execution_engine.run_backward(
            (root,), (torch.ones_like(root),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )


def _finish() -> None:
    if not is_initialized() or _is_in_bad_fork():
        return
    try:
        if _has_autograd_threads():
            _let_autograd_finish()
    finally:
        _C._synchronize_all()  # queued work would meet a process half torn down


atexit.register(_finish)
