"""npu_moe_init_routing_v2: the order of rows, rows in int8, no rows at all."""

from __future__ import annotations

import pytest
import torch

import torch_npu

RANGE = [2, 5]


def choices() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.stack([torch.randperm(7)[:3] for _ in range(9)]).int()


def sorted_copies(experts: torch.Tensor) -> torch.Tensor:
    """Copies by expert; those of experts before the range behind all others."""
    flat = experts.flatten()
    return flat.masked_fill(flat < RANGE[0], 100).argsort(stable=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.bfloat16], ids=str)
def test_which_row_came(dtype: torch.dtype) -> None:
    experts = choices()
    x = torch.randint(-100, 100, (9, 5)).to(dtype)
    expanded, row_idx, counts, scales = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), scale=torch.arange(9.0).npu(), active_num=27, expert_num=7, expert_tokens_num_type=1,
        expert_tokens_num_flag=True, active_expert_range=RANGE, row_idx_type=1,
    )  # fmt: skip
    order = sorted_copies(experts)
    active = int(((experts >= RANGE[0]) & (experts < RANGE[1])).sum())
    assert row_idx.tolist() == order.tolist()
    assert counts.tolist() == [int((experts == e).sum()) for e in range(*RANGE)]
    assert expanded.dtype == dtype
    assert torch.equal(expanded.cpu()[:active], x[order[:active] // 3])
    assert scales.cpu()[:active].tolist() == (order[:active] // 3).tolist()


@pytest.mark.parametrize("quant_mode", [-1, 1])
def test_no_rows(quant_mode: int) -> None:
    x, experts = torch.empty(0, 8, dtype=torch.bfloat16), torch.empty(0, 3, dtype=torch.int32)
    expanded, row_idx, counts, scales = torch_npu.npu_moe_init_routing_v2(
        x.npu(), experts.npu(), scale=torch.empty(0).npu(), active_num=0, expert_num=7, expert_tokens_num_type=1,
        expert_tokens_num_flag=True, active_expert_range=RANGE, row_idx_type=1, quant_mode=quant_mode,
    )  # fmt: skip
    assert (expanded.shape, row_idx.shape, scales.shape) == ((0, 8), (0,), (0,))
    assert counts.tolist() == [0, 0, 0]


def test_int8_is_not_quantized_again() -> None:
    x = torch.zeros(9, 5, dtype=torch.int8).npu()
    with pytest.raises(ValueError, match="int8 already"):
        torch_npu.npu_moe_init_routing_v2(x, choices().npu(), expert_num=7, quant_mode=1)
