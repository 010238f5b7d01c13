"""npu_top_k_top_p_sample against a row by row reference in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import torch_npu

ROWS, CLASSES = 6, 40


def candidates(
    logits: Tensor, k: int, p: float, min_p: float, are_logits: bool, most: int
) -> tuple[list[int], list[float]]:
    """The classes that are left of one row, and their probabilities."""
    order = logits.argsort(descending=True, stable=True).tolist()
    cuts_k, cuts_p = 1 <= k <= min(most, len(order)), p < 1
    if not cuts_k and not cuts_p and min_p < 1:
        order = list(range(len(order)))
    order = order[:k] if cuts_k else order
    shares = logits[order].softmax(0) if are_logits else logits[order]
    kept = list(zip(order, shares.tolist(), strict=True))
    if cuts_p:
        before = [0.0, *itertools.accumulate(share for _, share in kept)]
        kept = [pair for pair, share in zip(kept, before, strict=False) if share < p] if p > 0 else kept[:1]
        if p <= 0 and are_logits:
            kept = [(kept[0][0], 1.0)]
    if min_p >= 1:
        kept = kept[:1]
    elif min_p > 0:
        limit = max(share for _, share in kept) * min_p
        kept = [pair for pair in kept if pair[1] >= limit]
    return [c for c, _ in kept], [share for _, share in kept]


def inputs(are_logits: bool) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    logits = torch.randn(ROWS, CLASSES) * 2
    top_k = torch.tensor([5, 0, 99, 1, 12, 40], dtype=torch.int32)
    top_p = torch.tensor([0.6, 0.8, 1.0, 0.5, 0.0, 0.9])
    return (logits if are_logits else logits.softmax(1)), top_k, top_p


@pytest.mark.parametrize("are_logits", [True, False])
@pytest.mark.parametrize("with_q", [True, False])
@pytest.mark.parametrize("min_p", [None, [0.0, 0.1, 0.2, 0.0, 0.3, 1.0]])
@pytest.mark.parametrize("most", [1024, 8])
def test_what_is_chosen(are_logits, with_q, min_p, most):
    logits, top_k, top_p = inputs(are_logits)
    q = torch.rand(ROWS, CLASSES) + 0.1 if with_q else None
    chosen, visible = torch_npu.npu_top_k_top_p_sample(
        logits.npu(), top_k.npu(), top_p.npu(), None if q is None else q.npu(), is_need_logits=True, ks_max=most,
        min_ps=None if min_p is None else torch.tensor(min_p).npu(), input_is_logits=are_logits,
    )  # fmt: skip
    hidden = -torch.inf if are_logits else 0.0
    for row in range(ROWS):
        classes, shares = candidates(
            logits[row].double(), int(top_k[row]), float(top_p[row]), min_p[row] if min_p else -1.0, are_logits, most
        )
        expected = torch.full((CLASSES,), hidden)
        expected[classes] = logits[row, classes]
        assert torch.equal(visible[row].cpu(), expected)
        scores = [s / (float(q[row, i]) + 1e-8) if q is not None else s for i, s in enumerate(shares)]
        assert chosen[row].item() == classes[scores.index(max(scores))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_lower_precision(dtype):
    logits, top_k, top_p = inputs(True)
    chosen, _ = torch_npu.npu_top_k_top_p_sample(logits.to(dtype).npu(), top_k.npu(), top_p.to(dtype).npu())
    assert torch.equal(chosen.cpu(), logits.to(dtype).argmax(1))


def test_drawing():
    """Each class comes as often as its probability says, none that dropped out."""
    torch.manual_seed(0)
    row = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])
    logits = row.expand(4000, 5).contiguous().npu()
    top_k, top_p = torch.full((4000,), 3, dtype=torch.int32).npu(), torch.ones(4000).npu()
    options = {"post_sample": "multiNomial", "generator": torch.Generator("npu").manual_seed(5)}
    chosen, _ = torch_npu.npu_top_k_top_p_sample(logits, top_k, top_p, **options)
    share = torch.bincount(chosen.cpu(), minlength=5) / 4000
    kept = row[0, [0, 1, 4]].softmax(0)
    torch.testing.assert_close(share, torch.tensor([kept[0], kept[1], 0, 0, kept[2]]), atol=0.03, rtol=0)
    options["generator"].manual_seed(5)
    assert torch.equal(torch_npu.npu_top_k_top_p_sample(logits, top_k, top_p, **options)[0], chosen)


REFUSED = {
    "k": (lambda x, k, p: torch_npu.npu_top_k_top_p_sample(x, k[:2], p), ValueError, r"top_k and top_p must be \[B\]"),
    "q": (lambda x, k, p: torch_npu.npu_top_k_top_p_sample(x, k, p, x[:2]), ValueError, r"q must be \[B, V\]"),
    "most": (lambda x, k, p: torch_npu.npu_top_k_top_p_sample(x, k, p, ks_max=2000), ValueError, "ks_max"),
    "way": (lambda x, k, p: torch_npu.npu_top_k_top_p_sample(x, k, p, post_sample="all"), ValueError, "post_sample"),
    "dtype": (lambda x, k, p: torch_npu.npu_top_k_top_p_sample(x, k.long(), p), TypeError, "top_k"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(*(t.npu() for t in inputs(True)))
