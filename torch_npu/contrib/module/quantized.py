"""Linear layers with quantized weights, for inference: their parameters are set, not trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter

__all__ = ["LinearA8W8Quant", "LinearQuant", "LinearWeightQuant"]


def _fixed(shape: tuple[int, ...], dtype: torch.dtype | None = None, device: torch.device | None = None) -> Parameter:
    return Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class LinearQuant(nn.Module):
    """``torch_npu.npu_quant_matmul`` as a layer: an input and a weight [out, in] of int8 (or int4, packed in int32).

    ``weight``, ``scale``, and where they were asked for ``offset``, ``pertoken_scale`` and ``bias`` are set by
    ``layer.weight.data = ...``. A float32 scale is made ready for the hardware at each call
    (``torch_npu.npu_trans_quant_param``) where there is no ``pertoken_scale``.

    Args:
        output_dtype: of the result: int8 (None), float16, bfloat16 or int32.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.output_dtype = in_features, out_features, output_dtype
        self.weight = _fixed((out_features, in_features), dtype, device)
        self.scale = _fixed((out_features,), None, device)
        self.offset = _fixed((out_features,), torch.float32, device) if offset else None
        self.pertoken_scale = _fixed((out_features,), torch.float32, device) if pertoken_scale else None
        self.bias = _fixed((out_features,), torch.int32, device) if bias else None

    def forward(self, linear_quant_input: Tensor) -> Tensor:
        dtypes = {linear_quant_input.dtype, self.weight.dtype}
        if dtypes not in ({torch.int8}, {torch.int32}):
            seen = f"{linear_quant_input.dtype} and {self.weight.dtype}"
            raise ValueError(f"{type(self).__name__}: expected input and weight both int8 or both int32, got {seen}")
        scale: Tensor = self.scale
        wraps = scale.dtype == torch.float32 and self.output_dtype not in (torch.bfloat16, torch.int32)
        if self.pertoken_scale is None and wraps:
            scale = torch.ops.npu.npu_trans_quant_param(scale, self.offset)
        return torch.ops.npu.npu_quant_matmul(
            linear_quant_input,
            self.weight.transpose(-2, -1),
            scale,
            offset=self.offset,
            pertoken_scale=self.pertoken_scale,
            bias=self.bias,
            output_dtype=self.output_dtype,
        )


class LinearA8W8Quant(LinearQuant):
    """:class:`LinearQuant` under its first name."""


class LinearWeightQuant(nn.Module):
    """``torch_npu.npu_weight_quant_batchmatmul`` as a layer: a floating input, a weight [out, in] of int8 or int4.

    Parameters are set by ``layer.weight.data = ...``: ``weight``, ``antiquant_scale`` ([out], or [out, groups]) and
    where they were asked for ``antiquant_offset``, ``quant_scale``, ``quant_offset`` and ``bias``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        antiquant_offset: bool = False,
        quant_scale: bool = False,
        quant_offset: bool = False,
        antiquant_group_size: int = 0,
        inner_precise: int = 0,
        weight_dtype: int | None = None,
    ) -> None:
        super().__init__()
        self.weight = _fixed((out_features, in_features), dtype, device)
        self.antiquant_scale = _fixed((out_features,), None, device)
        self.antiquant_offset = _fixed((out_features,), None, device) if antiquant_offset else None
        self.quant_scale = _fixed((out_features,), None, device) if quant_scale else None
        self.quant_offset = _fixed((out_features,), None, device) if quant_offset else None
        self.bias = _fixed((out_features,), None, device) if bias else None
        self.antiquant_group_size, self.inner_precise = antiquant_group_size, inner_precise
        self.weight_dtype = weight_dtype

    def forward(self, x: Tensor) -> Tensor:
        scale, offset = (
            t.transpose(-1, -2) if t is not None and t.dim() == 2 else t
            for t in (self.antiquant_scale, self.antiquant_offset)
        )
        return torch.ops.npu.npu_weight_quant_batchmatmul(
            x,
            self.weight.transpose(-1, -2),
            scale,
            offset,
            self.quant_scale,
            self.quant_offset,
            self.bias,
            self.antiquant_group_size,
            self.inner_precise,
            weight_dtype=self.weight_dtype,
        )
