"""Quantization of groups of rows (torch_npu/composed/grouped_quantization.py), group by group."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
ENDS = [3, 3, 70, 135, 137]


def begins(number: int, block: int) -> int:
    return (ENDS[number - 1] if number else 0) // block + number


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("alg", [0, 1])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_microscaled_groups(device, target, alg, kind):
    x = (torch.randn(137, 5) * 10 ** torch.randint(-3, 3, (137, 5))).bfloat16()
    x[80:120] = 0
    ends = torch.tensor(ENDS, dtype=kind, device=device)
    y, powers = torch_npu.npu_grouped_dynamic_mx_quant(x.to(device), ends, dst_type=target, scale_alg=alg)
    assert (y.dtype, powers.shape) == (target, (137 // 64 + 5, 5, 2))
    unused, first = set(range(powers.shape[0])), 0
    for number, end in enumerate(ENDS):
        if end > first:
            part, scale = torch_npu.npu_dynamic_mx_quant(x[first:end], axis=0, dst_type=target, scale_alg=alg)
            assert torch.equal(y[first:end].cpu().float(), part.float())
            row = begins(number, 64)
            assert torch.equal(powers[row : row + scale.shape[0]].cpu(), scale)
            unused -= set(range(row, row + scale.shape[0]))
        first = end
    assert not powers[sorted(unused)].any()


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (4, 3)])
@pytest.mark.parametrize("shape", [(137, 130), (2, 137, 7)])
def test_groups_of_blocks(device, target, rows, columns, shape):
    x = torch.randn(shape).half()
    sizes = {"row_block_size": rows, "col_block_size": columns, "min_scale": 0.5, "dst_type": target}
    ends = torch.tensor(ENDS, dtype=torch.int32, device=device)
    y, scale = torch_npu.npu_grouped_dynamic_block_quant(x.to(device), ends, **sizes)
    assert scale.shape == (*shape[:-2], 137 // rows + 5, -(-shape[-1] // columns))
    first = 0
    for number, end in enumerate(ENDS):
        if end > first:
            part, expected = torch_npu.npu_dynamic_block_quant(x[..., first:end, :], **sizes)
            row = begins(number, rows)
            assert_close(scale[..., row : row + expected.shape[-2], :].cpu(), expected.double())
            assert torch.equal(y[..., first:end, :].cpu().float(), part.float())
        first = end


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("shape", [(2, 2), (70, 33), (2, 40, 65)])
def test_square_blocks(device, target, shape):
    x = (torch.randn(shape) * 10 ** torch.randint(-3, 3, shape)).bfloat16()
    y, rows, columns = torch_npu.npu_dynamic_block_mx_quant(x.to(device), dst_type=target)
    m, n = shape[-2:]
    assert rows.shape == (*shape[:-1], -(-n // 64), 2)
    assert columns.shape == (*shape[:-2], -(-m // 64), n, 2)
    rows = rows.flatten(-2).cpu().int()
    columns = columns.movedim(-1, -2).flatten(-3, -2).cpu().int()
    largest = torch.finfo(target).max
    for i in range(0, m, 32):
        for j in range(0, n, 32):
            block = x[..., i : i + 32, j : j + 32].double()
            power = block.abs().amax((-2, -1)).log2().floor() - {FLOAT8[0]: 8, FLOAT8[1]: 15}[target]
            exponent = power.int() + 127
            assert (rows[..., i : i + 32, j // 32] == exponent[..., None]).all()
            assert (columns[..., i // 32, j : j + 32] == exponent[..., None]).all()
            expected = (block * 2.0 ** -power[..., None, None]).clamp(-largest, largest).float().to(target)
            assert torch.equal(y[..., i : i + 32, j : j + 32].cpu().float(), expected.float())


@DEVICES
@pytest.mark.parametrize("target", FLOAT8, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(137,), (137, 3), (137, 2, 3)])
def test_magnitudes(device, target, dtype, shape):
    x, scale = torch.randn(shape).to(dtype), torch.tensor([0.5, 1.0, 0.25, 2.0, 3e4])
    y, largest = torch_npu.npu_quant_max(x.to(device), scale[:1].to(device), dst_dtype=target)
    assert torch.equal(y.cpu().float(), (x.float() * 0.5).to(target).float())
    assert (largest.dtype, largest.tolist()) == (dtype, [x.abs().max().item()])
    ends = torch.tensor(ENDS, device=device)
    y, largest = torch_npu.npu_quant_max(x.to(device), scale.to(device), dst_dtype=target, group_list=ends)
    first, most = 0, torch.finfo(target).max
    for number, end in enumerate(ENDS):
        part = x[first:end].float()
        expected = (part * scale[number]).clamp(-most, most).to(target)
        assert torch.equal(y[first:end].cpu().float(), expected.float())
        assert largest[number].item() == (part.abs().max().item() if end > first else 0)
        first = end


def test_is_traced_without_values():
    def function(x, ends):
        return torch_npu.npu_grouped_dynamic_mx_quant(x, ends, dst_type=23)

    x, ends = torch.randn(137, 3).npu(), torch.tensor(ENDS).npu()
    graph = torch.npu.NPUGraph()
    function(x, ends)
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        y, powers = function(x, ends)
    ends.copy_(torch.tensor([1, 2, 3, 64, 137]))
    graph.replay()
    expected = function(x, ends)
    assert torch.equal(y.float(), expected[0].float())
    assert torch.equal(powers, expected[1])


X, ENDING = torch.zeros(2, 64), torch.tensor([2])
REFUSED = {
    "four bits": (
        NotImplementedError, "dst_type must be",
        lambda: torch_npu.npu_grouped_dynamic_mx_quant(X, ENDING, dst_type=296),
    ),
    "block": (
        NotImplementedError, "blocksize=64", lambda: torch_npu.npu_grouped_dynamic_mx_quant(X, ENDING, blocksize=64)
    ),
    "ends": (ValueError, "ends of groups", lambda: torch_npu.npu_grouped_dynamic_mx_quant(X, ENDING.float())),
    "counts": (
        NotImplementedError, "group_list_type=1",
        lambda: torch_npu.npu_grouped_dynamic_block_quant(X, ENDING, group_list_type=1),
    ),
    "dims": (ValueError, r"x \[M, N\]", lambda: torch_npu.npu_grouped_dynamic_block_quant(X[0], ENDING)),
    "algorithm": (
        NotImplementedError, "scale_alg=2",
        lambda: torch_npu.npu_dynamic_block_mx_quant(X, dst_type=23, scale_alg=2),
    ),
    "rounding": (
        NotImplementedError, "round_mode", lambda: torch_npu.npu_quant_max(X, torch.ones(1), round_mode="round")
    ),
    "scales": (ValueError, r"scale \[1\]", lambda: torch_npu.npu_quant_max(X, torch.ones(2))),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call()
