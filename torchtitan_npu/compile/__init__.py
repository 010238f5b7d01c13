"""``torch.compile(model, backend="npu")``: graph optimiser, automatic fusion and plans.

Importing registers the backend; an installed package registers it by its entry point.
"""

import torch

from torchtitan_npu.compile import report
from torchtitan_npu.compile.backend import Options, npu, passes_of
from torchtitan_npu.compile.folding import refold
from torchtitan_npu.compile.mixtures import watch_mixtures
from torchtitan_npu.compile.optimizers import make_capturable
from torchtitan_npu.compile.report import GraphReport, counters, fallbacks, reports, swaps

make_capturable()
if "npu" not in torch._dynamo.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(npu, name="npu")


def reset() -> None:
    """Forgets reports, reasons and counts; and begins to watch again, as ``torch._dynamo.reset()`` ends it."""
    report.reset()
    watch_mixtures(passes_of)


watch_mixtures(passes_of)

__all__ = ["GraphReport", "Options", "counters", "fallbacks", "npu", "refold", "reports", "reset", "swaps"]
