"""Which CANN is used: the order, the reasons, the errors."""

import shutil
from pathlib import Path

import pytest

import torch_npu

pytestmark = pytest.mark.slow  # processes of their own

BUNDLED = Path(torch_npu.__file__).parent.parent / "cann_host"
UNSET = {"ASCEND_HOME_PATH": None, "ASCEND_TOOLKIT_HOME": None, "TORCH_NPU_CANN": None}


def test_info_of_this_process():
    info = torch_npu.cann_info()
    assert info["error"] == ""
    assert info["device_count"] >= 1
    assert info["soc"].startswith("Ascend")
    assert any(name.endswith("libascendcl.so") for name in info["libraries"])
    assert any(name.endswith("libopapi.so") for name in info["libraries"])


def test_bundled_is_the_default(run_python):
    run_python(
        f"""
        import torch, torch_npu
        info = torch_npu.cann_info()
        assert info["root"] == {str(BUNDLED)!r} and info["chosen_by"] == "bundled" and info["is_host"], info
        assert info["refused"] == []
        """,
        **UNSET,
    )


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "TORCH_NPU_CANN"])
def test_a_named_root_comes_before_the_bundled_one(run_python, tmp_path, variable):
    root = tmp_path / "toolkit"
    root.mkdir()
    (root / "lib64").symlink_to(BUNDLED / "lib64")
    run_python(
        f"""
        import torch, torch_npu
        info = torch_npu.cann_info()
        assert info["root"] == {str(root)!r} and info["chosen_by"] == {variable!r}, info
        assert torch.npu.is_available()
        """,
        **{**UNSET, variable: str(root)},
    )


def test_host_ignores_the_toolkit(run_python):
    run_python(
        f"""
        import torch_npu
        info = torch_npu.cann_info()
        assert info["root"] == {str(BUNDLED)!r} and info["chosen_by"] == "TORCH_NPU_CANN", info
        assert info["refused"] == []
        """,
        **{**UNSET, "TORCH_NPU_CANN": "host", "ASCEND_HOME_PATH": "/nonexistent"},
    )


def test_a_toolkit_that_cannot_be_used_is_refused_with_a_reason_and_a_warning(run_python):
    result = run_python(
        """
        import torch, torch_npu
        torch.npu.init()
        info = torch_npu.cann_info()
        assert info["chosen_by"] == "bundled", info
        [refused] = info["refused"]
        assert refused["root"] == "/nonexistent/toolkit (ASCEND_HOME_PATH)", refused
        assert refused["reason"] == "there is no such folder", refused
        """,
        **{**UNSET, "ASCEND_HOME_PATH": "/nonexistent/toolkit"},
    )
    assert "the CANN at /nonexistent/toolkit (ASCEND_HOME_PATH) cannot be used" in result.stderr
    assert result.stderr.count("cannot be used") == 1, "the warning comes once"


def make_root(folder: Path, kind: str) -> Path:
    root = folder / kind
    if kind != "missing":
        root.mkdir()
    if kind == "corrupt":
        (root / "lib64").mkdir()
        (root / "lib64" / "libascendcl.so").write_bytes(b"\x7fELF and then nothing")
    if kind == "incomplete":
        (root / "lib64").mkdir()
        shutil.copy(BUNDLED / "lib64" / "libgraph.so", root / "lib64" / "libascendcl.so")
        shutil.copy(BUNDLED / "lib64" / "libgraph.so", root / "lib64" / "libopapi.so")
    return root


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "there is no such folder"),
        ("empty", "it has no folder lib64"),
        ("corrupt", "libascendcl.so"),
        ("incomplete", "its libraries lack aclInit"),
    ],
)
def test_a_bad_path_is_an_error_at_first_use_not_at_import(run_python, tmp_path, kind, reason):
    root = make_root(tmp_path, kind)
    run_python(
        f"""
        import torch, torch_npu
        assert torch.ones(2).sum() == 2
        torch.manual_seed(0)
        assert torch.npu.is_available() is False and torch.npu.device_count() == 0
        assert torch.accelerator.is_available() is False
        info = torch_npu.cann_info()
        assert info["root"] == "" and {reason!r} in info["error"], info
        for use in (torch.npu.init, lambda: torch.empty(2, device="npu"), lambda: torch.ones(2).to("npu")):
            try:
                use()
            except RuntimeError as error:
                assert {str(root)!r} in str(error) and {reason!r} in str(error), error
                assert "TORCH_NPU_CANN" in str(error), error
            else:
                raise AssertionError("should raise")
        """,
        **{**UNSET, "TORCH_NPU_CANN": str(root)},
    )


def test_soc_and_device_count_come_from_cann(run_python):
    run_python(
        """
        import torch
        assert torch.npu.device_count() == 3
        assert torch.npu.get_device_name(2) == "Ascend910B4" == torch.npu.get_device_properties(2).name
        assert torch.npu.get_soc_version() == 224
        """,
        **UNSET,
        CANN_HOST_DEVICES="3",
        CANN_HOST_SOC="Ascend910B4",
    )


def test_bf16_support_follows_the_soc(run_python):
    run_python(
        """
        import torch
        assert not torch.npu.is_bf16_supported()
        assert torch.npu.get_amp_supported_dtype() == [torch.float16, torch.float32]
        """,
        **UNSET,
        CANN_HOST_SOC="Ascend910ProB",
    )


def test_errors_of_cann_are_explained():
    import torch

    stream = torch.npu.Stream()
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    end.record(stream)
    start.record(stream)
    stream.synchronize()
    assert end.elapsed_time(start) >= 0
    with pytest.raises(torch.AcceleratorError, match="aclrtEventElapsedTime failed") as caught:
        start.elapsed_time(end)
    assert "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, 107007" in str(caught.value)
    assert "Swap the events" in str(caught.value)
    assert caught.value.error_code == 107007
