"""Environment variables that torch_npu reads when it is imported."""

import json

import pytest

USE = "import torch; torch.npu.set_device(0); print(torch.ones(2, device='npu').sum().item())"


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "is invalid: there is no such file"),
        ("", "Failed to parse user acl json"),
        ("not json{{{", "Failed to parse user acl json"),
        ("[]", "lacks 'defaultDevice'"),
        ('{"dump": {}}', "lacks 'defaultDevice'"),
        ('{"defaultDevice": "0"}', "lacks 'defaultDevice'"),
        ('{"defaultDevice": {"default_device": "1"}}', "to be \"0\", but it is '1'"),
    ],
)
def test_a_bad_file_for_acl_init_is_refused_when_a_device_is_named(run_python, tmp_path, contents, message):
    path = tmp_path / "acl.json"
    if contents is not None:
        path.write_text(contents)
    code = f"""
import torch
for use in (lambda: torch.npu.set_device(0), lambda: torch.ones(1, device="npu"), torch.npu.init):
    try:
        use()
    except RuntimeError as error:
        assert {message!r} in str(error) and "TORCH_ACL_INIT_CONFIG_PATH" in str(error), error
    else:
        raise AssertionError("no error")
"""
    run_python(code, TORCH_ACL_INIT_CONFIG_PATH=str(path))


def test_a_good_file_for_acl_init_is_taken(run_python, tmp_path):
    path = tmp_path / "acl.json"
    path.write_text(json.dumps({"dump": {"dump_scene": "lite_exception"}, "defaultDevice": {"default_device": "0"}}))
    assert run_python(USE, TORCH_ACL_INIT_CONFIG_PATH=str(path)).stdout.strip() == "2.0"


def test_the_mode_of_legacy_operators(run_python):
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
print([str(w.message) for w in caught if "ACL_OP_INIT_MODE" in str(w.message)])
"""
    assert "not in [0, 1, 2], but '999'" in run_python(code, ACL_OP_INIT_MODE="999").stdout
    assert run_python(code, ACL_OP_INIT_MODE="1").stdout.strip() == "[]"


def test_fallbacks_can_be_forbidden(run_python):
    code = """
import torch, torch_npu
assert torch_npu.fallback_policy() == "error"
try:
    torch.special.bessel_j0(torch.ones(4, device="npu"))
except NotImplementedError as error:
    print(error)
"""
    message = run_python(code, TORCH_NPU_FALLBACK_CPU_DISABLE="1").stdout
    assert "aten::special_bessel_j0" in message
    assert "TORCH_NPU_FALLBACK_CPU_DISABLE=1 forbids" in message


@pytest.mark.parametrize(("visible", "count"), [("0,2", 2), ("1", 1), ("", 0)])
def test_the_visible_devices_may_change_until_one_is_used(run_python, visible, count):
    code = f"""
import os, torch
assert torch.npu.device_count() == 4
os.environ["ASCEND_RT_VISIBLE_DEVICES"] = {visible!r}
assert torch.npu.device_count() == {count}, torch.npu.device_count()
if {count}:
    torch.ones(1, device="npu")
    os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "3"
    assert torch.npu.device_count() == {count}
"""
    run_python(code, CANN_HOST_DEVICES="4")
