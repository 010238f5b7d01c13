"""Data loading for npu: worker processes, pinned memory, and what a forked child may do."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.slow  # processes of their own


class Squares(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((3,), float(i)), "y": torch.tensor(i * i)}


class OnDevice(Squares):
    """A mistake that people make: the device is used in a worker."""

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((3,), float(i), device="npu").cpu(), "y": torch.tensor(i * i)}


def epoch(loader: DataLoader, non_blocking: bool = False) -> list[float]:
    sums = []
    for batch in loader:
        x, y = batch["x"].to("npu", non_blocking=non_blocking), batch["y"].to("npu", non_blocking=non_blocking)
        sums.append((x.sum() + y.sum()).item())
    return sums


EXPECTED = [sum(3 * i + i * i for i in range(k, k + 5)) for k in range(0, 20, 5)]


def test_without_workers():
    assert epoch(DataLoader(Squares(), batch_size=5)) == EXPECTED


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers(method):
    torch.ones(1, device="npu")  # the device is in use when the workers start
    loader = DataLoader(Squares(), batch_size=5, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    assert epoch(loader) == EXPECTED
    assert epoch(loader) == EXPECTED


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_memory(workers):
    loader = DataLoader(Squares(), batch_size=5, num_workers=workers, pin_memory=True)
    assert all(batch["x"].is_pinned() for batch in loader)
    assert epoch(loader, non_blocking=True) == EXPECTED


def test_device_in_a_forked_worker_is_refused():
    torch.ones(1, device="npu")
    loader = DataLoader(OnDevice(), batch_size=5, num_workers=1, multiprocessing_context="fork", timeout=60)
    with pytest.raises(RuntimeError, match="Cannot re-initialize NPU in forked subprocess"):
        next(iter(loader))


@pytest.mark.slow
def test_device_in_a_spawned_worker_works():
    loader = DataLoader(OnDevice(), batch_size=5, num_workers=1, multiprocessing_context="spawn", timeout=120)
    assert epoch(loader) == EXPECTED


def test_device_in_a_child_forked_before_first_use(run_python):
    run_python("""
        import os, torch
        pid = os.fork()
        if pid == 0:
            ok = torch.ones(3, device="npu").sum().item() == 3
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert torch.ones(3, device="npu").sum().item() == 3
    """)


def test_child_forked_after_use_gets_an_error_and_can_still_use_the_cpu(run_python):
    result = run_python("""
        import os, torch
        x = torch.ones(3, device="npu")
        pid = os.fork()
        if pid == 0:
            for use in (lambda: torch.ones(1, device="npu"), lambda: x + 1, x.cpu, torch.npu.synchronize):
                try:
                    use()
                except RuntimeError as error:
                    assert "Cannot re-initialize NPU in forked subprocess" in str(error), error
                    assert "'spawn' start method" in str(error), error
                else:
                    os._exit(2)
            assert (torch.ones(3) + 1).sum().item() == 6
            print("child done", flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (x + 1).sum().item() == 6
    """)
    assert "child done" in result.stdout


def test_child_forked_after_use_ends_normally(run_python):
    """Destructors of inherited tensors and atexit handlers must neither hang nor crash."""
    run_python("""
        import os, sys, torch
        x = torch.ones(1000, device="npu")
        y = torch.ones(1000).pin_memory()
        pid = os.fork()
        if pid == 0:
            del x
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """)


@pytest.mark.slow
def test_tensors_from_spawned_processes(run_python, tmp_path):
    script = tmp_path / "exchange.py"
    script.write_text("""
import torch
import torch.multiprocessing as mp

def child(queue, received):
    x = torch.arange(4.0, device="npu") * 2
    queue.put(x.cpu())
    received.wait()  # the sender has to live until the receiver has the memory

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    received = context.Event()
    process = context.Process(target=child, args=(queue, received))
    process.start()
    assert queue.get(timeout=120).npu().tolist() == [0, 2, 4, 6]
    received.set()
    process.join()
    assert process.exitcode == 0
""")
    run_python(
        f"import runpy, sys; sys.argv = [{str(script)!r}]; import subprocess; "
        f"subprocess.run([sys.executable, {str(script)!r}], check=True)"
    )
