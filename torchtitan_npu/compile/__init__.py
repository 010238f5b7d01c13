"""``torch.compile(model, backend="npu")``: graph optimiser, automatic fusion and plans.

Importing registers the backend; an installed package registers it by its entry point.
"""

import torch

from torchtitan_npu.compile.backend import Options, npu
from torchtitan_npu.compile.folding import refold
from torchtitan_npu.compile.report import GraphReport, counters, fallbacks, reports, reset

if "npu" not in torch._dynamo.list_backends(exclude_tags=()):
    torch._dynamo.register_backend(npu, name="npu")

__all__ = ["GraphReport", "Options", "counters", "fallbacks", "npu", "refold", "reports", "reset"]
