"""Tensors that share one stretch of memory, so that one operator works on all of them at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_npu import _C
from torch_npu.formats import Format, get_npu_format

__all__ = [
    "get_part_combined_tensor",
    "get_storage_size",
    "is_combined_tensor_valid",
    "npu_change_data_ptr",
    "npu_combine_tensors",
]


def get_storage_size(tensor: Tensor) -> int:
    """How many elements of its storage the tensor reaches; fewer where the storage was made smaller.

    Of a tensor in FRACTAL_NZ those of its whole memory, the padding of the blocks included.
    """
    if tensor.device.type == "npu" and get_npu_format(tensor) is Format.FRACTAL_NZ:
        return torch.ops.npu._npu_storage_size(tensor)
    if tensor.numel() == 0:
        return 0
    reached = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    there = tensor.untyped_storage().nbytes() // tensor.element_size() - int(tensor.storage_offset())
    return min(reached, there)


def npu_change_data_ptr(dst: Tensor, src: Tensor, index: int) -> None:
    """Makes ``dst`` use ``src``'s memory, from ``src``'s element ``index`` on; its own memory is given up.

    Its storage is that part of ``src``'s and keeps it; a storage that was made smaller than the tensor stays so.

    Raises:
        ValueError: another dtype or device, or not enough elements.
    """
    if dst.dtype != src.dtype or dst.device != src.device:
        raise ValueError(
            f"npu_change_data_ptr: expected tensors of one dtype and device, got {dst.dtype} on {dst.device} and "
            f"{src.dtype} on {src.device}"
        )
    needed = get_storage_size(dst)
    if index < 0 or index + needed > get_storage_size(src):
        raise ValueError(
            f"npu_change_data_ptr: {needed} elements from {index} on do not lie in the {get_storage_size(src)} of src"
        )
    _C._take_memory_of(dst, src, index, needed)


def npu_combine_tensors(list_of_tensor: Sequence[Tensor], require_copy_value: bool = True) -> Tensor | None:
    """Moves tensors into one new 1-dimensional tensor, of which they become views.

    Args:
        list_of_tensor: contiguous npu tensors of one dtype.
        require_copy_value: whether they keep their values; else they become 0.

    Returns:
        The new tensor, or None if there are no elements.

    Raises:
        RuntimeError: other tensors.
    """
    for tensor in list_of_tensor:
        if tensor is None or tensor.device.type != "npu" or not tensor.is_contiguous():
            raise RuntimeError(f"npu_combine_tensors: expected contiguous npu tensors, got {_describe(tensor)}")
        if tensor.dtype != list_of_tensor[0].dtype:
            raise RuntimeError(
                f"npu_combine_tensors: expected one dtype, got {list_of_tensor[0].dtype} and {tensor.dtype}"
            )
    total = sum(get_storage_size(tensor) for tensor in list_of_tensor)
    if total == 0:
        return None
    combined = torch.zeros(total, dtype=list_of_tensor[0].dtype, device=list_of_tensor[0].device)
    index = 0
    for tensor in list_of_tensor:
        size = get_storage_size(tensor)
        values = tensor.detach().clone() if require_copy_value else None
        npu_change_data_ptr(tensor, combined, index)
        if values is not None:
            with torch.no_grad():
                tensor.copy_(values)
        index += size
    return combined


def _describe(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}"


def get_part_combined_tensor(combined_tensor: Tensor | None, index: int, size: int) -> Tensor | None:
    """The ``size`` elements from ``index`` on, as a view; None for no elements.

    Raises:
        RuntimeError: the tensor has fewer.
    """
    if combined_tensor is None or size == 0:
        return None
    if index + size > get_storage_size(combined_tensor):
        raise RuntimeError(
            f"get_part_combined_tensor: elements {index} to {index + size} of {get_storage_size(combined_tensor)}"
        )
    return torch.as_strided(combined_tensor.detach(), (size,), (1,), index)


def is_combined_tensor_valid(combined_tensor: Tensor | None, list_of_tensor: Sequence[Tensor | None]) -> bool:
    """Whether all tensors are contiguous and lie in the combined one."""
    if not list_of_tensor:
        return True
    if combined_tensor is None:
        return False
    begin = combined_tensor.data_ptr()
    end = begin + combined_tensor.untyped_storage().nbytes()
    return all(t is not None and t.is_contiguous() and begin <= t.data_ptr() < end for t in list_of_tensor)
