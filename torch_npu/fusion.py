"""Which of PyTorch's functions run as one fused operator of CANN's in eager mode, without a change of code."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fusion", "FusionTable", "fusion_table"]


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
        from rich.console import Console
        from rich.table import Table

        table = Table(title="functions that run as one operator on device npu")
        for name in ("function", "operator", "when", "otherwise"):
            table.add_column(name)
        for f in self:
            table.add_row(f.function, f.operator, f.condition, f.otherwise)
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


def fusion_table() -> FusionTable:
    """What PyTorch's functions become in eager mode. ``print(torch_npu.fusion_table())`` shows a table.

    :func:`torch_npu.native_calls` counts the operators that ran; what ran on the CPU instead stands in
    :func:`torch_npu.fallback_report`.
    """
    return FusionTable(_TABLE)
