"""Devices: selection, properties, guards, threads, fork, errors."""

import threading

import numpy as np
import pytest
import torch

import torch_npu


def test_current_device_and_set_device():
    torch.npu.set_device(0)
    for same in (0, "npu:0", "npu", torch.device("npu:0"), torch.device("npu"), None, -1):
        torch.npu.set_device(same)
        assert torch.npu.current_device() == 0


@pytest.mark.parametrize("wrong", ["cpu", "cuda:0", torch.device("cpu"), 1.5])
def test_set_device_refuses_other_devices(wrong):
    with pytest.raises((ValueError, RuntimeError), match=r"Expected|expected"):
        torch.npu.set_device(wrong)


def test_wrong_index_says_what_there_is():
    count = torch.npu.device_count()
    with pytest.raises(RuntimeError, match=rf"invalid device index: {count + 6}, this process sees {count} npu device"):
        torch.npu.set_device(count + 6)
    with pytest.raises(RuntimeError, match="invalid device index"):
        torch.empty(2, device=f"npu:{count}")
    with pytest.raises(AssertionError, match=f"Invalid device id: {count}, this process sees {count} npu"):
        torch.npu.get_device_properties(count)
    with pytest.raises(AssertionError, match="Invalid device id: -1"):
        torch.npu.get_device_name(-1)


def test_properties():
    p = torch.npu.get_device_properties(0)
    assert p.name == torch.npu.get_device_name() == torch_npu.cann_info()["soc"]
    assert p.total_memory == torch.npu.mem_get_info()[1] > 0
    assert p.cube_core_num > 0
    assert p.vector_core_num > 0
    assert p.L2_cache_size > 0
    assert p.multi_processor_count == p.vector_core_num
    assert len(str(p.uuid)) == 36
    assert len(p.uuid.bytes) == 16
    assert p.major is None
    assert p.minor is None
    assert p.warp_size is None
    assert p.gcnArchName is None
    assert f"name='{p.name}'" in repr(p)
    assert torch.npu.get_device_properties("npu:0").name == p.name


def test_mem_get_info():
    free, total = torch.npu.mem_get_info(0)
    assert 0 <= free <= total


def test_utilization():
    assert 0 <= torch.npu.utilization() <= 100


def test_device_capability_is_what_the_user_says(monkeypatch):
    monkeypatch.delenv("TORCH_NPU_DEVICE_CAPABILITY", raising=False)
    assert torch.npu.get_device_capability() is None
    monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", "9.0")
    assert torch.npu.get_device_capability(0) == (9, 0)
    monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", "8.a")
    with pytest.warns(UserWarning, match="'8.a' is ignored"):
        assert torch.npu.get_device_capability() is None


def test_peer_access():
    assert torch.npu.can_device_access_peer(0, 0) is False
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.npu.can_device_access_peer(-1, 0)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        torch.npu.can_device_access_peer(0, -1)


def test_device_contexts():
    with torch.npu.device(0), torch.npu.device("npu:0"), torch.npu.device(None), torch.npu.device(-1):
        assert torch.npu.current_device() == 0
    with torch.npu.device_of(torch.ones(2)), torch.npu.device_of(torch.empty(2, device="npu")):
        assert torch.npu.current_device() == 0
    with pytest.raises(RuntimeError, match="invalid device index"), torch.npu.device(99):
        pass


def test_several_devices(run_python):
    run_python(
        """
        import threading
        import torch

        assert torch.npu.device_count() == torch.accelerator.device_count() == 4
        torch.npu.set_device(2)
        assert torch.npu.current_device() == torch.accelerator.current_device_index() == 2
        assert torch.empty(1, device="npu").device.index == 2
        assert torch.empty(1, device="npu:3").device.index == 3
        assert torch.npu.current_device() == 2
        with torch.npu.device(1):
            assert torch.npu.current_device() == 1
            with torch.npu.device("npu:3"):
                assert torch.npu.current_device() == 3
            assert torch.npu.current_stream().device_index == 1
        assert torch.npu.current_device() == 2
        with torch.npu.device_of(torch.empty(1, device="npu:1")):
            assert torch.npu.current_device() == 1
        with torch.accelerator.device_index(3):
            assert torch.npu.current_device() == 3
        torch.accelerator.set_device_index(1)
        assert torch.npu.current_device() == 1

        # a thread starts at device 0, whatever others have selected
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.npu.current_device()))
        thread.start(); thread.join()
        assert seen == [0]

        # streams are per device
        s = torch.npu.Stream(3)
        assert s.device_index == 3 and torch.npu.current_device() == 1
        with torch.npu.stream(s):
            assert torch.npu.current_device() == 3 and torch.npu.current_stream() == s
            assert torch.npu.current_stream(1) == torch.npu.default_stream(1)
        assert torch.npu.current_device() == 1
        assert torch.npu.default_stream(0) != torch.npu.default_stream(1)

        assert torch.npu.can_device_access_peer(0, 1)
        assert len(torch.npu.default_generators) == 4
        """,
        CANN_HOST_DEVICES="4",
    )


@pytest.mark.slow
def test_copy_between_devices(run_python):
    run_python(
        """
        import torch
        x = torch.arange(6.0, device="npu:1").view(2, 3)
        y = x.to("npu:0")
        assert y.device.index == 0 and torch.equal(y.cpu(), x.cpu())
        assert torch.equal((y + 1).to("npu:1"), x + 1)
        try:
            x + y
        except RuntimeError as error:
            assert "Expected all tensors to be on the same device" in str(error)
        else:
            raise AssertionError("should raise")
        """,
        CANN_HOST_DEVICES="2",
    )


