"""What importing does, and what it must not do."""

import shutil
import sys
from pathlib import Path

import pytest

import torch_npu

PACKAGE = Path(torch_npu.__file__).parent


def test_import_torch_brings_the_device(run_python):
    run_python("""
        import torch
        assert torch.device("npu", 0).type == "npu"
        assert torch.npu.is_available()
        assert torch.accelerator.current_accelerator().type == "npu"
    """)


def test_import_torch_npu_first(run_python):
    run_python("""
        import torch_npu, torch
        assert torch.npu is torch_npu.npu
    """)


def test_without_autoload_an_explicit_import_registers(run_python):
    run_python(
        """
        import torch
        assert not hasattr(torch, "npu")
        import torch_npu
        assert torch.npu is torch_npu.npu
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_import_initialises_nothing_and_looks_for_no_cann(run_python):
    run_python("""
        import torch
        assert not torch.npu.is_initialized()
        torch.manual_seed(1)
        maps = open("/proc/self/maps").read()
        assert "libascendcl" not in maps, "CANN was loaded by the import"
    """)


def test_questions_initialise_nothing(run_python):
    run_python("""
        import torch
        torch.npu.is_available(), torch.npu.device_count(), torch.npu.get_device_name(), torch.npu.get_rng_state()
        torch.npu.is_bf16_supported(), torch.npu.current_stream
        assert not torch.npu.is_initialized()
        torch.npu.current_device()  # as torch.cuda.current_device()
        assert torch.npu.is_initialized()
    """)


def test_first_use_initialises(run_python):
    run_python("""
        import torch
        torch.empty(2, device="npu")
        assert torch.npu.is_initialized()
    """)


@pytest.mark.slow
def test_cpu_backward_initialises_nothing(run_python):
    # Autograd asks every backend for its devices when it starts its threads.
    run_python("""
        import torch
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
        assert not torch.npu.is_initialized()
    """)


def test_submodules_are_the_same_under_both_names():
    import torch.npu.amp
    import torch.npu.random
    import torch.npu.streams

    assert sys.modules["torch.npu"] is torch_npu.npu
    assert sys.modules["torch.npu.amp"] is torch_npu.npu.amp
    assert sys.modules["torch.npu.random"] is torch_npu.npu.random
    assert torch.npu.streams.Stream is torch.npu.Stream


def test_import_does_not_need_much(run_python):
    # What makes imports slow, or imports torch in circles, stays out until it is used.
    run_python(
        """
        import sys, torch
        before = set(sys.modules)
        import torch_npu
        added = {name.split(".")[0] for name in set(sys.modules) - before} - {"torch_npu", "torch"}
        assert not {"numpy", "transformers", "yaml", "jinja2", "rich"} & added, added
        for name in ("torch._inductor", "torch._dynamo", "torch.distributed.fsdp"):
            assert name in before or name not in sys.modules, name
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def copy_package_without_native_library(folder: Path) -> None:
    shutil.copytree(PACKAGE, folder / "torch_npu", ignore=shutil.ignore_patterns("*.so", "csrc", "__pycache__"))
    (folder / "torch_npu" / "_C.so").write_bytes(b"not a library")


def test_a_broken_native_library_does_not_break_torch(run_python, tmp_path):
    copy_package_without_native_library(tmp_path)
    run_python(
        """
        import sys, warnings
        # An editable install puts a finder before the path; this test wants the copy on the path.
        sys.meta_path = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        assert torch.ones(2).sum() == 2 and not hasattr(torch, "npu")
        import torch_npu
        assert torch_npu.__file__.startswith({folder!r}), torch_npu.__file__
        assert any("the native library of torch_npu cannot be loaded" in str(w.message) for w in caught)
        assert "cannot be loaded" in torch_npu.cann_info()["error"]
        try:
            torch_npu.npu
        except ImportError as error:
            assert "cannot be loaded" in str(error)
        else:
            raise AssertionError("torch_npu.npu should raise")
        """.replace("{folder!r}", repr(str(tmp_path))),
        PYTHONPATH=str(tmp_path),
    )


def test_version_matches_the_torch_it_is_for():
    assert torch_npu.__version__.startswith("2.13.")


def test_the_first_operator_may_be_one_that_grows_its_output(run_python):
    # What an operator needs once a process must be there before the first one reads its arguments.
    run_python("""
        import torch
        assert torch.arange(6.0, device="npu").tolist() == [0, 1, 2, 3, 4, 5]
    """)
    run_python("""
        import torch
        x = torch.add(torch.ones(2), 1).npu()
        assert torch.cumsum(x, 0, out=torch.empty(0, device="npu")).tolist() == [2, 4]
    """)
