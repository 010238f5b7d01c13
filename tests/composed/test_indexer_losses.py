"""The loss of the lightning indexer (torch_npu/composed/indexer_losses.py), by autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
HEADS, GROUPS, INDEX_HEADS, WIDTH, ROPE, SCALE = 4, 2, 3, 6, 2, 0.4
QUERIES, KEYS = [3, 4], [5, 4]


def sample(queries: int, keys: int, dtype: torch.dtype) -> dict[str, Tensor]:
    shapes = {
        "query": (queries, HEADS, WIDTH), "key": (keys, GROUPS, WIDTH), "query_index": (queries, INDEX_HEADS, WIDTH),
        "key_index": (keys, 1, WIDTH), "weights": (queries, INDEX_HEADS), "query_rope": (queries, HEADS, ROPE),
        "key_rope": (keys, GROUPS, ROPE),
    }  # fmt: skip
    return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}


def causal(queries: int, keys: int) -> Tensor:
    return torch.ones(queries, keys).tril(keys - queries).bool()


def statistics(scores: Tensor) -> tuple[Tensor, Tensor]:
    largest = scores.amax(-1)
    return largest, (scores - largest.unsqueeze(-1)).exp().sum(-1)


def attention(data: dict[str, Tensor], seen: Tensor, rope: bool) -> Tensor:
    """Scores [heads, queries, keys]."""
    q, k = data["query"].double(), data["key"].double()
    if rope:
        q, k = torch.cat((q, data["query_rope"].double()), -1), torch.cat((k, data["key_rope"].double()), -1)
    k = k.repeat_interleave(HEADS // GROUPS, 1)
    return (torch.einsum("snd,tnd->nst", q, k) * SCALE).masked_fill(~seen, -torch.inf)


def indexed(q: Tensor, k: Tensor, w: Tensor, seen: Tensor) -> Tensor:
    scores = (torch.einsum("snd,td->snt", q, k.squeeze(1)).relu() * w.unsqueeze(-1)).sum(1)
    return scores.masked_fill(~seen, -torch.inf)


def arranged(parts: list[Tensor], layout: str, dim: int = 0) -> Tensor:
    return torch.stack(parts) if layout == "BSND" else torch.cat(parts, dim)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_loss_and_gradients(device, dtype, layout, rope, sparse):
    lengths = list(zip(QUERIES, KEYS, strict=True)) if layout == "TND" else [(3, 5)] * 2
    data = [sample(*n, dtype) for n in lengths]
    chosen = [torch.tensor([[0, 2, -1], [1, -1, -1], [2, 0, 3], [1, 3, 0]])[: n[0]] for n in lengths]
    maxima, sums, own, grads, loss = [], [], [], [], 0.0
    for part, places in zip(data, chosen, strict=True):
        seen = causal(part["query"].shape[0], part["key"].shape[0])
        if sparse:
            among = torch.zeros(seen.shape[0], seen.shape[1] + 1).bool()
            seen = seen & among.scatter(1, places.where(places >= 0, seen.shape[1]), True)[:, :-1]
        scores = attention(part, seen, rope)
        largest, total = statistics(scores)
        maxima.append(largest.view(GROUPS, -1, seen.shape[0]).transpose(1, 2))
        sums.append(total.view(GROUPS, -1, seen.shape[0]).transpose(1, 2))
        leaves = [part[name].double().requires_grad_() for name in ("query_index", "key_index", "weights")]
        mine = indexed(*leaves, seen)
        own.append(statistics(mine.detach()))
        target, shares = scores.softmax(-1).mean(0), mine.softmax(-1)
        one = (target * (target.clamp_min(1e-8).log() - shares.clamp_min(1e-8).log())).sum()
        grads.append(torch.autograd.grad(one, leaves))
        loss += one.item()
    joined = {name: arranged([part[name] for part in data], layout).to(device) for name in data[0]}
    kept = [arranged(t, layout, 1).float().contiguous().to(device) for t in (maxima, sums)]
    options: dict = {name: joined.pop(name) for name in ("query_rope", "key_rope")} if rope else {}
    if layout == "TND":
        ends = [[3, 7], [5, 9]]
        options |= {"actual_seq_qlen": ends[0], "actual_seq_klen": ends[1], "layout": "TND"}
    inputs = [joined[name] for name in ("query", "key", "query_index", "key_index", "weights")]
    if sparse:
        places = arranged([c.unsqueeze(1) for c in chosen], layout).int().to(device)
        found = torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(*inputs, places, *kept, SCALE, **options)
    else:
        lengths_only = {name: value for name, value in options.items() if "rope" not in name}
        lse = torch_npu.npu_dense_lightning_indexer_softmax_lse(*inputs[2:], **lengths_only)
        for actual, index in zip(lse, (0, 1), strict=True):
            expected = arranged([o[index].unsqueeze(0) for o in own], layout, 1)
            assert_close(actual, expected, terms=32, atol=1e-5)
        found = torch_npu.npu_dense_lightning_indexer_grad_kl_loss(*inputs, *kept, *lse, SCALE, **options)
    assert found[3].shape == (1,)
    assert_close(found[3], torch.tensor([loss], dtype=torch.float64), terms=256, atol=1e-5)
    for number, actual in enumerate(found[:3]):
        assert actual.dtype == dtype
        assert_close(actual, arranged([g[number] for g in grads], layout), terms=64, atol=1e-5)


Q, K, W = torch.zeros(2, 3, INDEX_HEADS, WIDTH), torch.zeros(2, 5, 1, WIDTH), torch.zeros(2, 3, INDEX_HEADS)
REFUSED = {
    "layout": ("layout BSND", lambda f: f(Q, K, W, layout="SBND")),
    "mode": ("sparse_mode 3", lambda f: f(Q, K, W, sparse_mode=0)),
    "heads": ("one head", lambda f: f(Q, Q, W)),
    "ends": ("actual_seq_qlen", lambda f: f(Q[0], K[0], W[0], layout="TND")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    message, call = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(torch_npu.npu_dense_lightning_indexer_softmax_lse)


def test_refusals_of_losses():
    largest = torch.zeros(2, INDEX_HEADS, 3, 1)
    given = (Q, Q.new_zeros(2, 5, INDEX_HEADS, WIDTH), Q, K, W)
    places = torch.zeros(2, 3, 1, 2).int()
    with pytest.raises(NotImplementedError, match="sinks"):
        torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(*given, places, largest, largest, 1.0, sinks=torch.ones(3))
    with pytest.raises(ValueError, match="sparse_indices"):
        torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(*given, places[0], largest, largest, 1.0)
    with pytest.raises(ValueError, match="softmax_max"):
        torch_npu.npu_sparse_lightning_indexer_grad_kl_loss(*given, places, largest[0], largest, 1.0)
