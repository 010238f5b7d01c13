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


def test_a_tensor_takes_part_of_the_memory_of_another():
    source = torch.arange(12.0, device="npu")
    tensor = torch.zeros(2, 3, device="npu")
    torch_npu.npu_change_data_ptr(tensor, source, 4)
    assert tensor.tolist() == [[4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    assert tensor.untyped_storage().nbytes() == 24
    source.mul_(2)
    tensor.add_(1)
    tensor.record_stream(torch.npu.Stream())
    assert source.tolist() == [0, 2, 4, 6, 9, 11, 13, 15, 17, 19, 20, 22]
    del source
    torch.npu.empty_cache()
    assert tensor.sum().item() == 84, "the part keeps the memory"


def test_a_storage_that_was_made_smaller_stays_so():
    source = torch.zeros(12, device="npu")
    tensor = torch.ones(4, 4, device="npu")
    tensor.untyped_storage().resize_(16)
    torch_npu.npu_change_data_ptr(tensor, source, 8)
    assert torch_npu.get_storage_size(tensor) == 4
    assert torch_npu.get_storage_size(source) == 12
    assert tensor.shape == (4, 4)


def test_weak_references_share_memory_and_layout():
    from torch_npu import _C

    base = torch.arange(24.0, device="npu").reshape(4, 6)
    view = base[1:, ::2]
    weak = _C._weak_ref_tensor(view)
    assert (weak.shape, weak.stride(), weak.storage_offset()) == (view.shape, view.stride(), view.storage_offset())
    assert weak.untyped_storage().nbytes() == base.untyped_storage().nbytes()
    weak.zero_()
    assert view.count_nonzero().item() == 0
    assert base.count_nonzero().item() == 24 - view.numel() - 1


def test_the_device_interface_of_dynamo():
    from torch._dynamo.device_interface import get_interface_for_device

    from torch_npu.utils._dynamo import NPUInterface, _dynamo_register_interface_for_device

    _dynamo_register_interface_for_device()
    interface = get_interface_for_device("npu:0")
    assert interface is NPUInterface
    assert interface.current_device() == interface.Worker.current_device() == 0
    stream = interface.Stream()
    with interface.stream(stream):
        assert interface.get_raw_stream(0) == stream.npu_stream == interface.current_stream().npu_stream
    assert interface.get_device_properties(0).name == interface.get_compute_capability() == torch.npu.get_device_name()
    assert interface.is_dtype_supported(torch.bfloat16) == torch.npu.is_bf16_supported()


def test_overflow_is_in_the_numbers_and_not_in_a_flag():
    assert torch.npu.utils.npu_check_overflow(torch.tensor([1.0, float("inf")], device="npu"))
    assert not torch.npu.utils.npu_check_overflow(3.0)
    with pytest.warns(UserWarning, match="no effect"):
        torch.npu.utils.clear_npu_overflow_flag()
    with pytest.raises(RuntimeError, match=r"npu_check_overflow\(tensor\)"):
        torch.npu.utils.get_npu_overflow_flag()
