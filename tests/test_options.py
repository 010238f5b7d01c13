"""Options, limits and versions of CANN (torch.npu.options, limits, utils)."""

import pytest
import torch


def test_options_reach_cann():
    torch.npu.set_option({"ACL_OP_DEBUG_LEVEL": 2})
    assert torch.npu.is_jit_compile_false()
    torch.npu.set_compile_mode(jit_compile=True)
    try:
        assert not torch.npu.is_jit_compile_false()
    finally:
        torch.npu.set_compile_mode(jit_compile=False)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"ACL_OP_DEBUG_LEVEL": "300"}, "should be in"),
        ({"ACL_AICORE_NUM": "many"}, "but got 'many'"),
        ({"ACL_COLOUR": "red"}, "unknown option 'ACL_COLOUR'; known are"),
    ],
)
def test_what_is_no_option_is_refused(option, message):
    with pytest.raises(ValueError, match=message):
        torch.npu.set_option(option)


def test_options_are_a_dict():
    with pytest.raises(TypeError, match="expected a dict, got str"):
        torch.npu.set_option("ACL_OP_DEBUG_LEVEL")


def test_tuning_of_legacy_graphs_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="leave the call out"):
        torch.npu.set_aoe(str(tmp_path))


def test_float32_is_multiplied_as_float32_unless_asked():
    assert not torch.npu.matmul.allow_hf32
    assert not torch.npu.conv.allow_hf32
    with torch.npu.aclnn.flags(allow_hf32=True):
        assert torch.npu.matmul.cube_math_type == torch.npu.CubeMathType.USE_HF32
        assert torch.npu.conv.allow_hf32
        assert torch.equal(
            (torch.ones(2, 3, device="npu") @ torch.ones(3, 2, device="npu")).cpu(), torch.full((2, 2), 3.0)
        )
    assert not torch.npu.aclnn.allow_hf32
    with pytest.raises(TypeError, match="must be a bool"):
        torch.npu.matmul.allow_hf32 = 1


def test_limits_of_cores():
    whole = torch.npu.get_device_limit(0)
    assert min(whole.values()) > 0
    stream = torch.npu.Stream()
    torch.npu.set_stream_limit(stream, cube_num=2)
    assert torch.npu.get_stream_limit(stream)["cube_core_num"] == 2
    torch.npu.reset_stream_limit(stream)
    assert torch.npu.get_stream_limit(stream) == whole
    with pytest.raises(TypeError, match="device must be an int"):
        torch.npu.get_device_limit("npu:0")
    with pytest.raises(AssertionError, match="Invalid device id: 99"):
        torch.npu.set_device_limit(99, cube_num=1)


def test_time_limit_of_operators():
    torch.npu.set_op_timeout_ms(1_000_000)
    for timeout in (-1, 1 << 32):
        with pytest.raises(ValueError, match="unsigned int"):
            torch.npu.set_op_timeout_ms(timeout)


def test_versions():
    from torch_npu.npu import utils

    assert utils.get_cann_version().count(".") == 2
    assert utils._is_gte_cann_version("8.3.RC1")
    assert not utils._is_gte_cann_version("99.0.0")
    assert utils._version_key("8.3.RC1") < utils._version_key("8.3.0") < utils._version_key("8.3.1")
    with pytest.raises(ValueError, match="expected one of CANN"):
        utils.get_cann_version("TENSORFLOW")


def test_overflow():
    from torch_npu.npu.utils import npu_check_overflow

    half = torch.full((3,), 65504.0, device="npu", dtype=torch.half)
    assert not npu_check_overflow(half)
    assert npu_check_overflow(half + half)
    assert npu_check_overflow(float("nan"))


@pytest.fixture
def sync_debug():
    yield torch.npu.set_sync_debug_mode
    torch.npu.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("what", "action"),
    [
        (r"tensor.item\(\)", lambda x: x.sum().item()),
        ("a copy to the CPU", lambda x: x.cpu()),
        ("a copy from the CPU", lambda x: x.copy_(torch.ones(4))),
        ("nonzero", lambda x: x.nonzero()),
    ],
)
def test_synchronizations_are_told(sync_debug, what, action):
    x = torch.ones(4, device="npu")
    sync_debug("warn")
    with pytest.warns(UserWarning, match=f"synchronizing npu operation: .*{what}.*test_options.py"):
        action(x)
    sync_debug(2)
    assert torch.npu.get_sync_debug_mode() == 2
    with pytest.raises(RuntimeError, match=what):
        action(x)
    (x + 1).to("npu:0", non_blocking=True)  # waits for nothing
    torch.npu.synchronize()  # says so
    sync_debug("default")
    action(x)


@pytest.mark.parametrize("mode", [-1, 3, "loud"])
def test_unknown_sync_debug_mode(mode):
    with pytest.raises(RuntimeError, match="invalid value of debug_mode, expected one of"):
        torch.npu.set_sync_debug_mode(mode)


def test_compatible_implementations_are_accepted():
    assert torch.npu.are_compatible_impl_enabled() is False
    torch.npu.use_compatible_impl(True)
    try:
        assert torch.npu.are_compatible_impl_enabled() is True
    finally:
        torch.npu.use_compatible_impl(False)
