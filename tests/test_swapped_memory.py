"""Tensors of npu in the host's memory, and memory that is filled where programs must not depend on it."""

import pytest
import torch
from torch.testing._internal.common_utils import DeterministicGuard

import torch_npu


def test_swapped_tensors_compute_and_take_no_device_memory():
    before = torch.npu.memory_allocated()
    x = torch_npu.empty_with_swapped_memory([256, 3], dtype=torch.float32, device="npu:0")
    assert torch.npu.memory_allocated() == before
    assert x.device == torch.device("npu:0")
    x.fill_(2)
    x += torch.arange(3.0, device="npu")
    assert torch.equal(x.cpu(), (torch.full((256, 3), 2.0) + torch.arange(3.0)))
    y = x.clone()
    del x
    assert y.sum().item() == 256 * 9


def test_swapped_tensors_are_of_npu_only():
    with pytest.raises(ValueError, match="expected a npu device, got cpu"):
        torch_npu.empty_with_swapped_memory([2], device="cpu")
    assert torch_npu.empty_with_swapped_memory([0, 2]).device.type == "npu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.bool])
def test_uninitialized_memory_is_filled_where_asked(dtype):
    with DeterministicGuard(True, fill_uninitialized_memory=True):
        made = [
            torch.empty(10, 9, device="npu", dtype=dtype),
            torch.empty_strided((10, 9), (1, 10), device="npu", dtype=dtype),
            torch.zeros(3, device="npu", dtype=dtype).resize_(7)[3:],
            torch_npu.empty_with_swapped_memory([5], dtype=dtype),
        ]
    for tensor in made:
        if dtype.is_floating_point or dtype.is_complex:
            assert bool(tensor.isnan().all())
        else:
            assert bool((tensor == (True if dtype == torch.bool else torch.iinfo(dtype).max)).all())
