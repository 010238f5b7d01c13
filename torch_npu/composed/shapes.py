"""What pads, slices, fills and packs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_CHANNELS_OF_A_BLOCK = 16


@composed("npu_one_hot(Tensor self, int num_classes=-1, int depth=1, Scalar on_value=1, Scalar off_value=0) -> Tensor")
def one_hot(self: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0) -> Tensor:
    """float32: on_value where a position of the new dimension, of size depth, is the class; elsewhere off_value.

    ``num_classes`` is, in spite of its name, where the new dimension stands. Classes outside have no position.
    """
    if depth < 1:
        refuse("npu_one_hot", "a positive depth", depth)
    if not -self.dim() - 1 <= num_classes <= self.dim():
        refuse("npu_one_hot", f"num_classes, which is a dimension, from {-self.dim() - 1} to {self.dim()}", num_classes)
    hit = self.unsqueeze(-1) == torch.arange(depth, device=self.device)
    values = torch.full_like(hit, off_value, dtype=torch.float32).masked_fill(hit, on_value)
    return values.movedim(-1, num_classes)


@composed("npu_pad(Tensor input, int[] paddings) -> Tensor")
def pad(input: Tensor, paddings: list[int]) -> Tensor:
    """Zeros around the input: how many before and behind it, for each dimension from the first on."""
    if len(paddings) % 2 or len(paddings) > 2 * input.dim() or any(size < 0 for size in paddings):
        refuse("npu_pad", f"pairs of sizes >= 0 for at most {input.dim()} dimensions", paddings)
    pairs = [paddings[i : i + 2] for i in range(0, len(paddings), 2)]
    pairs += [[0, 0]] * (input.dim() - len(pairs))
    return F.pad(input, [size for pair in reversed(pairs) for size in pair])


def _strided(x: Tensor, dim: int, part: slice) -> Tensor:
    """``x[part]`` along ``dim``. Unlike ATen's slices those of Python may go backwards."""
    start, stop, step = part.indices(x.shape[dim])
    if step > 0:
        return torch.ops.aten.slice(x, dim, start, stop, step)
    count = len(range(start, stop, step))
    first = start + (count - 1) * step if count else 0
    return torch.ops.aten.slice(x, dim, first, start + 1 if count else 0, -step).flip(dim)


_INDEXING = (
    "Tensor self, int[] begin, int[] end, int[] strides, int begin_mask=0, int end_mask=0, int ellipsis_mask=0, "
    "int new_axis_mask=0, int shrink_axis_mask=0"
)


