"""Linear attention (torch_npu/composed/linear_attention.py), token by token in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def inputs(tokens: int, dtype: torch.dtype, key_heads: int = 2, heads: int = 4) -> dict[str, Tensor]:
    q, k = (F.normalize(torch.randn(tokens, key_heads, 8), dim=-1).to(dtype) for _ in range(2))
    return {
        "query": q,
        "key": k,
        "value": torch.randn(tokens, heads, 6).to(dtype),
        "beta": torch.rand(tokens, heads).to(dtype),
        "g": -torch.rand(tokens, heads),
    }


def step(state: Tensor, at: int, data: dict[str, Any], scale: float) -> tuple[Tensor, Tensor]:
    """The state behind a token, and its result."""
    heads = data["value"].shape[1]
    q, k = (data[n][at].double().repeat_interleave(heads // data[n].shape[1], 0) for n in ("query", "key"))
    v, beta = data["value"][at].double(), data.get("beta")
    if data.get("g") is not None:
        state = state * data["g"][at].double().exp()[:, None, None]
    if data.get("gk") is not None:
        state = state * data["gk"][at].double().exp()[:, None, :]
    change = v - torch.einsum("hvk,hk->hv", state, k)
    if beta is not None:
        change = change * beta[at].double()[:, None]
    state = state + torch.einsum("hv,hk->hvk", change, k)
    return state, torch.einsum("hvk,hk->hv", state, q * scale)


@DEVICES
@DTYPES
@pytest.mark.parametrize("accepted", [None, [1, 2, 1, 3]])
@pytest.mark.parametrize("plain", [False, True])
def test_step_by_step(device, dtype, accepted, plain):
    lengths = [2, 3, 1, 4]
    data = inputs(10, dtype)
    if plain:
        data = {n: data[n] for n in ("query", "key", "value")}
    else:
        data["gk"] = -torch.rand(10, 4, 8)
    places, state = torch.randperm(12)[:10].int(), torch.randn(12, 4, 6, 8).to(dtype)
    expected, results, begin = state.double().clone(), [], 0
    for i, length in enumerate(lengths):
        current = state[places[begin + (accepted[i] - 1 if accepted else 0)]].double()
        for at in range(begin, begin + length):
            current, result = step(current, at, data, 8**-0.5 if plain else 0.5)
            expected[places[at]] = current
            results.append(result)
        begin += length
    given = {n: t.to(device) for n, t in data.items()}
    options = {
        "scale": None if plain else 0.5,
        "actual_seq_lengths": torch.tensor(lengths, dtype=torch.int32, device=device),
        "ssm_state_indices": places.to(device),
        "num_accepted_tokens": torch.tensor(accepted, dtype=torch.int32, device=device) if accepted else None,
    }
    old = state.to(device, copy=True)
    made, new = torch_npu.npu_recurrent_gated_delta_rule_functional(**given, state=old, **options)
    assert torch.equal(old.cpu(), state)
    written = torch_npu.npu_recurrent_gated_delta_rule(**given, state=old, **options)
    assert torch.equal(written, made)
    assert torch.equal(old, new)
    assert_close(made, torch.stack(results), terms=32)
    assert_close(new, expected, terms=32)


@DEVICES
@DTYPES
@pytest.mark.parametrize("lengths", [None, [1, 70, 0, 64], [130]])
@pytest.mark.parametrize("plain", [False, True])
def test_chunks(device, dtype, lengths, plain):
    tokens = sum(lengths) if lengths else 67
    data = inputs(tokens, dtype)
    start = torch.randn(len(lengths) if lengths else 1, 4, 6, 8).to(dtype)
    if plain:
        data = {n: data[n] / (4 if n == "key" else 1) for n in ("query", "key", "value")}
        start = torch.zeros_like(start)
    results, states, begin = [], [], 0
    for i, length in enumerate(lengths or [tokens]):
        current = start[i].double()
        for at in range(begin, begin + length):
            current, result = step(current, at, data, 1.0 if plain else 0.3)
            results.append(result)
        states.append(current)
        begin += length
    given = {n: t.to(device) for n, t in data.items()}
    out, last = torch_npu.npu_chunk_gated_delta_rule(
        **given,
        initial_state=None if plain else start.to(device),
        actual_seq_lengths=torch.tensor(lengths, dtype=torch.int32, device=device) if lengths else None,
        scale=None if plain else 0.3,
    )
    assert out.dtype == last.dtype == dtype
    assert_close(out, torch.stack(results), terms=64)
    assert_close(last, torch.stack(states), terms=64)


def test_shapes_of_fakes():
    with FakeTensorMode():
        data = {n: t.npu() for n, t in inputs(5, torch.bfloat16).items()}
        lengths = torch.tensor([2, 3], device="npu")
        out, last = torch_npu.npu_chunk_gated_delta_rule(**data, actual_seq_lengths=lengths)
        assert (out.shape, last.shape) == ((5, 4, 6), (2, 4, 6, 8))
        state = torch.zeros(7, 4, 6, 8, device="npu")
        out, new = torch_npu.npu_recurrent_gated_delta_rule_functional(**data, state=state)
        assert (out.shape, new.shape) == ((5, 4, 6), state.shape)
        assert torch_npu.npu_recurrent_gated_delta_rule(**data, state=state).shape == (5, 4, 6)


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("taps", [1, 3])
def test_causal_convolution(device, dtype, masked, taps):
    x, weight = torch.randn(7, 2, 5).to(dtype), torch.randn(taps, 5).to(dtype)
    mask = torch.rand(2, 7) > 0.3 if masked else None
    reference = [t.double().requires_grad_() for t in (x, weight)]
    channels = F.pad(reference[0].permute(1, 2, 0), (taps - 1, 0))
    expected = F.conv1d(channels, reference[1].T.unsqueeze(1), groups=5).permute(2, 0, 1)
    if mask is not None:
        expected = expected * mask.T.unsqueeze(-1)
    given = [t.to(device).requires_grad_() for t in (x, weight)]
    on_device = None if mask is None else mask.to(device)
    actual = torch_npu.npu_masked_causal_conv1d(*given, mask=on_device)
    assert actual.dtype == dtype
    assert_close(actual, expected.detach(), terms=3, atol=torch.finfo(dtype).eps * 4)
    grad = torch.randn(expected.shape).to(dtype)
    expected.backward(grad.double())
    actual.backward(grad.to(device))
    explicit = torch_npu.npu_masked_causal_conv1d_backward(
        grad.to(device), *(t.detach() for t in given), mask=on_device
    )
    for leaf, tensor, result in zip(reference, given, explicit, strict=True):
        for gradient in (tensor.grad, result):
            assert_close(gradient, leaf.grad, terms=14, atol=torch.finfo(dtype).eps * 8)


Q, V, N = torch.zeros(4, 2, 8), torch.zeros(4, 4, 6), torch.tensor([4])
STATE = torch.zeros(5, 4, 6, 8)
REFUSED = {
    "heads": (lambda: torch_npu.npu_chunk_gated_delta_rule(Q, Q, V[:, :3]), "a multiple of Nk"),
    "beta": (lambda: torch_npu.npu_chunk_gated_delta_rule(Q, Q, V, beta=V[0, :, 0]), r"beta \[4, 4\]"),
    "lengths": (lambda: torch_npu.npu_chunk_gated_delta_rule(Q, Q, V, actual_seq_lengths=N - 1), "whose sum is 4"),
    "start": (lambda: torch_npu.npu_chunk_gated_delta_rule(Q, Q, V, initial_state=STATE), "initial_state"),
    "indices": (lambda: torch_npu.npu_recurrent_gated_delta_rule(Q, Q, V, STATE), "actual_seq_lengths and"),
    "state": (
        lambda: torch_npu.npu_recurrent_gated_delta_rule(
            Q, Q, V, STATE[:, :2], actual_seq_lengths=N, ssm_state_indices=torch.arange(4)
        ),
        r"state \[blocks, 4, 6, 8\]",
    ),
    "weight": (lambda: torch_npu.npu_masked_causal_conv1d(Q, V[0]), r"weight \[W, H\]"),
    "mask": (lambda: torch_npu.npu_masked_causal_conv1d(Q, Q[0], mask=Q[..., 0]), r"mask \[B, S\] in bool"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()
