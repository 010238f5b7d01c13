"""torch_npu.utils: combined tensors, saving in the background, CPU cores."""

import os
import threading

import pytest
import torch

import torch_npu
from torch_npu import utils


def test_combined_tensors_are_views_with_their_values():
    tensors = [torch.randn(shape, device="npu") for shape in [(2, 3), (4,), ()]]
    values = [t.clone() for t in tensors]
    combined = utils.npu_combine_tensors(tensors)
    assert combined.shape == (11,)
    assert utils.is_combined_tensor_valid(combined, tensors)
    for tensor, value in zip(tensors, values, strict=True):
        assert torch.equal(tensor, value)
    combined.zero_()
    assert all(bool((t == 0).all()) for t in tensors)
    part = utils.get_part_combined_tensor(combined, 6, 4)
    part.fill_(1)
    assert bool((tensors[1] == 1).all())
    assert not bool((tensors[0] == 1).any())


def test_combining_keeps_parameters_trainable():
    linear = torch.nn.Linear(3, 2).npu()
    utils.npu_combine_tensors(list(linear.parameters()))
    linear(torch.ones(1, 3, device="npu")).sum().backward()
    assert linear.weight.grad.shape == (2, 3)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([torch.ones(2)], "got torch.float32 .2. with strides .1. on cpu"),
        ([torch.ones(2, 3, device="npu").t()], "strides .1, 3."),
        ([torch.ones(2, device="npu"), torch.ones(2, device="npu", dtype=torch.half)], "one dtype"),
        ([None], "got None"),
    ],
)
def test_what_cannot_be_combined_is_refused(tensors, message):
    with pytest.raises(RuntimeError, match=message):
        utils.npu_combine_tensors(tensors)


def test_nothing_to_combine():
    assert utils.npu_combine_tensors([]) is None
    assert utils.get_part_combined_tensor(None, 0, 0) is None
    assert utils.is_combined_tensor_valid(None, [])
    assert not utils.is_combined_tensor_valid(None, [torch.ones(1, device="npu")])


def test_change_of_memory_is_checked():
    whole, tensor = torch.zeros(4, device="npu"), torch.ones(3, device="npu")
    with pytest.raises(ValueError, match="3 elements from 2 on do not lie in the 4 of src"):
        torch_npu.npu_change_data_ptr(tensor, whole, 2)
    with pytest.raises(ValueError, match="one dtype and device"):
        torch_npu.npu_change_data_ptr(tensor, whole.half(), 0)
    torch_npu.npu_change_data_ptr(tensor, whole, 1)
    assert tensor.data_ptr() == whole.data_ptr() + 4
    assert torch_npu.get_storage_size(tensor) == 3


def test_saving_takes_the_values_of_the_call(tmp_path):
    model = torch.nn.Linear(4, 4).npu()
    before = {name: value.cpu() for name, value in model.state_dict().items()}
    utils.save_async(model.state_dict(), tmp_path / "state.pt", model=model)
    with torch.no_grad():
        model.weight.zero_()
    for thread in threading.enumerate():
        if thread.name == "torch_npu.save_async":
            thread.join()
    saved = torch.load(tmp_path / "state.pt")
    assert saved["weight"].device.type == "npu"
    assert torch.equal(saved["weight"].cpu(), before["weight"])
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


def test_saving_in_the_old_format_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="leave it at True"):
        utils.save_async({}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)


def test_cores_of_the_thread():
    cores = sorted(os.sched_getaffinity(0))
    try:
        utils.set_thread_affinity([cores[0], cores[0]])
        assert os.sched_getaffinity(0) == {cores[0]}
        utils.set_thread_affinity([[cores[-1], cores[-1]]])
        assert os.sched_getaffinity(0) == {cores[-1]}
    finally:
        utils.reset_thread_affinity()
    assert sorted(os.sched_getaffinity(0)) == cores
    with pytest.raises(ValueError, match=r"expected \[first, last\]"):
        utils.set_thread_affinity([3])
    with pytest.raises(ValueError, match="this process may run on"):
        utils.set_thread_affinity([100_000, 100_001])
