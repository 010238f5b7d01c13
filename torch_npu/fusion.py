"""Which of PyTorch's functions run as one fused operator of CANN's in eager mode, without a change of code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_npu import _C

__all__ = [
    "Fusion",
    "FusionTable",
    "UnfusedCall",
    "UnfusedReport",
    "clear_unfused_report",
    "fusion_table",
    "unfused_report",
]


@dataclass(frozen=True)
class Fusion:
    """One function of PyTorch's and the operator that it becomes."""

    function: str
    operator: str  # CANN's name
    condition: str  # when it does
    otherwise: str  # what runs when the condition does not hold


class FusionTable(list[Fusion]):
    """The fusions. Prints as a table."""

    def __str__(self) -> str:
        rows = [(f.function, f.operator, f.condition, f.otherwise) for f in self]
        title = "functions that run as one operator on device npu"
        return _printed(title, ("function", "operator", "when", "otherwise"), rows)


def _printed(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in columns:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


_FLOATS = "float16, bfloat16, float32"

_TABLE = [
    Fusion(
        "F.scaled_dot_product_attention",
        "aclnnFlashAttentionScoreV2 and its gradient",
        f"4 dimensions, {_FLOATS}, equal head sizes, no dropout, a mask without gradient; causal, masks and "
        "grouped heads (enable_gqa) included",
        "matrix products and softmax (PyTorch's math path)",
    ),
    Fusion(
        "F.rms_norm, nn.RMSNorm",
        "aclnnRmsNorm and its gradient",
        f"a weight of the input's dtype, {_FLOATS}; not while a compiler traces",
        "pow, mean, rsqrt and mul",
    ),
    Fusion(
        "nn.LSTM, nn.GRU, nn.RNN",
        "aclnnRecurrentLayer (the software CANN's) and its gradient, for each layer and direction",
        "float32, no autocast, no projections, no packed sequences",
        "a product and elementwise operators for each step",
    ),
    Fusion("F.layer_norm, nn.LayerNorm", "aclnnLayerNorm and its gradient", _FLOATS, "CPU fallback"),
    Fusion("F.group_norm, nn.GroupNorm", "aclnnGroupNorm and its gradient", _FLOATS, "CPU fallback"),
    Fusion("F.batch_norm, nn.BatchNorm*", "aclnnBatchNorm and its gradient", _FLOATS, "CPU fallback"),
    Fusion("F.linear with a bias", "aclnnAddmm", f"input of 2 dimensions, {_FLOATS}", "aclnnMm and aclnnAdd"),
    Fusion("F.softmax, F.log_softmax", "aclnnSoftmax, aclnnLogSoftmax", _FLOATS, "CPU fallback"),
    Fusion("F.cross_entropy", "aclnnLogSoftmax and aclnnNLLLoss", "classes as target", "log_softmax and a sum"),
    Fusion("torch.optim.Adam, AdamW (fused=True)", "aclnnApplyAdamWV2", _FLOATS, "foreach operators"),
    Fusion("torch.optim.SGD (fused=True)", "aclnnFusedSgd", f"momentum, {_FLOATS}", "CPU fallback"),
    Fusion(
        "foreach operators (torch._foreach_*)", "aclnnForeach*", "lists of one dtype, shape by shape", "CPU fallback"
    ),
]


@dataclass(frozen=True)
class UnfusedCall:
    """Calls of one function that its fused operator did not take, for one reason."""

    function: str  # "scaled_dot_product_attention"
    reason: str  # what the operator needs
    calls: int
    first_line: str  # the Python line that asked first


class UnfusedReport(list[UnfusedCall]):
    """The calls, most frequent first. Prints as a table."""

    def __str__(self) -> str:
        rows = [(c.function, c.reason, str(c.calls), c.first_line) for c in self]
        if not rows:
            return "every call was fused\n"
        return _printed("functions that were composed", ("function", "reason", "calls", "first Python line"), rows)


def unfused_report() -> UnfusedReport:
    """Calls of attention, ``rms_norm`` and recurrent layers that were composed of several operators, and why.

    Also operators that had to copy a tensor in FRACTAL_NZ to a plain one first. Since the start or the last
    :func:`clear_unfused_report`.
    """
    calls = [UnfusedCall(c.function, c.reason, c.calls, c.first_line) for c in _C._unfused_calls()]
    return UnfusedReport(sorted(calls, key=lambda c: -c.calls))


def clear_unfused_report() -> None:
    """Forgets the calls so far."""
    _C._unfused_calls_clear()


def fusion_table() -> FusionTable:
    """What PyTorch's functions become in eager mode. ``print(torch_npu.fusion_table())`` shows a table.

    :func:`torch_npu.native_calls` counts the operators that ran; what ran on the CPU instead stands in
    :func:`torch_npu.fallback_report`.
    """
    return FusionTable(_TABLE)
