"""Causal convolution with a cache (torch_npu/composed/causal_convolution.py), sequence by sequence in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
TAPS, WIDTH = 3, 5


def reference(x: Tensor, weight: Tensor, states: Tensor, starts: list[int], lines: list, **given) -> Tensor:
    """Changes states; lines are [B], or [B, blocks] with first, last, initial and size."""
    y, before, room = torch.zeros_like(x), len(weight) - 1, states.shape[1]
    old = states.clone()
    for b, (start, end) in enumerate(itertools.pairwise(starts)):
        read = lines[b][given["initial"][b]] if "initial" in given else lines[b]
        write = lines[b][given["last"][b]] if "last" in given else lines[b]
        if read == -1:
            continue
        computed = given["computed"][b] if "computed" in given else None
        offset = given["accepted"][b] - 1 if "accepted" in given else room - before
        if computed == 0:
            offset = 0
        kept = torch.zeros(before, WIDTH, dtype=x.dtype) if computed == 0 else old[read][: offset + before]
        whole = torch.cat((kept, x[start:end]))
        count = min(room, len(whole))
        states[write, room - count :] = whole[len(whole) - count :]
        whole = whole[offset:]
        y[start:end] = sum(weight[k] * whole[k : k + end - start] for k in range(TAPS))
        if given.get("pangu"):
            y[start : start + min(max(before - computed, 0), end - start)] = 0
        if "last" in given:
            # absolute places of the tokens: those where a block ends, after the first block that is scheduled
            for number, block in enumerate(range(given["first"][b], given["last"][b])):
                ending = (computed // given["size"] + 1 + number) * given["size"] - computed
                states[lines[b][block], room - before :] = whole[ending : ending + before]
    return y + x if given.get("residual") else y


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("room", [2, 4])
@pytest.mark.parametrize("case", ["plain", "fresh", "pangu", "accepted"])
@pytest.mark.parametrize("in_place", [False, True])
def test_sequences(device, dtype, room, case, in_place):
    if case == "accepted" and room == 2:
        room = 5
    starts, lines = [0, 4, 4 + 3, 7 + 9, 16 + 4], [3, -1, 0, 5]
    x, weight, states = (torch.randn(s).to(dtype) for s in ((20, WIDTH), (TAPS, WIDTH), (7, room, WIDTH)))
    given: dict = {"residual": case in ("fresh", "accepted")}
    if case in ("fresh", "pangu"):
        given |= {"computed": [0, 5, 1, 9], "pangu": case == "pangu"}
    if case == "accepted":
        given["accepted"] = [1, 2, 3, 2]
    after = states.double()
    expected = reference(x.double(), weight.double(), after, starts, lines, **given)
    expected[4:7] = x[4:7].double() if in_place else 0
    options = {
        "query_start_loc": torch.tensor(starts).int().to(device), "cache_indices": torch.tensor(lines).int().to(device),
        "residual_connection": int(given["residual"]), "conv_mode": "pangu" if case == "pangu" else "default",
    }  # fmt: skip
    for name, argument in (("computed", "num_computed_tokens"), ("accepted", "num_accepted_tokens")):
        if name in given:
            options[argument] = torch.tensor(given[name]).int().to(device)
    cache, y = states.to(device), x.to(device)
    if in_place:
        assert torch_npu.npu_fused_causal_conv1d_v2(y, weight.to(device), cache, **options) is None
    else:
        y = torch_npu.npu_fused_causal_conv1d(y, weight.to(device), cache, **options)
    assert y.dtype == dtype
    assert_close(y, expected, terms=4)
    assert torch.equal(cache.cpu().double(), after)


@DEVICES
def test_batches(device):
    x, weight, states = (torch.randn(s) for s in ((3, 2, WIDTH), (TAPS, WIDTH), (3, 2, WIDTH)))
    after = states.double()
    expected = reference(x.double().view(6, WIDTH), weight.double(), after, [0, 2, 4, 6], [0, 1, 2])
    cache = states.to(device)
    y = torch_npu.npu_fused_causal_conv1d(x.to(device), weight.to(device), cache)
    assert_close(y, expected.view(3, 2, WIDTH), terms=4)
    assert torch.equal(cache.cpu().double(), after)


@DEVICES
def test_cached_blocks(device):
    size, lengths, computed = 4, [9, 2, 6], [0, 5, 6]
    starts = [0, 9, 11, 17]
    lines = [[4, 5, 6, 0], [1, 2, 3, 0], [7, 8, 9, 10]]
    initial = [0, 1, 1]
    first = [c // size for c in computed]
    last = [(c + n - 1) // size for c, n in zip(computed, lengths, strict=True)]
    x, weight, states = (torch.randn(s) for s in ((17, WIDTH), (TAPS, WIDTH), (11, 2, WIDTH)))
    after = states.double()
    expected = reference(
        x.double(), weight.double(), after, starts, lines, computed=computed, first=first, last=last, initial=initial,
        size=size,
    )  # fmt: skip
    cache = states.to(device)
    named = {
        "query_start_loc": starts, "cache_indices": lines, "num_computed_tokens": computed,
        "block_idx_first_scheduled_token": first, "block_idx_last_scheduled_token": last, "initial_state_idx": initial,
    }  # fmt: skip
    options = {name: torch.tensor(values).int().to(device) for name, values in named.items()}
    y = torch_npu.npu_fused_causal_conv1d(x.to(device), weight.to(device), cache, block_size=size, **options)
    assert_close(y, expected, terms=4)
    assert torch.equal(cache.cpu().double(), after)


def test_replays_with_other_sequences():
    x, weight, cache = (torch.randn(s).npu() for s in ((6, WIDTH), (TAPS, WIDTH), (4, 2, WIDTH)))
    starts, lines = torch.tensor([0, 2, 6]).int().npu(), torch.tensor([0, 2]).int().npu()
    options = {"query_start_loc": starts, "cache_indices": lines}
    torch_npu.npu_fused_causal_conv1d(x, weight, cache.clone(), **options)
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    before = cache.cpu().double()
    with torch.npu.graph(graph):
        y = torch_npu.npu_fused_causal_conv1d(x, weight, cache, **options)
    cache.copy_(before)
    starts.copy_(torch.tensor([0, 5, 6]))
    lines.copy_(torch.tensor([-1, 3]))
    graph.replay()
    expected = reference(x.cpu().double(), weight.cpu().double(), before, [0, 5, 6], [-1, 3])
    assert_close(y, expected, terms=4)
    assert torch.equal(cache.cpu().double(), before)


X, W, C = torch.zeros(2, 3, WIDTH), torch.zeros(TAPS, WIDTH), torch.zeros(2, 2, WIDTH)
REFUSED = {
    "room": ("conv_states", lambda f: f(X, W, C[:, :1])),
    "width": ("one width", lambda f: f(X, W[:, 1:], C)),
    "starts": ("query_start_loc", lambda f: f(X[0], W, C)),
    "mode": ("conv_mode", lambda f: f(X, W, C, conv_mode="other")),
    "computed": ("num_computed_tokens", lambda f: f(X, W, C, conv_mode="pangu")),
    "blocks": ("initial_state_idx", lambda f: f(X, W, C, cache_indices=torch.zeros(2, 2).int())),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    message, call = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(torch_npu.npu_fused_causal_conv1d)