@composed(f"npu_indexing({_INDEXING}) -> Tensor")
def indexing(
    self: Tensor,
    begin: list[int],
    end: list[int],
    strides: list[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Tensor:
    """A copy of self[begin:end:strides] for each dimension from the first on; bit i of a mask changes entry i.

    begin_mask and end_mask: the slice is open at that side; ellipsis_mask: the entry stands for all dimensions that no
    other one names; new_axis_mask: it is a new dimension of size 1; shrink_axis_mask: it takes index ``begin`` and the
    dimension away. As in TensorFlow, the first of these that is set counts, from ellipsis_mask on.
    """
    if not len(begin) == len(end) == len(strides):
        refuse("npu_indexing", "begin, end and strides of one length", [len(begin), len(end), len(strides)])
    if 0 in strides:
        refuse("npu_indexing", "strides other than 0", strides)
    if ellipsis_mask.bit_count() > 1:
        refuse("npu_indexing", "at most one bit in ellipsis_mask", bin(ellipsis_mask))
    entries = range(len(begin))
    named = sum(1 for i in entries if not (ellipsis_mask | new_axis_mask) >> i & 1)
    if named > self.dim():
        refuse("npu_indexing", f"slices of at most {self.dim()} dimensions", named)
    result, dim = self, 0
    for i in entries:
        if ellipsis_mask >> i & 1:
            dim += self.dim() - named
        elif new_axis_mask >> i & 1:
            result, dim = result.unsqueeze(dim), dim + 1
        elif shrink_axis_mask >> i & 1:
            result = result.select(dim, begin[i])
        else:
            first = None if begin_mask >> i & 1 else begin[i]
            last = None if end_mask >> i & 1 else end[i]
            result, dim = _strided(result, dim, slice(first, last, strides[i])), dim + 1
    return result.clone(memory_format=torch.contiguous_format)


@composed(f"npu_indexing.out({_INDEXING}, *, Tensor(a!) out) -> Tensor(a!)")
def indexing_out(*arguments: Any, out: Tensor) -> Tensor:
    """npu_indexing into out, which has the result's shape."""
    result = indexing(*arguments)
    if result.shape != out.shape:
        refuse("npu_indexing", f"out of shape {list(result.shape)}", list(out.shape))
    return out.copy_(result)


@composed("npu_stride_add(Tensor self, Tensor other, Scalar offset1, Scalar offset2, Scalar c1_len) -> Tensor")
def stride_add(self: Tensor, other: Tensor, offset1: int, offset2: int, c1_len: int) -> Tensor:
    """Sum of c1_len blocks of 16 channels (dimension 1), of self from block offset1 on, of other from offset2 on.

    Channels that are not there count as zeros.
    """
    if self.dim() < 2 or self.dim() != other.dim():
        refuse("npu_stride_add", "tensors of one rank with channels in dimension 1", [self.shape, other.shape])
    if min(offset1, offset2) < 0 or c1_len < 1:
        refuse("npu_stride_add", "offsets >= 0 and c1_len >= 1", [offset1, offset2, c1_len])
    channels = int(c1_len) * _CHANNELS_OF_A_BLOCK

    def blocks(x: Tensor, offset: int) -> Tensor:
        there = x[:, int(offset) * _CHANNELS_OF_A_BLOCK :][:, :channels]
        return F.pad(there, [0, 0] * (x.dim() - 2) + [0, channels - there.shape[1]])

    return blocks(self, offset1) + blocks(other, offset2)


@composed("npu_masked_fill_range(Tensor self, Tensor start, Tensor end, Tensor value, int axis=-1) -> Tensor")
def masked_fill_range(self: Tensor, start: Tensor, end: Tensor, value: Tensor, axis: int = -1) -> Tensor:
    """self with value[i] at the positions start[i, j] to end[i, j] (not included) of axis, for each i and then j.

    With two or three dimensions and the last one as axis, range j is that of row j of the first dimension; else each
    range is that of all rows.
    """
    name = "npu_masked_fill_range"
    if not 1 <= self.dim() <= 3:
        refuse(name, "1 to 3 dimensions", self.dim())
    if not -self.dim() <= axis < self.dim():
        refuse(name, f"an axis from {-self.dim()} to {self.dim() - 1}", axis)
    if start.dim() != 2 or start.shape != end.shape or value.shape != start.shape[:1]:
        refuse(name, "start and end of one shape [M, N], value of [M]", [start.shape, end.shape, value.shape])
    if value.dtype != self.dtype:
        raise TypeError(f"{name}: expected value of {self.dtype} like self, got {value.dtype}")
    axis %= self.dim()
    by_row = self.dim() > 1 and axis == self.dim() - 1
    if by_row and start.shape[1] > self.shape[0]:
        refuse(name, f"ranges for at most {self.shape[0]} rows", start.shape[1])
    position = torch.arange(self.shape[axis], device=self.device)
    inside = (position >= start.unsqueeze(-1)) & (position < end.unsqueeze(-1))
    if by_row:
        inside = F.pad(inside, [0, 0, 0, self.shape[0] - start.shape[1]])
        shape = [self.shape[0]] + [1] * (self.dim() - 2) + [-1]
    else:
        inside = inside.any(1)
        shape = [1] * axis + [-1] + [1] * (self.dim() - 1 - axis)
    result = self.clone()
    for mask, filling in zip(inside.unbind(), value.unbind(), strict=True):
        result = torch.where(mask.view(shape), filling, result)
    return result


def packed(bits: Tensor) -> Tensor:
    """Bytes of eight bits each, the first one lowest. ``bits``: bool, flat, a multiple of eight."""
    weights = 2 ** torch.arange(8, dtype=torch.int32, device=bits.device)
    return (bits.view(-1, 8) * weights).sum(1).to(torch.uint8)


def unpacked(octets: Tensor) -> Tensor:
    """The bits of bytes, as int32 0 and 1: the inverse of :func:`packed`."""
    weights = 2 ** torch.arange(8, dtype=torch.int32, device=octets.device)
    return (octets.flatten().unsqueeze(1).to(torch.int32) // weights).remainder(2).flatten()


@composed("npu_sign_bits_pack(Tensor self, int size) -> Tensor")
def sign_bits_pack(self: Tensor, size: int) -> Tensor:
    """A bit for each number, 0 if it is negative, eight to a byte and the first one lowest; as [size, ...].

    What fills the last byte up counts as negative.
    """
    name = "npu_sign_bits_pack"
    if self.dtype not in (torch.float16, torch.float32):
        raise TypeError(f"{name}: expected float16 or float32, got {self.dtype}")
    count = (self.numel() + 7) // 8
    if self.dim() != 1:
        refuse(name, "one dimension", list(self.shape))
    if size < 1 or count % size:
        refuse(name, f"size to divide the {count} bytes", size)
    return packed(F.pad(self >= 0, [0, 8 * count - self.numel()])).view(size, count // size)


@composed("npu_sign_bits_unpack(Tensor input, int size, ScalarType dtype) -> Tensor")
def sign_bits_unpack(input: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """1 for each bit that is set, -1 for the others: the numbers that npu_sign_bits_pack packed, as [size, ...]."""
    name = "npu_sign_bits_unpack"
    if input.dtype != torch.uint8 or dtype not in (torch.float16, torch.float32):
        raise TypeError(f"{name}: expected uint8 and as dtype float16 or float32, got {input.dtype} and {dtype}")
    if input.dim() != 1:
        refuse(name, "one dimension", list(input.shape))
    if size < 1 or 8 * input.numel() % size:
        refuse(name, f"size to divide the {8 * input.numel()} bits", size)
    return (unpacked(input) * 2 - 1).to(dtype).view(size, 8 * input.numel() // size)


@composed("copy_memory_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)")
def copy_memory_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """Copies src, of the same device, dtype and number of elements, into self."""
    if self.dtype != src.dtype or self.device != src.device or self.numel() != src.numel():
        seen = [(t.dtype, t.device, list(t.shape)) for t in (self, src)]
        refuse("copy_memory_", "tensors of one dtype, device and number of elements", seen)
    return self.copy_(src.reshape(self.shape), non_blocking)


@composed("npu_silu_(Tensor(a!) self) -> Tensor(a!)")
def silu_(self: Tensor) -> Tensor:
    """x * sigmoid(x) in place."""
    return F.silu(self, inplace=True)


@composed("npu_alloc_float_status(Tensor self) -> Tensor")
def alloc_float_status(self: Tensor) -> Tensor:
    """Eight float32 zeros on the device of self."""
    return torch.zeros(8, dtype=torch.float32, device=self.device)


@composed("npu_get_float_status(Tensor self, int mode=0) -> Tensor")
def get_float_status(self: Tensor, mode: int = 0) -> Tensor:
    """Eight int32 zeros: infinities and NaNs are where they came from, no flag counts overflows besides."""
    _check_float_status("npu_get_float_status", mode)
    return torch.zeros(8, dtype=torch.int32, device=self.device)


@composed("npu_clear_float_status(Tensor self, int mode=0) -> Tensor")
def clear_float_status(self: Tensor, mode: int = 0) -> Tensor:
    """Eight float32 zeros; there is no flag to be cleared (see npu_get_float_status)."""
    _check_float_status("npu_clear_float_status", mode)
    return torch.zeros(8, dtype=torch.float32, device=self.device)


def _check_float_status(operator: str, mode: int) -> None:
    if mode not in (0, 1):
        refuse(operator, "mode 0 or 1", mode)


_STRIDED = "Tensor self, int[] shape, int[] stride, Scalar storage_offset"


@composed(f"npu_stride_copy({_STRIDED}) -> Tensor")
def stride_copy(self: Tensor, shape: list[int], stride: list[int], storage_offset: int) -> Tensor:
    """A contiguous copy of the view of self that shape, stride and storage_offset describe."""
    return self.as_strided(shape, stride, int(storage_offset)).clone(memory_format=torch.contiguous_format)


@composed(f"npu_stride_copy.out({_STRIDED}, *, Tensor(a!) out) -> Tensor(a!)")
def stride_copy_out(*arguments: Any, out: Tensor) -> Tensor:
    """npu_stride_copy into out, which has the view's shape."""
    result = stride_copy(*arguments)
    if out.shape != result.shape:
        refuse("npu_stride_copy", f"out of shape {list(result.shape)}", list(out.shape))
    return out.copy_(result)


@composed("npu_view_copy(Tensor(a!) self, Tensor other, bool non_blocking) -> Tensor(a!)")
def view_copy(self: Tensor, other: Tensor, non_blocking: bool) -> Tensor:
    """Copies other into self, whatever their strides."""
    return self.copy_(other, non_blocking=non_blocking)


@composed("reverse(Tensor self, int[] axis) -> Tensor")
def reverse(self: Tensor, axis: list[int]) -> Tensor:
    """self with the elements along the dimensions of axis in reverse order."""
    return self.flip(axis)


@composed("one_(Tensor(a!) self) -> Tensor(a!)")
def one_(self: Tensor) -> Tensor:
    """Fills self with ones."""
    return self.fill_(1)


@composed("npu_prefetch(Tensor self, Tensor? dependency, int max_size, int offset=0) -> ()")
def prefetch(self: Tensor, dependency: Tensor | None, max_size: int, offset: int = 0) -> None:
    """A hint that max_size bytes of self from offset on will be read soon, once dependency is there; nothing to do."""
    if max_size <= 0 or offset < 0:
        refuse("npu_prefetch", "a positive max_size and an offset that is not negative", [max_size, offset])
