"""hifloat8 and float4_e2m1 in bytes (torch_npu/composed/small_floats.py)."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_npu.composed.small_floats import float4, float4_values, hifloat8, hifloat8_values

CODES = torch.arange(256).to(torch.uint8)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
# From the definition of hifloat8: prefix, exponent (its sign, its bits after the first) and mantissa.
KNOWN = {
    0x00: 0.0, 0x01: 2.0**-22, 0x07: 2.0**-16, 0x08: 1.0, 0x0F: 1.875, 0x10: 2.0, 0x18: 0.5, 0x1F: 0.9375, 0x20: 4.0,
    0x28: 8.0, 0x30: 0.25, 0x3F: 0.234375, 0x40: 16.0, 0x5F: 2.0**-7 * 1.75, 0x60: 256.0, 0x6E: 2.0**15, 0x7E: 2.0**-15,
    0x7F: 2.0**-15 * 1.5, 0x6F: float("inf"), 0xEF: float("-inf"), 0x88: -1.0,
}  # fmt: skip


@DEVICES
def test_values_of_hifloat8(device):
    values = hifloat8_values(CODES.to(device)).cpu()
    assert {code: values[code].item() for code in KNOWN} == KNOWN
    assert values[0x80].isnan()
    assert torch.equal(values[1:128], -values[129:])
    assert torch.equal(hifloat8_values(CODES.to(device).view(torch.int8)).cpu()[:128], values[:128])


@DEVICES
def test_numbers_become_the_nearest_hifloat8(device):
    values = hifloat8_values(CODES)
    assert torch.equal(hifloat8(values.to(device)).cpu(), CODES)
    x = torch.cat([torch.randn(4000) * torch.randn(4000).mul(6).exp(), torch.tensor([0.0, -0.0, 40959.0, 40960.0])])
    wide, finite = x.double(), values.double()[values.isfinite()]
    distance = (wide[:, None] - finite).abs().amin(1)
    large = wide.abs() >= 40960
    actual = hifloat8_values(hifloat8(x.to(device)).cpu()).double()
    assert torch.equal((actual - wide).abs()[~large], distance[~large])
    assert torch.equal(actual[large], wide[large].sign() * torch.inf)
    halfway = torch.tensor([1.0625, -1.1875, 2.0**-23])  # away from zero
    assert hifloat8_values(hifloat8(halfway.to(device)).cpu()).tolist() == [1.125, -1.25, 2.0**-22]


@DEVICES
def test_float4_comes_in_pairs(device):
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([numbers, -numbers])
    first, second = torch.arange(16).repeat(2), torch.arange(32) % 13
    packed = (first | second << 4).to(torch.uint8).view(4, 8)
    both = torch.stack([numbers[first], numbers[second]], -1)
    assert torch.equal(float4_values(packed.to(device)).cpu(), both.view(4, 16))
    assert torch.equal(float4_values(packed.to(device), 0).cpu(), both.view(4, 8, 2).transpose(1, 2).reshape(8, 8))
    assert torch.equal(float4_values(packed.T.to(device), -2).cpu(), both.view(4, 16).T)


@DEVICES
@pytest.mark.parametrize("mode", ["rint", "round", "floor"])
def test_numbers_become_float4(device, mode):
    values = float4_values(torch.arange(8).to(torch.uint8) | torch.arange(8).to(torch.uint8) << 4)[::2]
    halfway = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, halfway, torch.randn(64) * 4, torch.tensor([7.0, 100.0, 0.1])])
    x = torch.cat([x, -x])
    actual = float4_values(float4(x.to(device), mode)).cpu()
    table = torch.cat([-values.flip(0), values]).double()
    for number, result in zip(x.double().tolist(), actual.tolist(), strict=True):
        number = max(-6.0, min(6.0, number))
        if mode == "floor":
            assert result == table[table <= number].max().item()
            continue
        distance = (table - number).abs()
        assert abs(result - number) == distance.min().item()
        near = sorted({abs(v) for v in table[distance == distance.min()].tolist()})
        if len(near) == 2:
            even = near[0] if values.tolist().index(near[0]) % 2 == 0 else near[1]
            assert abs(result) == (near[1] if mode == "round" else even)


def test_traces_know_the_results():
    with FakeTensorMode():
        codes = torch.empty(3, 4, dtype=torch.uint8, device="npu")
        assert hifloat8(hifloat8_values(codes)).shape == (3, 4)
        assert float4(float4_values(codes), "rint").shape == (3, 4)
