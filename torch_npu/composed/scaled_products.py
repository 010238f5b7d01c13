"""Products and convolutions of quantized numbers, with what follows them: activations, sums, additions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.block_quantization import powers_of_two
from torch_npu.composed.registry import composed, dtype_numbered, refuse, refuse_options

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_E8M0 = (torch.float8_e8m0fnu, torch.uint8)


@composed(
    "npu_quant_matmul_gelu(Tensor x1, Tensor x2, Tensor x1_scale, Tensor x2_scale, *, Tensor? bias=None, "
    "str? approximate='gelu_erf') -> Tensor"
)
def quant_matmul_gelu(
    x1: Tensor,
    x2: Tensor,
    x1_scale: Tensor,
    x2_scale: Tensor,
    *,
    bias: Tensor | None = None,
    approximate: str | None = "gelu_erf",
) -> Tensor:
    """gelu of npu_quant_matmul(x1, x2) * x2_scale [n] * x1_scale [m] + bias, in bfloat16 if x2_scale is, else float16.

    approximate is gelu_erf or gelu_tanh. The product is rounded before.
    """
    name = "npu_quant_matmul_gelu"
    if approximate not in (None, "gelu_erf", "gelu_tanh"):
        refuse(name, "approximate gelu_erf or gelu_tanh", repr(approximate))
    dtype = torch.bfloat16 if x2_scale.dtype == torch.bfloat16 else torch.float16
    product = torch.ops.npu.npu_quant_matmul(x1, x2, x2_scale, pertoken_scale=x1_scale, bias=bias, output_dtype=dtype)
    return F.gelu(product, approximate="tanh" if approximate == "gelu_tanh" else "none")


@composed(
    "npu_quant_matmul_reduce_sum(Tensor x1, Tensor x2, *, Tensor? x1_scale=None, Tensor? x2_scale=None) -> Tensor"
)
def quant_matmul_reduce_sum(
    x1: Tensor, x2: Tensor, *, x1_scale: Tensor | None = None, x2_scale: Tensor | None = None
) -> Tensor:
    """Sum over the batch of x1 [B, m, k] @ x2 [B, k, n] (int8) * x1_scale [B, m] * x2_scale [n], in bfloat16."""
    name = "npu_quant_matmul_reduce_sum"
    if x1.dim() != 3 or x2.dim() != 3 or x1.shape[0] != x2.shape[0] or x1_scale is None or x2_scale is None:
        shapes = [list(x1.shape), list(x2.shape)]
        refuse(name, "x1 [B, m, k], x2 [B, k, n], x1_scale [B, m] and x2_scale [n]", shapes)
    if x1_scale.shape != x1.shape[:2] or x2_scale.shape != x2.shape[2:]:
        refuse(name, "x1_scale [B, m] and x2_scale [n]", [list(x1_scale.shape), list(x2_scale.shape)])
    one = torch.ones(1, device=x1.device)
    products = torch.ops.npu.npu_quant_matmul(x1, x2, one, output_dtype=torch.int32)
    return ((products.float() * x1_scale.float().unsqueeze(2)).sum(0) * x2_scale.float()).to(torch.bfloat16)


def _powers(operator: str, scale: Tensor | None, like: Tensor) -> Tensor:
    """Powers of two [k, columns] of float8 ``like`` [k, columns], from bytes [ceil(k / 64), columns, 2]."""
    pairs = -(-like.shape[0] // 64)
    if scale is None or scale.dtype not in _E8M0 or scale.shape != (pairs, like.shape[1], 2):
        seen = None if scale is None else (scale.dtype, list(scale.shape))
        refuse(operator, f"a scale in float8_e8m0fnu or uint8, {[pairs, like.shape[1], 2]}", seen)
    powers = powers_of_two(scale.view(torch.uint8)).transpose(1, 2).flatten(0, 1)
    return powers.repeat_interleave(32, 0)[: like.shape[0]]


_ADDED = (
    "Tensor x1, Tensor x2, Tensor x2_scale, *, Tensor? x1_scale=None, int[]? group_sizes=None, int? x1_dtype=None, "
    "int? x2_dtype=None, int? x1_scale_dtype=None, int? x2_scale_dtype=None"
)


def _check_kinds(operator: str, options: dict[str, Any]) -> None:
    """The dtypes that are given for bytes must be those that they are read as."""
    groups = options.pop("group_sizes", None)
    if groups is not None and list(groups) not in ([0, 0, 0], [1, 1, 32]):
        raise NotImplementedError(f"{operator}: group_sizes must be [1, 1, 32], got {list(groups)}")
    for name in ("x1_scale_dtype", "x2_scale_dtype"):
        number = options.pop(name, None)
        if number is not None:
            dtype_numbered(operator, name, number, (torch.float8_e8m0fnu,))
    refuse_options(operator, options)


def _added(operator: str, self: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, options: dict[str, Any]) -> Tensor:
    x1_scale = options.pop("x1_scale", None)
    _check_kinds(operator, options)
    if x1.dtype not in _FLOAT8 or x2.dtype not in _FLOAT8:
        raise TypeError(f"{operator}: expected x1 and x2 in float8_e4m3fn or float8_e5m2, got {[x1.dtype, x2.dtype]}")
    if x1.dim() != 2 or x2.dim() != 2 or x1.shape[0] != x2.shape[0] or self.shape != (x1.shape[1], x2.shape[1]):
        shapes = [list(t.shape) for t in (self, x1, x2)]
        refuse(operator, "self [m, n], x1 [k, m] and x2 [k, n]", shapes)
    left = x1.float() * _powers(operator, x1_scale, x1)
    right = x2.float() * _powers(operator, x2_scale, x2)
    return self + (left.t() @ right).to(self.dtype)


@composed(f"npu_add_quant_matmul(Tensor self, {_ADDED}) -> Tensor")
def add_quant_matmul(self: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, **options: Any) -> Tensor:
    """self [m, n] + x1.T @ x2 of float8 matrices [k, m] and [k, n], whose blocks of 32 rows have powers of two.

    x1_scale [ceil(k / 64), m, 2] and x2_scale [ceil(k / 64), n, 2] are those of npu_dynamic_mx_quant along axis 0.
    """
    return _added("npu_add_quant_matmul", self, x1, x2, x2_scale, options)


@composed(f"npu_add_quant_matmul_(Tensor(a!) self, {_ADDED}) -> Tensor(a!)")
def add_quant_matmul_(self: Tensor, x1: Tensor, x2: Tensor, x2_scale: Tensor, **options: Any) -> Tensor:
    """npu_add_quant_matmul in place."""
    return self.copy_(_added("npu_add_quant_matmul_", self, x1, x2, x2_scale, options))


@composed(
    "npu_transpose_quant_batchmatmul(Tensor x1, Tensor x2, int dtype, *, Tensor? bias=None, Tensor? x1_scale=None, "
    "Tensor? x2_scale=None, int[]? group_sizes=None, int[]? perm_x1=None, int[]? perm_x2=None, int[]? perm_y=None, "
    "int? batch_split_factor=1, int? x1_dtype=None, int? x2_dtype=None) -> Tensor"
)
def transpose_quant_batchmatmul(
    x1: Tensor,
    x2: Tensor,
    dtype: int,
    *,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    group_sizes: list[int] | None = None,
    perm_x1: list[int] | None = None,
    perm_x2: list[int] | None = None,
    perm_y: list[int] | None = None,
    **options: Any,
) -> Tensor:
    """x1 [m, b, k] and x2 [b, k, n] (perm_x2 [0, 2, 1]: [b, n, k]) in float8: products of the batch, [m, b, n].

    They are times x1_scale [m] and x2_scale [n] in float32; or operands times powers of two of blocks of 32, bytes [m,
    b, k / 64, 2] and [b, k / 64, n, 2] (or [b, n, k / 64, 2]). The result is in float16 or bfloat16.
    """
    name = "npu_transpose_quant_batchmatmul"
    refuse_options(name, options)
    kind = dtype_numbered(name, "dtype", dtype, (torch.float16, torch.bfloat16))
    order = [0, 1, 2] if perm_x2 is None else list(perm_x2)
    if list(perm_x1 or [1, 0, 2]) != [1, 0, 2] or list(perm_y or [1, 0, 2]) != [1, 0, 2] or order[:1] != [0]:
        refuse(name, "perm_x1 and perm_y [1, 0, 2], perm_x2 [0, 1, 2] or [0, 2, 1]", [perm_x1, perm_x2, perm_y])
    if x1.dtype not in _FLOAT8 or x2.dtype not in _FLOAT8 or x1_scale is None or x2_scale is None:
        raise TypeError(f"{name}: expected x1 and x2 in float8 with their scales, got {[x1.dtype, x2.dtype]}")
    left, right = x1.float(), x2.float().permute(order)
    if left.dim() != 3 or left.shape[1:] != right.shape[:2]:
        refuse(name, "x1 [m, b, k] and x2 [b, k, n] or [b, n, k]", [list(x1.shape), list(x2.shape)])
    if x1_scale.dtype in _E8M0 and x2_scale.dtype in _E8M0:
        if group_sizes is not None and list(group_sizes)[2] not in (0, 32):
            raise NotImplementedError(f"{name}: group_sizes must be [1, 1, 32], got {list(group_sizes)}")
        pairs = left.shape[2] // 64
        expected = (
            [left.shape[0], left.shape[1], pairs, 2],
            [*x2.shape[:1], *((pairs, x2.shape[2]) if order == [0, 1, 2] else (x2.shape[1], pairs)), 2],
        )
        if left.shape[2] % 64 or (list(x1_scale.shape), list(x2_scale.shape)) != expected:
            refuse(name, f"k a multiple of 64, scales {list(expected)}", [list(x1_scale.shape), list(x2_scale.shape)])
        rows = powers_of_two(x1_scale.view(torch.uint8)).flatten(-2)
        columns = powers_of_two(x2_scale.view(torch.uint8))
        columns = columns.transpose(2, 3).flatten(1, 2) if order == [0, 1, 2] else columns.flatten(-2).transpose(1, 2)
        left = left * rows.repeat_interleave(32, -1)
        right = right * columns.repeat_interleave(32, 1)
        return torch.bmm(left.transpose(0, 1), right).transpose(0, 1).to(kind)
    if x1_scale.shape != left.shape[:1] or x2_scale.shape != right.shape[2:] or x1_scale.dtype != torch.float32:
        refuse(name, "float32 x1_scale [m] and x2_scale [n]", [list(x1_scale.shape), list(x2_scale.shape)])
    product = torch.bmm(left.transpose(0, 1), right).transpose(0, 1)
    return (product * x1_scale[:, None, None] * x2_scale.float()).to(kind)


@composed(
    "npu_quant_conv2d(Tensor input, Tensor weight, Tensor scale, int[2] strides=1, int[2] pads=0, int[2] dilations=1, "
    "int groups=1, int offset_x=0, str round_mode='rint', int? output_dtype=None, Tensor? bias=None, "
    "Tensor? offset=None, int? input_dtype=None, int? weight_dtype=None) -> Tensor"
)
def quant_conv2d(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    offset_x: int = 0,
    round_mode: str = "rint",
    output_dtype: int | None = None,
    bias: Tensor | None = None,
    offset: Tensor | None = None,
    input_dtype: int | None = None,
    weight_dtype: int | None = None,
) -> Tensor:
    """Convolution of int8 input [N, C, H, W] and weight, + int32 bias, times scale [C2], in float16 (or output_dtype).

    scale is float32, or the int64 of npu_trans_quant_param. Sums are exact.
    """
    name = "npu_quant_conv2d"
    given = {"offset_x": offset_x or None, "offset": offset, "input_dtype": input_dtype, "weight_dtype": weight_dtype}
    refuse_options(name, {argument: value for argument, value in given.items() if value is not None})
    if round_mode != "rint":
        raise NotImplementedError(f"{name}: round_mode must be rint, got {round_mode!r}")
    if input.dtype != torch.int8 or weight.dtype != torch.int8 or (bias is not None and bias.dtype != torch.int32):
        seen = [input.dtype, weight.dtype, None if bias is None else bias.dtype]
        raise TypeError(f"{name}: expected input and weight in int8 and bias in int32, got {seen}")
    if scale.shape != weight.shape[:1]:
        refuse(name, f"scale [{weight.shape[0]}]", list(scale.shape))
    kinds = (torch.float16, torch.bfloat16, torch.float32)
    dtype = torch.float16 if output_dtype is None else dtype_numbered(name, "output_dtype", output_dtype, kinds)
    factors = scale.float()
    if scale.dtype == torch.int64:  # the bits of a float32
        factors = (scale & 0xFFFFFFFF).contiguous().view(torch.int32)[::2].contiguous().view(torch.float32)
    wide_bias = None if bias is None else bias.double()
    total = F.conv2d(input.double(), weight.double(), wide_bias, strides, pads, dilations, groups)
    return (total * factors.double().view(-1, 1, 1)).to(dtype)
