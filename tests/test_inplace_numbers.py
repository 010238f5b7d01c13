"""In-place operators on tensors as small as the number that they work with."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1)])
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "eq_", "pow_", "clamp_min_", "fmod_"])
def test_in_place_with_a_number(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    host = torch.full(shape, 5, dtype=dtype)
    device = host.npu()
    for _ in range(2):
        getattr(host, name)(3)
        getattr(device, name)(3)
    torch.testing.assert_close(device.cpu(), host)


@pytest.mark.parametrize("name", ["_foreach_add_", "_foreach_mul_"])
def test_lists_of_single_numbers(name: str) -> None:
    host = [torch.tensor(5.0), torch.tensor([7.0])]
    device = [t.npu() for t in host]
    getattr(torch, name)(host, 3)
    getattr(torch, name)(device, 3)
    torch.testing.assert_close([t.cpu() for t in device], host)


def test_result_written_over_an_operand() -> None:
    device = torch.arange(3.0).npu()
    torch.add(device, 2, out=device)
    torch.sub(torch.ones(3).npu(), device, out=device)
    assert device.tolist() == [-1.0, -2.0, -3.0]
