"""Attention over parts of the keys, put together (torch_npu/composed/merging.py)."""

import pytest
import torch

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def parts(queries: int, counts: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Outputs, maxima and sums of attention of each part, and those of all keys behind them, in float64."""
    scores, values = torch.randn(queries, sum(counts)).double() * 3, torch.randn(sum(counts), 16).double()
    pairs = [*zip(scores.split(counts, 1), values.split(counts), strict=True), (scores, values)]
    outputs = [s.softmax(1) @ v for s, v in pairs]
    maxima = [s.amax(1) if s.numel() else s.new_full((queries,), -torch.inf) for s, _ in pairs]
    sums = [(s - m[:, None]).exp().sum(1) for (s, _), m in zip(pairs, maxima, strict=True)]
    return outputs, maxima, sums


@DEVICES
@FLOATS
@pytest.mark.parametrize("counts", [[5], [3, 1, 7], [4, 0, 2]])
def test_logarithms(device, dtype, counts):
    outputs, maxima, sums = parts(6, counts)
    logs = [m + s.log() for m, s in zip(maxima, sums, strict=True)]
    lse = [t.float().to(device) for t in logs[:-1]]
    out = [t.to(dtype).to(device) for t in outputs[:-1]]
    actual, nothing = torch_npu.npu_attention_update(lse, out, 0)
    assert nothing is None
    again, total = torch_npu.npu_attention_update(lse, out, 1)
    assert torch.equal(again, actual)
    assert actual.dtype == dtype
    assert_close(actual, outputs[-1], atol=torch.finfo(dtype).eps * 8)
    assert_close(total, logs[-1], rtol=1e-5)


@DEVICES
@FLOATS
@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_rings(device, dtype, layout):
    outputs, maxima, sums = parts(3 * 2 * 4, [5, 9])  # S, B, N or T, N
    if layout == "SBH":
        outputs = [t.view(3, 2, 64) for t in outputs]
        statistics = [[t.view(3, 2, 4).permute(1, 2, 0) for t in ts] for ts in (maxima, sums)]
    else:
        outputs = [t.view(6, 4, 16) for t in outputs]
        statistics = [[t.view(6, 4) for t in ts] for ts in (maxima, sums)]
    spread = [[t.unsqueeze(-1).expand(*t.shape, 8) for t in ts] for ts in statistics]
    given = [(outputs[i].to(dtype), spread[0][i].float(), spread[1][i].float()) for i in range(2)]
    lengths = torch.tensor([2, 6], device=device) if layout == "TND" else None
    actual = torch_npu.npu_ring_attention_update(
        *(t.to(device) for part in given for t in part), actual_seq_qlen=lengths, input_layout=layout
    )
    assert actual[0].dtype == dtype
    assert_close(actual[0], outputs[2], atol=torch.finfo(dtype).eps * 8)
    for a, e in zip(actual[1:], (spread[0][2], spread[1][2]), strict=True):
        assert a.shape == e.shape
        assert_close(a, e, rtol=1e-5)


X, S = torch.zeros(2, 16), torch.zeros(2)
REFUSED = {
    "type": (lambda: torch_npu.npu_attention_update([S], [X], 2), "update_type 0 or 1, got 2"),
    "lists": (lambda: torch_npu.npu_attention_update([S], [X, X], 0), "as many lse"),
    "shapes": (lambda: torch_npu.npu_attention_update([S, S[:1]], [X, X], 0), "as many lse"),
    "layout": (
        lambda: torch_npu.npu_ring_attention_update(X, X, X, X, X, X, input_layout="BSND"), "layout SBH or TND"
    ),
    "lengths": (lambda: torch_npu.npu_ring_attention_update(X, X, X, X, X, X, input_layout="TND"), "actual_seq_qlen"),
    "output": (lambda: torch_npu.npu_ring_attention_update(X, X, X, X, X, X), "3 dimensions"),
    "statistics": (lambda: torch_npu.npu_ring_attention_update(X[None], X, X, X[None], X, X), "the last one 8"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
