"""Lossless compression of floats by the frequencies of their exponents.

The eight highest bits after the sign are the exponent byte (of float16 with three bits of the mantissa); the others and
the sign are kept as they are. Exponent bytes become their ranks among the 256 by frequency. Of each 64 neighbours a
byte says how many bits the largest rank has, and as many planes of 64 bits follow behind all of these bytes. What the
hardware writes has another order: streams are for this software's own npu_hans_decode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

__all__ = ["npu_hans_decode", "npu_hans_encode"]

_BLOCK = 64
_INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def _check(operator: str, x: Tensor, pdf: Tensor, mantissa: Tensor, *others: Tensor) -> None:
    if x.dtype not in _INTEGERS or any(t.dtype != x.dtype for t in (mantissa, *others)):
        seen = [t.dtype for t in (x, mantissa, *others)]
        raise TypeError(f"{operator}: expected tensors of one of {list(_INTEGERS)}, got {seen}")
    if x.numel() % _BLOCK or pdf.numel() != 256 or pdf.dtype != torch.int32:
        refuse(operator, "a multiple of 64 numbers and pdf [256] in int32", [x.numel(), list(pdf.shape), pdf.dtype])
    if mantissa.nbytes != x.numel() * (x.element_size() - 1):
        refuse(operator, f"a mantissa of {x.numel() * (x.element_size() - 1)} bytes", mantissa.nbytes)
    if not all(t.is_contiguous() for t in (mantissa, *others)):
        refuse(operator, "contiguous tensors to write to and to read from", "others")


def _places(pdf: Tensor) -> Tensor:
    """Bytes from the most frequent one on; a byte's rank is its place here."""
    return pdf.flatten().long().argsort(descending=True, stable=True)


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Exponent bytes, and what is left as bytes [numbers, size - 1]."""
    bits = 8 * x.element_size()
    wide = x.flatten().view(_INTEGERS[x.dtype]).long() & (1 << bits) - 1
    turned = (wide << 1 | wide >> (bits - 1)) & (1 << bits) - 1  # the sign comes last
    rest = torch.stack([turned >> 8 * i & 0xFF for i in range(x.element_size() - 1)], -1)
    return turned >> (bits - 8), rest.to(torch.uint8)


def _joined(exponents: Tensor, rest: Tensor, like: Tensor) -> Tensor:
    bits = 8 * like.element_size()
    turned = exponents << (bits - 8)
    for i in range(like.element_size() - 1):
        turned = turned | rest[:, i].long() << 8 * i
    wide = (turned >> 1 | turned << (bits - 1)) & (1 << bits) - 1
    signed = torch.where(wide >> (bits - 1) > 0, wide - (1 << bits), wide)
    return signed.to(_INTEGERS[like.dtype]).view(like.dtype).view(like.shape)


def _planes(ranks: Tensor) -> tuple[Tensor, Tensor]:
    """How many bits each block of ranks has, and its planes as bytes [blocks, 8, 8]."""
    blocks = ranks.view(-1, _BLOCK)
    widths = (blocks.amax(1, keepdim=True) >= 1 << torch.arange(8, device=ranks.device)).sum(1)
    bits = blocks.unsqueeze(1) >> torch.arange(8, device=ranks.device).view(8, 1) & 1
    weights = 1 << torch.arange(8, device=ranks.device)
    return widths, (bits.unflatten(-1, (8, 8)) * weights).sum(-1).to(torch.uint8)


@composed(
    "npu_hans_encode.out(Tensor input, bool statistic=False, bool reshuff=False, *, Tensor(a!) pdf, "
    "Tensor(b!) mantissa, Tensor(c!) fixed, Tensor(d!) var) -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!))",
    fake=lambda *_, pdf, mantissa, fixed, var, **__: (pdf, mantissa, fixed, var),
)
def hans_encode(
    input: Tensor,
    statistic: bool = False,
    reshuff: bool = False,
    *,
    pdf: Tensor,
    mantissa: Tensor,
    fixed: Tensor,
    var: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """input without loss in mantissa and a stream of exponents, that fills fixed and then (not with reshuff) var.

    float32, float16 or bfloat16, a multiple of 64 numbers. statistic: first writes how often each exponent byte occurs
    to pdf [256], which the stream follows; any pdf can be read again. fixed and var have as many bytes as 65/64 of
    input's numbers at least, in the dtype of input.
    """
    name = "npu_hans_encode"
    _check(name, input, pdf, mantissa, fixed, var)
    exponents, rest = _split(input.contiguous())
    if statistic:
        pdf.copy_(torch.bincount(exponents, minlength=256).view(pdf.shape))
    ranks = torch.empty(256, dtype=torch.int64, device=input.device)
    ranks[_places(pdf)] = torch.arange(256, device=input.device)
    widths, planes = _planes(ranks[exponents])
    kept = torch.arange(8, device=input.device) < widths.unsqueeze(1)
    stream = torch.cat((widths.to(torch.uint8), planes[kept].flatten()))
    room = [fixed.nbytes, 0 if reshuff else var.nbytes]
    if stream.numel() > sum(room):
        refuse(name, f"room for {stream.numel()} bytes in fixed{'' if reshuff else ' and var'}", room)
    mantissa.view(torch.uint8).view(-1).copy_(rest.flatten())
    first, second = stream[: room[0]], stream[room[0] :]
    for target, part in ((fixed, first), (var, second)):
        target.view(torch.uint8).view(-1)[: part.numel()].copy_(part)
    return pdf, mantissa, fixed, var


@composed(
    "npu_hans_decode.out(Tensor mantissa, Tensor fixed, Tensor var, Tensor pdf, bool reshuff=False, *, "
    "Tensor(a!) out) -> Tensor(a!)",
    fake=lambda *_, out, **__: out,
)
def hans_decode(
    mantissa: Tensor, fixed: Tensor, var: Tensor, pdf: Tensor, reshuff: bool = False, *, out: Tensor
) -> Tensor:
    """What npu_hans_encode compressed to mantissa, fixed, var and pdf, with the same reshuff, written to out."""
    name = "npu_hans_decode"
    _check(name, out, pdf, mantissa, fixed, var)
    parts = [t.view(torch.uint8).view(-1) for t in ((fixed,) if reshuff else (fixed, var))]
    stream, blocks = torch.cat(parts), out.numel() // _BLOCK
    widths = stream[:blocks].long()
    count = int(widths.sum()) * 8
    if stream.numel() < blocks + count or (blocks and int(widths.max()) > 8):
        refuse(name, "a stream of npu_hans_encode for as many numbers as out has", [stream.numel(), out.numel()])
    planes = torch.zeros(blocks, 8, 8, dtype=torch.uint8, device=out.device)
    kept = torch.arange(8, device=out.device) < widths.unsqueeze(1)
    planes[kept] = stream[blocks : blocks + count].view(-1, 8)
    bits = planes.long().unsqueeze(-1) >> torch.arange(8, device=out.device) & 1
    ranks = (bits.flatten(-2) << torch.arange(8, device=out.device).view(8, 1)).sum(1)
    rest = mantissa.view(torch.uint8).view(out.numel(), out.element_size() - 1)
    return out.copy_(_joined(_places(pdf)[ranks.flatten()], rest, out))


def npu_hans_encode(
    input: Tensor, statistic: bool = False, reshuff: bool = False, *, out: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``torch.ops.npu.npu_hans_encode`` with its results, pdf, mantissa, fixed and var, in one argument."""
    pdf, mantissa, fixed, var = out
    return torch.ops.npu.npu_hans_encode(input, statistic, reshuff, pdf=pdf, mantissa=mantissa, fixed=fixed, var=var)


def npu_hans_decode(
    mantissa: Tensor, fixed: Tensor, var: Tensor, pdf: Tensor, reshuff: bool = False, *, out: Tensor
) -> Tensor:
    """``torch.ops.npu.npu_hans_decode``."""
    return torch.ops.npu.npu_hans_decode(mantissa, fixed, var, pdf, reshuff, out=out)
