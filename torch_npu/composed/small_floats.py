"""Floats that PyTorch has no dtype for, held in bytes: Ascend's hifloat8, and float4_e2m1, of which a byte has two."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["float4", "float4_values", "hifloat8", "hifloat8_values"]

_NAN, _INFINITY = 0x80, 0x6F


def _hifloat8_value(code: int) -> float:
    """The number of a positive code: after the sign a prefix says how many bits the exponent has.

    Prefixes 11, 10, 01 and 001 leave 4, 3, 2 and 1 bits to the exponent: its sign, and its magnitude less the leading
    one; 0001 means exponent 0, and 0000 powers of two below the others. What is left is the mantissa.
    """
    if code < 8:
        return 2.0 ** (code - 23) if code else 0.0
    if code < 16:
        return 1 + (code & 7) / 8
    width = 1 if code < 32 else (code >> 5) + 1
    mantissa = 3 if code < 32 else 5 - width
    magnitude = (1 << (width - 1)) | ((code >> mantissa) & ((1 << (width - 1)) - 1))
    exponent = -magnitude if code >> (mantissa + width - 1) & 1 else magnitude
    return 2.0**exponent * (1 + (code & ((1 << mantissa) - 1)) / (1 << mantissa))


# Tables are lists, and tensors of the call that needs them: a trace has no place for tensors of before.
_POSITIVE = [_hifloat8_value(code) if code != _INFINITY else float("inf") for code in range(128)]
_VALUES = _POSITIVE + [-value if code else float("nan") for code, value in enumerate(_POSITIVE)]
# Codes by rising value, and from where on each is the nearest: halfway between two is the larger one.
_ORDER = sorted(range(128), key=_POSITIVE.__getitem__)
_SORTED = [_POSITIVE[code] for code in _ORDER[:-1]] + [1.5 * 2.0**15]  # infinity takes the place of the next number
_FROM = [(low + high) / 2 for low, high in pairwise(_SORTED)]


def _table(numbers: Sequence[float], like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=like.device)


def hifloat8_values(codes: Tensor) -> Tensor:
    """float32 numbers of hifloat8 in int8 or uint8."""
    return _table(_VALUES, codes)[codes.view(torch.uint8).long()]


def hifloat8(x: Tensor) -> Tensor:
    """``x`` in hifloat8, as uint8: to the nearest, ties away from zero, infinity from 40960 on."""
    wide = x.float()
    place = torch.bucketize(wide.abs(), _table(_FROM, x), right=True)
    codes = _table(_ORDER, x, torch.uint8)[place]
    signed = torch.where((wide < 0) & (codes > 0), codes + 128, codes)
    return signed.masked_fill(wide.isnan(), _NAN)


_POSITIVE4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
_FLOAT4 = [*_POSITIVE4, *(-number for number in _POSITIVE4)]


def float4_values(pairs: Tensor, dim: int = -1) -> Tensor:
    """float32 numbers of float4_e2m1 pairs in uint8 along ``dim``, twice as many there; the low bits come first."""
    codes = torch.stack((pairs & 0xF, pairs >> 4), -1).long()
    numbers = _table(_FLOAT4, pairs)[codes]
    return numbers.movedim(dim if dim >= 0 else dim - 1, -2).flatten(-2).movedim(-1, dim)


def float4(x: Tensor, round_mode: str) -> Tensor:
    """``x`` in pairs of float4_e2m1 along the last dimension, as uint8; what is too large becomes 6.

    round_mode: rint (to the nearest, ties to the even code), round (ties away from zero) or floor (downwards).
    """
    size, values = x.float().abs(), _table(_POSITIVE4, x)
    if round_mode == "floor":
        below = torch.bucketize(size, values[1:], right=True)
        codes = torch.where(x < 0, torch.bucketize(size, values).clamp_max(7), below)
    else:
        halfway = (values[1:] + values[:-1]) / 2
        low, high = (torch.bucketize(size, halfway, right=right) for right in (False, True))
        codes = high if round_mode == "round" else torch.where(low % 2 == 0, low, high)
    signed = (codes + 8 * (x < 0)).to(torch.uint8).unflatten(-1, (-1, 2))
    return signed[..., 0] | signed[..., 1] << 4
