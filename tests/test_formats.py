"""Memory formats of CANN's (torch_npu.Format), and streams that let go of memory."""

import pytest
import torch

import torch_npu
from torch_npu import Format


def test_a_tensor_has_the_format_of_its_dimensions_until_it_is_given_one():
    x = torch.randn(2, 3, device="npu")
    assert torch_npu.get_npu_format(x) is Format.ND
    assert torch_npu.get_npu_format(torch.ones(1, 1, 1, 1, device="npu")) is Format.NCHW
    assert torch_npu.get_npu_format(torch.ones(1, 1, 1, 1, 1, device="npu")) is Format.NCDHW
    y = torch_npu.npu_format_cast(x, Format.NHWC)
    assert torch_npu.get_npu_format(y) is Format.NHWC
    assert torch_npu.get_npu_format(x) is Format.ND
    assert torch.equal(x, y)
    torch_npu.npu_format_cast_(x, y)
    assert torch_npu.get_npu_format(x) == torch_npu.get_npu_format(torch_npu.npu_format_cast(x, y)) == 1
    assert str(Format.NHWC) == "NHWC"


def test_memory_forgets_the_format_of_its_last_tensor():
    x = torch_npu.empty_with_format((4, 4), device="npu", dtype=torch.half, acl_format=Format.NCHW)
    assert torch_npu.get_npu_format(x) is Format.NCHW
    pointer = x.data_ptr()
    del x
    y = torch.empty(4, 4, device="npu", dtype=torch.half)
    assert y.data_ptr() == pointer
    assert torch_npu.get_npu_format(y) is Format.ND


def test_gradients_pass_a_cast():
    x = torch.ones(2, 2, device="npu", requires_grad=True)
    torch_npu.npu_format_cast(x, Format.NCHW).mul(3).sum().backward()
    assert x.grad.tolist() == [[3, 3], [3, 3]]


def test_private_formats_but_fractal_nz_stay_plain_and_say_so(capfd):
    x = torch.randn(16, 16, device="npu")
    torch._C._set_warnAlways(True)
    try:
        y = torch_npu.npu_format_cast(x, Format.FRACTAL_Z)
    finally:
        torch._C._set_warnAlways(False)
    # Warnings of operators under torch.ops go to stderr.
    assert "acl_format=4 is a private format that tensors do not have here" in capfd.readouterr().err
    assert torch_npu.get_npu_format(y) is Format.ND
    assert torch.equal(x, y)


def test_what_is_no_format_is_refused():
    with pytest.raises(ValueError, match="acl_format=99 is no format of CANN's"):
        torch_npu.npu_format_cast(torch.ones(1, device="npu"), 99)


@pytest.mark.parametrize("option", ["customize_dtype", "input_dtype"])
def test_other_dtypes_are_refused(option):
    x = torch.ones(1, device="npu")
    for cast in (torch_npu.npu_format_cast, torch_npu.npu_format_cast_):
        for format in (Format.ND, x):
            with pytest.raises(NotImplementedError, match=f"{option} is not supported; leave it out"):
                cast(x, format, **{option: 1})


def test_memory_is_used_again_at_once_after_erase_stream():
    user, other = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(user):
        x = torch.ones(1000, 1000, device="npu")
        pointer = x.data_ptr()
        x.record_stream(other)
        torch_npu.erase_stream(x, other)
        del x
        assert torch.empty(1000, 1000, device="npu").data_ptr() == pointer