@pytest.mark.parametrize("device", ["npu", "npu:0", torch.device("npu:0"), torch.device("npu"), 0])
def test_device_arguments(device):
    x = torch.randn(2, 3)
    for made in (x.to(device), torch.zeros(2, 3, device=device), torch.arange(5, device=device), x.npu(device)):
        assert made.device == torch.device("npu:0")


def test_methods_of_tensors_storages_and_modules():
    x = torch.randn(2, 3)
    assert not x.is_npu
    assert x.npu().is_npu
    assert not x.npu().cpu().is_npu
    assert x.npu().type() == "torch.npu.FloatTensor"
    assert torch.nn.Linear(2, 2).npu().weight.is_npu
    assert x.untyped_storage().npu().device.type == "npu"
    assert x.npu().untyped_storage().is_npu
    assert torch.equal(x.npu(non_blocking=True).cpu(), x)
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.npu().data.is_npu


def test_synchronize_does_not_initialise(run_python):
    run_python("""
        import torch
        torch.npu.synchronize()
        assert not torch.npu.is_initialized()
        torch.npu.init()
        assert torch.npu.is_initialized()
        torch.npu.synchronize("npu:0")
    """)


def test_a_forked_child_cannot_use_the_device(run_python):
    run_python("""
        import os, torch
        x = torch.ones(3, device="npu")
        pid = os.fork()
        if pid == 0:
            text = "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use"
            try:
                assert torch.npu._is_in_bad_fork() and not torch.npu.is_initialized()
                torch.manual_seed(1)
                assert torch.ones(2).sum() == 2
                assert not torch.ones(2).is_pinned()
                uses = [
                    torch.npu.init,
                    lambda: torch.empty(2, device="npu"),
                    lambda: x + 1,
                    lambda: x.add_(1),
                    lambda: x.cpu(),
                    lambda: torch.npu.synchronize(),
                    lambda: torch.npu.Stream(),
                ]
                for number, use in enumerate(uses):
                    try:
                        use()
                    except RuntimeError as error:
                        assert text in str(error), (number, error)
                    else:
                        raise AssertionError(f"use {number} should raise")
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert torch.equal(x.cpu(), torch.ones(3)), "the parent is unharmed"
    """)


def test_a_child_forked_before_the_first_use_may_use_the_device(run_python):
    run_python("""
        import os, torch
        torch.npu.is_available(), torch.npu.get_device_name()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (torch.ones(3, device="npu") + 1).sum().item() == 6 else 1)
        assert os.waitpid(pid, 0)[1] == 0
    """)


def test_dataloader_workers_that_stay_on_the_cpu(run_python):
    run_python("""
        import torch
        x = torch.ones(1, device="npu")
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        assert sum((batch.npu() * x).sum().item() for [batch] in loader) == 28
    """)


def test_threads_use_the_device_at_once():
    failures = []

    def work(value):
        try:
            torch.npu.set_device(0)
            for _ in range(20):
                x = torch.full((64,), float(value), device="npu")
                assert (x + x).sum().item() == 128 * value
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_backward_runs_on_the_device():
    x = torch.ones(3, device="npu", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.device == x.device
    assert torch.equal(x.grad.cpu(), torch.full((3,), 2.0))


def test_accelerator_api():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.device_count() == torch.npu.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.get_device_module("npu") is torch.npu


def test_default_device():
    torch.set_default_device("npu")
    try:
        assert torch.zeros(2).is_npu
        with torch.device("cpu"):
            assert not torch.zeros(2).is_npu
    finally:
        torch.set_default_device(None)


def test_resize_storage_keeps_the_bytes():
    x = torch.arange(4.0, device="npu")
    storage = x.untyped_storage()
    storage.resize_(8 * 4)
    assert storage.nbytes() == 32
    grown = torch.empty(0, device="npu").set_(storage, 0, (8,))
    assert torch.equal(grown[:4].cpu(), torch.arange(4.0))
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_types_by_name():
    x = torch.ones(2, 3, device="npu")
    assert isinstance(x, torch.npu.FloatTensor)
    assert not isinstance(x.cpu(), torch.npu.FloatTensor)
    assert not isinstance(x, torch.npu.HalfTensor)
    assert x.type() == "torch.npu.FloatTensor"
    assert isinstance(x.type(torch.npu.HalfTensor), torch.npu.HalfTensor)
    assert isinstance(x.type("torch.npu.LongTensor"), torch.npu.LongTensor)
    assert torch.npu.IntTensor(2, 3).shape == torch.npu.IntTensor(torch.Size([2, 3])).shape == (2, 3)
    assert torch.npu.ByteTensor([1, 2]).tolist() == [1, 2]
    assert torch.npu.ByteTensor(np.array([[1], [2]])).tolist() == [[1], [2]]
    assert torch.npu.ByteTensor(np.int64(3)).shape == (3,)
    assert torch.npu.FloatTensor().numel() == 0
    assert torch.npu.FloatTensor(x).data_ptr() == x.data_ptr()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storage_types_by_name():
    storage = torch.npu.FloatStorage(4)
    assert storage.device.type == "npu"
    assert storage.dtype == torch.float32
    assert storage.size() == 4
    assert torch.npu.HalfStorage.dtype == torch.float16
    assert torch.ones(2, device="npu").storage().type() == "torch.npu.FloatStorage"


def test_host_memory_can_be_registered():
    x = torch.zeros(4096, dtype=torch.uint8)
    assert not x.is_pinned()
    assert torch.npu.npurt().npuHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    assert x.is_pinned()
    assert torch.npu.npurt().npuHostUnregister(x.data_ptr()) == 0
    assert not x.is_pinned()
    assert torch.npu.npurt().npuHostUnregister(x.data_ptr()) != 0
