"""Lightning indexer (torch_npu/composed/indexer.py), query by query in float64."""

from __future__ import annotations

import pytest
import torch
from test_sparse_attention import padded, paged
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

HEADS, WIDTH, COUNT = 3, 8, 4
LENGTHS, KEYS = [3, 1, 2], [9, 3, 6]


def numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    """Small whole numbers, whose scores are exact, so that every order of sums finds the same keys."""
    return torch.randint(-3, 4, shape).to(dtype)


def sample(dtype: torch.dtype) -> dict[str, list[Tensor]]:
    data: dict[str, list[Tensor]] = {"q": [], "k": [], "w": []}
    for queries, keys in zip(LENGTHS, KEYS, strict=True):
        data["q"].append(numbers(dtype, queries, HEADS, WIDTH))
        data["k"].append(numbers(dtype, keys, WIDTH))
        data["w"].append(numbers(torch.float32, queries, HEADS))
    return data


def best(q: Tensor, k: Tensor, w: Tensor, count: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Of one sequence; the first of equal scores is taken."""
    scores = ((q.double() @ k.double().T).relu() * w.double()[..., None]).sum(1)
    indices, values = torch.full((len(q), count), -1), torch.full((len(q), count), -torch.inf, dtype=torch.float64)
    for row, score in enumerate(scores):
        limit = max(0, len(k) - len(q) + row + 1) if causal else len(k)
        found = sorted(range(limit), key=lambda t: (-score[t].item(), t))[:count]
        indices[row, : len(found)] = torch.tensor(found, dtype=torch.int64)
        values[row, : len(found)] = score[found]
    return indices, values


def arranged(data: dict[str, list[Tensor]], layouts: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    layout_query, layout_key = layouts.split()
    tnd = layout_query == "TND"
    tensors = {name: torch.cat(data[name]) if tnd else padded(data[name], 3) for name in ("q", "w")}
    ends = [torch.tensor(n).cumsum(0) if tnd else torch.tensor(n) for n in (LENGTHS, KEYS)]
    options = {}
    if layout_key == "PA_BSND":
        tensors["k"], options["block_table"] = paged(data["k"])
        ends[1] = torch.tensor(KEYS)
    else:
        tensors["k"] = torch.cat(data["k"])[:, None] if tnd else padded(data["k"], 9)[:, :, None]
    options |= {"actual_seq_lengths_query": ends[0].int(), "actual_seq_lengths_key": ends[1].int()}
    return tensors, options


LAYOUTS = pytest.mark.parametrize("layouts", ["BSND BSND", "TND TND", "BSND PA_BSND", "TND PA_BSND"])


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@LAYOUTS
@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("count", [4, 12])
def test_largest_scores(device, dtype, layouts, mode, count):
    data = sample(dtype)
    tensors, options = arranged(data, layouts)
    indices, values = torch_npu.npu_lightning_indexer(
        *(tensors[n].to(device) for n in "qkw"), layout_query=layouts.split()[0], layout_key=layouts.split()[1],
        sparse_count=count, sparse_mode=mode, return_value=True, **{n: t.to(device) for n, t in options.items()},
    )  # fmt: skip
    assert indices.dtype == torch.int32
    assert values.dtype == dtype
    expected = [best(*(data[n][i] for n in "qkw"), count, mode == 3) for i in range(3)]
    rows = [(i, j) for i, n in enumerate(LENGTHS) for j in range(n)]
    for number, (i, j) in enumerate(rows):
        at = (number, 0) if layouts.startswith("TND") else (i, j, 0)
        assert torch.equal(indices[at].cpu().long(), expected[i][0][j])
        assert_close(values[at], expected[i][1][j])


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_quantized(layouts, dtype):
    data = sample(torch.float32)
    tensors, options = arranged(data, layouts)
    scale_q, scale_k = torch.full_like(tensors["w"], 0.5), torch.full(tensors["k"].shape[:-1], 2.0)
    layout_query, layout_key = layouts.split()
    shared = {"layout_query": layout_query, "layout_key": layout_key, "sparse_count": COUNT}
    shared |= {n: t.npu() for n, t in options.items()}
    expected, _ = torch_npu.npu_lightning_indexer(*(tensors[n].npu() for n in "qkw"), **shared)
    q, k = (tensors[n].to(dtype).npu() for n in "qk")
    found = torch_npu.npu_quant_lightning_indexer(
        q, k, tensors["w"].npu(), scale_q.npu(), scale_k.npu(), 0, 0, **shared
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients(layout, dtype):
    shape = (6,) if layout == "TND" else (1, 6)
    q, k = torch.randn(*shape, HEADS, WIDTH).to(dtype), torch.randn(*shape, 1, WIDTH).to(dtype)
    w = torch.randn(*shape, HEADS)
    ends = {n: torch.tensor([6]).int().npu() for n in ("actual_seq_lengths_query", "actual_seq_lengths_key")}
    leaves = [t.npu().requires_grad_() for t in (q, k, w)]
    indices, values = torch_npu.npu_lightning_indexer(
        *leaves, layout_query=layout, layout_key=layout, sparse_count=COUNT, return_value=True, **ends
    )
    dy = torch.randn(values.shape).npu()
    seen = indices >= 0
    (values.float() * dy)[seen].sum().backward()
    explicit = torch_npu.npu_lightning_indexer_grad(
        *(t.detach() for t in leaves[:2]), dy, indices, leaves[2].detach(), *ends.values(), layout
    )
    wide = [t.double().requires_grad_() for t in (q, k, w)]
    flat = [t.view(6, *t.shape[len(shape) :]) for t in wide]
    scores = ((flat[0] @ flat[1].squeeze(1).T).relu() * flat[2][..., None]).sum(1)
    chosen = indices.view(6, COUNT).cpu().long()
    (scores.gather(1, chosen.clamp_min(0)) * dy.view(6, COUNT).cpu() * (chosen >= 0)).sum().backward()
    for leaf, gradient, reference in zip(leaves, explicit, wide, strict=True):
        assert_close(gradient, reference.grad, terms=64, atol=torch.finfo(dtype).eps * 32)
        assert_close(leaf.grad, reference.grad, terms=64, atol=torch.finfo(dtype).eps * 32)


Q, K, W = torch.zeros(2, 3, 2, 8), torch.zeros(2, 5, 1, 8), torch.zeros(2, 3, 2)
REFUSED = {
    "layout": (ValueError, "layout_query", lambda f: f(Q, K, W, layout_key="TND")),
    "heads": (ValueError, "with one head", lambda f: f(Q, Q, W)),
    "weights": (ValueError, "weights", lambda f: f(Q, K, W[0])),
    "table": (ValueError, "actual_seq_lengths", lambda f: f(Q, K, W, layout_key="PA_BSND")),
    "limits": (NotImplementedError, "pre_tokens=3", lambda f: f(Q, K, W, pre_tokens=3)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call(torch_npu.npu_lightning_indexer)


def test_quantized_refusals():
    with pytest.raises(NotImplementedError, match="quant modes"):
        torch_npu.npu_quant_lightning_indexer(Q.char(), K.char(), W, W, K[..., 0], 1, 0)
    with pytest.raises(TypeError, match="int8 or float8"):
        torch_npu.npu_quant_lightning_indexer(Q, K, W, W, K[..., 0], 0, 0)
