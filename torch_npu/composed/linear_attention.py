"""Linear attention: the gated delta rule, step by step and in chunks, and the causal convolution before it.

A state S is [value size, key size] for each head: S = exp(g) S + beta (v - exp(g) S k) kᵀ; the result is S q.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_CHUNK = 64


def _check_heads(operator: str, query: Tensor, key: Tensor, value: Tensor, **of_tokens: Tensor | None) -> None:
    fits = query.dim() == value.dim() == 3 and query.shape == key.shape and query.shape[0] == value.shape[0]
    if not fits or value.shape[1] % max(1, query.shape[1]):
        shapes = [list(t.shape) for t in (query, key, value)]
        refuse(operator, "query and key [T, Nk, Dk] and value [T, Nv, Dv], Nv a multiple of Nk", shapes)
    for name, tensor in of_tokens.items():
        if tensor is not None and tensor.shape[:2] != value.shape[:2]:
            refuse(operator, f"{name} [{value.shape[0]}, {value.shape[1]}]", list(tensor.shape))


def _lengths(operator: str, lengths: Tensor, tokens: int) -> list[int]:
    values = lengths.tolist()
    if lengths.dim() != 1 or any(v < 0 for v in values) or sum(values) != tokens:
        refuse(operator, f"actual_seq_lengths [B] whose sum is {tokens}", values)
    return values


def _recurrent(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    beta: Tensor | None,
    scale: float | None,
    actual_seq_lengths: Tensor | None,
    ssm_state_indices: Tensor | None,
    num_accepted_tokens: Tensor | None,
    g: Tensor | None,
    gk: Tensor | None,
) -> Tensor:
    """Writes the states behind each token into ``state`` and returns the results."""
    _check_heads(operator, query, key, value, beta=beta, g=g, gk=gk)
    tokens, heads = value.shape[:2]
    if actual_seq_lengths is None or ssm_state_indices is None:
        refuse(operator, "actual_seq_lengths and ssm_state_indices", None)
    if state.shape[1:] != (heads, value.shape[2], query.shape[2]) or ssm_state_indices.shape != (tokens,):
        expected = f"state [blocks, {heads}, {value.shape[2]}, {query.shape[2]}] and ssm_state_indices [{tokens}]"
        refuse(operator, expected, [list(state.shape), list(ssm_state_indices.shape)])
    lengths = _lengths(operator, actual_seq_lengths, tokens)
    if num_accepted_tokens is not None and num_accepted_tokens.shape != actual_seq_lengths.shape:
        refuse(operator, f"num_accepted_tokens [{len(lengths)}]", list(num_accepted_tokens.shape))
    copies = heads // query.shape[1]
    factor = query.shape[2] ** -0.5 if scale is None else scale
    q, k = (t.float().repeat_interleave(copies, 1) for t in (query, key))
    q = q * factor
    v, places = value.float(), ssm_state_indices.long()
    starts = torch.tensor(lengths, device=query.device).cumsum(0) - torch.tensor(lengths, device=query.device)
    before = 0 if num_accepted_tokens is None else num_accepted_tokens.long() - 1
    used = [i for i, n in enumerate(lengths) if n]
    states = state[places[(starts + before)[used]]].float()
    results = torch.empty_like(v)
    for step in range(max(lengths, default=0)):
        going = [i for i, n in enumerate(used) if lengths[n] > step]
        at = starts[[used[i] for i in going]] + step
        current = states[going]
        if g is not None:
            current = current * g[at].float().exp()[..., None, None]
        if gk is not None:
            current = current * gk[at].float().exp().unsqueeze(-2)
        change = v[at] - (current @ k[at].unsqueeze(-1)).squeeze(-1)
        if beta is not None:
            change = change * beta[at].float().unsqueeze(-1)
        current = current + change.unsqueeze(-1) * k[at].unsqueeze(-2)
        results[at] = (current @ q[at].unsqueeze(-1)).squeeze(-1)
        states[going] = current
        state[places[at]] = current.to(state.dtype)
    return results.to(value.dtype)


_INPUTS = "Tensor query, Tensor key, Tensor value"
_STEPS = (
    "*, Tensor? beta=None, float? scale=None, Tensor? actual_seq_lengths=None, Tensor? ssm_state_indices=None, "
    "Tensor? num_accepted_tokens=None, Tensor? g=None, Tensor? gk=None"
)


def _like_value(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _like_value_and_state(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor, **_: object
) -> tuple[Tensor, Tensor]:
    return _like_value(query, key, value), torch.empty_like(state)


@composed(f"npu_recurrent_gated_delta_rule({_INPUTS}, Tensor(a!) state, {_STEPS}) -> Tensor", fake=_like_value)
def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> Tensor:
    """The gated delta rule, step by step, of sequences one after the other; state [blocks, Nv, Dv, Dk] is written.

    ssm_state_indices [T]: the block for the state behind each token. A sequence starts with the state of its first
    token's block, or of the last accepted one's. scale, of the query, is 1 / sqrt(Dk) where not given; gk is g for each
    element of a key.
    """
    return _recurrent(
        "npu_recurrent_gated_delta_rule", query, key, value, state, beta, scale, actual_seq_lengths,
        ssm_state_indices, num_accepted_tokens, g, gk,
    )  # fmt: skip


@composed(
    f"npu_recurrent_gated_delta_rule_functional({_INPUTS}, Tensor state, {_STEPS}) -> (Tensor, Tensor)",
    fake=_like_value_and_state,
)
def recurrent_gated_delta_rule_functional(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """npu_recurrent_gated_delta_rule that returns the results and the new state."""
    written = state.clone()
    result = _recurrent(
        "npu_recurrent_gated_delta_rule_functional", query, key, value, written, beta, scale, actual_seq_lengths,
        ssm_state_indices, num_accepted_tokens, g, gk,
    )  # fmt: skip
    return result, written


def _chunk(state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The state behind a chunk [heads, tokens, ...] and its results.

    What each token adds depends on what those before it in the chunk add: a triangular system of equations.
    """
    decay = g.cumsum(-1)
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril()  # from the token of the column on
    k_beta = k * beta.unsqueeze(-1)
    system = (k_beta @ k.mT * between).tril(-1)
    from_state = decay.exp().unsqueeze(-1)
    right = torch.cat((v * beta.unsqueeze(-1), k_beta * from_state), -1)
    identity = torch.eye(q.shape[-2], device=q.device)
    solved = torch.linalg.solve_triangular(system + identity, right, upper=False, unitriangular=True)
    values, keys = solved.split((v.shape[-1], k.shape[-1]), -1)
    added = values - keys @ state.mT
    result = (q * from_state) @ state.mT + (q @ k.mT * between) @ added
    last = decay[..., -1:]
    rest = (last - decay).exp().unsqueeze(-1)
    return state * last.exp().unsqueeze(-1) + added.mT @ (k * rest), result


def _chunked_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    actual_seq_lengths: Tensor | None = None,
    scale: float | None = None,
    g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch = 1 if actual_seq_lengths is None else actual_seq_lengths.shape[0]
    shape = (batch, value.shape[1], value.shape[2], query.shape[2])
    dtype = value.dtype if initial_state is None else initial_state.dtype
    return _like_value(query, key, value), value.new_empty(shape, dtype=dtype)


@composed(
    f"npu_chunk_gated_delta_rule({_INPUTS}, *, Tensor? beta=None, Tensor? initial_state=None, "
    "Tensor? actual_seq_lengths=None, float? scale=None, Tensor? g=None) -> (Tensor, Tensor)",
    fake=_chunked_shapes,
)
def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    actual_seq_lengths: Tensor | None = None,
    scale: float | None = None,
    g: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule of sequences one after the other, 64 tokens at once: results [T, Nv, Dv] and last states.

    initial_state [B, Nv, Dv, Dk] is 0, beta 1, g 0 and scale, of the query, 1 where not given.
    """
    name = "npu_chunk_gated_delta_rule"
    _check_heads(name, query, key, value, beta=beta, g=g)
    tokens, heads = value.shape[:2]
    lengths = [tokens] if actual_seq_lengths is None else _lengths(name, actual_seq_lengths, tokens)
    shape = (len(lengths), heads, value.shape[2], query.shape[2])
    if initial_state is not None and initial_state.shape != shape:
        refuse(name, f"initial_state {list(shape)}", list(initial_state.shape))
    copies = heads // query.shape[1]
    q, k = (t.float().repeat_interleave(copies, 1).transpose(0, 1) for t in (query, key))
    q = q if scale is None else q * scale
    v = value.float().transpose(0, 1)
    b = v.new_ones(v.shape[:2]) if beta is None else beta.float().t()
    decay = v.new_zeros(v.shape[:2]) if g is None else g.float().t()
    states = v.new_zeros(shape) if initial_state is None else initial_state.float().clone()
    results = torch.empty_like(v)
    begin = 0
    for i, length in enumerate(lengths):
        for start in range(begin, begin + length, _CHUNK):
            part = slice(start, min(start + _CHUNK, begin + length))
            states[i], results[:, part] = _chunk(states[i], *(t[:, part] for t in (q, k, v, b, decay)))
        begin += length
    dtype = value.dtype if initial_state is None else initial_state.dtype
    return results.transpose(0, 1).to(value.dtype).contiguous(), states.to(dtype)


def _check_convolution(operator: str, input: Tensor, weight: Tensor, mask: Tensor | None) -> None:
    if input.dim() != 3 or weight.dim() != 2 or weight.shape[1] != input.shape[2]:
        refuse(operator, "input [S, B, H] and weight [W, H]", [list(input.shape), list(weight.shape)])
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (input.shape[1], input.shape[0])):
        refuse(operator, "mask [B, S] in bool", [list(mask.shape), mask.dtype])


@composed("npu_masked_causal_conv1d(Tensor input, Tensor weight, *, Tensor? mask=None) -> Tensor")
def masked_causal_conv1d(input: Tensor, weight: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Sums over each token of input [S, B, H] and those before it, weighted by weight [W, H], the last row its own.

    mask [B, S]: where it is False the result is 0.
    """
    _check_convolution("npu_masked_causal_conv1d", input, weight, mask)
    taps = weight.shape[0]
    padded = F.pad(input.float(), (0, 0, 0, 0, taps - 1, 0))
    result = torch.stack([padded[i : i + input.shape[0]] * weight[i].float() for i in range(taps)]).sum(0)
    if mask is not None:
        result = result.masked_fill(mask.t().logical_not().unsqueeze(-1), 0)
    return result.to(input.dtype)


@composed(
    "npu_masked_causal_conv1d_backward(Tensor grad_output, Tensor input, Tensor weight, *, Tensor? mask=None) -> "
    "(Tensor, Tensor)"
)
def masked_causal_conv1d_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of npu_masked_causal_conv1d by input and weight."""
    _check_convolution("npu_masked_causal_conv1d_backward", input, weight, mask)
    grad, taps, length = grad_output.float(), weight.shape[0], input.shape[0]
    if mask is not None:
        grad = grad.masked_fill(mask.t().logical_not().unsqueeze(-1), 0)
    behind = F.pad(grad, (0, 0, 0, 0, 0, taps - 1))
    before = F.pad(input.float(), (0, 0, 0, 0, taps - 1, 0))
    by_input = torch.stack([behind[taps - 1 - i : taps - 1 - i + length] * weight[i].float() for i in range(taps)]).sum(
        0
    )
    by_weight = torch.stack([(before[i : i + length] * grad).sum((0, 1)) for i in range(taps)])
    return by_input.to(grad_output.dtype), by_weight.to(grad_output.dtype)
