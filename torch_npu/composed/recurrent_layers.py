"""Recurrent layers as torch.nn has them: several, in both directions, of sequences of several lengths.

Steps are computed in float32. Gradients under names of their own compute the layers again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.recurrent import lstm_step
from torch_npu.composed.registry import composed, refuse

States = tuple[Tensor, ...]
Layout = tuple[bool, int, float, bool, bool]  # has_biases, num_layers, dropout, train, bidirectional
Step = Callable[[Tensor, Tensor, States], tuple[States, States]]


def _lstm_cell(of_input: Tensor, of_hidden: Tensor, states: States) -> tuple[States, States]:
    """New h and c, and what the gradient needs: i, j, f, o and tanh(c)."""
    h, c, *gates = lstm_step(of_input + of_hidden, states[1])
    return (h, c), tuple(gates)


def _gru_cell(of_input: Tensor, of_hidden: Tensor, states: States) -> tuple[States, States]:
    """New h, and what the gradient needs: r, z, n and what r multiplies in n."""
    (r_x, z_x, n_x), (r_h, z_h, inner) = of_input.chunk(3, -1), of_hidden.chunk(3, -1)
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = (n_x + r * inner).tanh()
    return ((1 - z) * n + z * states[0],), (r, z, n, inner)


def _run(
    cell: Step, gates: Tensor, hidden: tuple[Tensor, Tensor], states: States, mask: Tensor | None, backwards: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """y [T, B, H], the states and what the cell keeps, each [T, B, H] by time.

    Where ``mask`` [T, B, 1] is 0 the sequence is over: states stay, and y is 0.
    """
    weight, bias = hidden
    order = range(len(gates) - 1, -1, -1) if backwards else range(len(gates))
    made: dict[int, tuple[Tensor, States, States]] = {}
    for t in order:
        new, kept = cell(gates[t], states[0] @ weight + bias, states)
        if mask is not None:
            new = tuple(torch.where(mask[t], after, before) for after, before in zip(new, states, strict=True))
        states = new
        made[t] = (states[0] if mask is None else states[0] * mask[t], states, kept)
    steps = [made[t] for t in range(len(gates))]
    columns = (torch.stack(parts) for parts in zip(*((y, *s, *k) for y, s, k in steps), strict=True))
    y, *rest = columns
    return y, rest[: len(states)], rest[len(states) :]


def _lasting(operator: str, batch_sizes: Tensor | None, steps: int, batch: int, device: torch.device) -> Tensor | None:
    """Which sequences go on, [T, B, 1], of how many there are at each step."""
    if batch_sizes is None or batch_sizes.numel() == 0:
        return None
    if batch_sizes.shape != (steps,):
        refuse(operator, f"batch_sizes [{steps}]", list(batch_sizes.shape))
    return (torch.arange(batch, device=device) < batch_sizes.to(device).unsqueeze(1)).unsqueeze(-1)


def _arranged(operator: str, x: Tensor, batch_first: bool, batch_sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The input as [T, B, I], and which sequences last."""
    packed = batch_sizes is not None and batch_sizes.numel() > 0
    if packed and x.dim() == 2:
        steps = len(batch_sizes) if batch_sizes is not None else 1
        if len(x) % steps or batch_first:
            refuse(operator, f"input [{steps} * B, I] with {steps} batch_sizes, filled up, time first", list(x.shape))
        x = x.unflatten(0, (steps, -1))
    elif x.dim() != 3:
        refuse(operator, "input [T, B, I], [B, T, I] where batch_first, or [T * B, I] with batch_sizes", list(x.shape))
    x = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
    if x.shape[0] == 0:
        refuse(operator, "one step at least", list(x.shape))
    return x.float(), _lasting(operator, batch_sizes, x.shape[0], x.shape[1], x.device)


def _layers(
    operator: str,
    cell: Step,
    x: Tensor,
    first: States,
    params: list[Tensor],
    layout: Layout,
    mask: Tensor | None,
) -> tuple[Tensor, list[list[Tensor]], list[list[Tensor]]]:
    """y [T, B, D * H]; of each layer and direction the states and what the cell keeps, [T, B, H]."""
    has_biases, num_layers, dropout, train, bidirectional = layout
    if dropout and train and num_layers > 1:
        raise NotImplementedError(f"{operator}: dropout between layers is not supported, got {dropout}")
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    count = directions * num_layers
    shape = (count, x.shape[1], params[1].shape[1] if len(params) > 1 else 0)
    if len(params) != each * count or any(t.shape != shape for t in first):
        seen = [len(params), [list(t.shape) for t in first]]
        refuse(operator, f"{each * count} params and first states {list(shape)}", seen)
    states, kept = [], []
    for layer in range(num_layers):
        results = []
        for direction in range(directions):
            at = layer * directions + direction
            w_x, w_h, *biases = (p.float() for p in params[each * at : each * (at + 1)])
            if w_x.shape != (w_h.shape[0], x.shape[2]) or w_h.shape[0] % shape[2] or w_h.shape[1] != shape[2]:
                refuse(operator, f"weights [gates * H, {x.shape[2]}] and [gates * H, H]", [w_x.shape, w_h.shape])
            b_x, b_h = biases if has_biases else (w_x.new_zeros(()), w_x.new_zeros(()))
            start = tuple(t[at].float() for t in first)
            made = _run(cell, x @ w_x.t() + b_x, (w_h.t(), b_h), start, mask, bool(direction))
            results.append(made[0])
            states.append(made[1])
            kept.append(made[2])
        x = torch.cat(results, -1)
    return x, states, kept


def _last(states: list[list[Tensor]], which: int, directions: int) -> Tensor:
    """[D * layers, B, H]: the state after the last step, which is the first one in time going backwards."""
    return torch.stack([s[which][0 if at % directions else -1] for at, s in enumerate(states)])


_LAYOUT = (
    "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, *, bool? batch_first=False, "
    "Tensor? batch_sizes=None"
)


def _all_layers(
    operator: str, cell: Step, input: Tensor, first: States, params: list[Tensor], layout: Layout,
    batch_first: bool | None, batch_sizes: Tensor | None,
) -> tuple[Tensor, States, list[Tensor], list[Tensor]]:  # fmt: skip
    """y, last states, and all states and kept tensors [D * layers, T, B, H], in the dtype of the input."""
    x, mask = _arranged(operator, input, bool(batch_first), batch_sizes)
    y, states, kept = _layers(operator, cell, x, first, params, layout, mask)
    dtype, directions = input.dtype, 1 + layout[4]
    last = tuple(_last(states, which, directions).to(dtype) for which in range(len(first)))
    all_states, all_kept = ([torch.stack(t).to(dtype) for t in zip(*parts, strict=True)] for parts in (states, kept))
    return (y.transpose(0, 1) if batch_first else y).to(dtype), last, all_states, all_kept


@composed(
    f"_lstm_npu(Tensor input, Tensor[] hx, Tensor[] params, {_LAYOUT}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm_layers(
    input: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool | None = False,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """LSTM of torch.nn over input [T, B, I]: y [T, B, D * H], the last h and c, and i, j, f, o, h, c, tanh(c).

    The latter are [D * num_layers, T, B, H] of all steps, and None where not train. hx has the first h and c [D *
    num_layers, B, H]; params are those of torch.nn.LSTM, layer by layer. batch_sizes [T]: how many sequences last so
    long; input is then [T * B, I], filled up, y is 0 and states stay behind a sequence's end. dropout is not supported.
    """
    layout = (has_biases, num_layers, dropout, train, bidirectional)
    if len(hx) != 2:
        refuse("_lstm_npu", "the first h and c in hx", len(hx))
    given = (input, tuple(hx), params, layout, batch_first, batch_sizes)
    y, (h, c), (hs, cs), (i, j, f, o, tanhc) = _all_layers("_lstm_npu", _lstm_cell, *given)
    return y, h, c, *((i, j, f, o, hs, cs, tanhc) if train else (None,) * 7)


@composed(
    f"_gru_npu(Tensor input, Tensor hx, Tensor[] params, {_LAYOUT}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def gru_layers(
    input: Tensor,
    hx: Tensor,
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    *,
    batch_first: bool | None = False,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """GRU of torch.nn over input [T, B, I]: y [T, B, D * H], the last h, and r, z, n, what r multiplies in n, and h.

    Arguments are as for _lstm_npu; the latter results are [D * num_layers, T, B, H], and None where not train.
    """
    layout = (has_biases, num_layers, dropout, train, bidirectional)
    given = (input, (hx,), params, layout, batch_first, batch_sizes)
    y, (h,), (hs,), (r, z, n, inner) = _all_layers("_gru_npu", _gru_cell, *given)
    return y, h, *((r, z, n, inner, hs) if train else (None,) * 5)


def _again(
    call: Callable[[list[Tensor]], tuple[Tensor | None, ...]], leaves: list[Tensor], grads: list[Tensor | None]
) -> list[Tensor]:
    """Gradients of the first results of ``call`` by the leaves, zeros for those that it does not read."""
    with torch.enable_grad():
        own = [leaf.detach().requires_grad_() for leaf in leaves]
        results = call(own)
    pairs = [(r, g) for r, g in zip(results, grads, strict=False) if r is not None and g is not None]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    outputs, weights = ([pair[side] for pair in pairs] for side in (0, 1))
    found = torch.autograd.grad(outputs, own, weights, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


@composed(
    "_lstm_npu_backward(Tensor grad_y, Tensor grad_hy, Tensor grad_cy, Tensor input, Tensor[] hx, Tensor[] params, "
    f"Tensor i, Tensor j, Tensor f, Tensor o, Tensor h, Tensor c, Tensor tanhc, {_LAYOUT}) -> "
    "(Tensor, Tensor[], Tensor[])"
)
def lstm_layers_backward(
    grad_y: Tensor, grad_hy: Tensor, grad_cy: Tensor, input: Tensor, hx: list[Tensor], params: list[Tensor], i: Tensor,
    j: Tensor, f: Tensor, o: Tensor, h: Tensor, c: Tensor, tanhc: Tensor, *layout: Any, **options: Any,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Gradients of _lstm_npu by input, hx and params, of those of y, the last h and the last c."""

    def call(leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
        return lstm_layers(leaves[0], leaves[1:3], leaves[3:], *layout, **options)

    found = _again(call, [input, *hx, *params], [grad_y, grad_hy, grad_cy])
    return found[0], found[1:3], found[3:]


@composed(
    "_gru_npu_backward(Tensor grad_y, Tensor grad_h, Tensor input, Tensor hx, Tensor[] params, Tensor r, Tensor z, "
    f"Tensor n, Tensor h_n, Tensor h, {_LAYOUT}) -> (Tensor, Tensor, Tensor[])"
)
def gru_layers_backward(
    grad_y: Tensor, grad_h: Tensor, input: Tensor, hx: Tensor, params: list[Tensor], r: Tensor, z: Tensor, n: Tensor,
    h_n: Tensor, h: Tensor, *layout: Any, **options: Any,
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """Gradients of _gru_npu by input, hx and params, of those of y and the last h."""

    def call(leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
        return gru_layers(leaves[0], leaves[1], leaves[2:], *layout, **options)

    found = _again(call, [input, hx, *params], [grad_y, grad_h])
    return found[0], found[1], found[2:]


def _lstm_of_lengths(
    operator: str, input: Tensor, weight: Tensor, bias: Tensor, first: States, mask: Tensor | None, backwards: bool
) -> tuple[Tensor, ...]:
    """y, h, c, i, j, f, o and tanh(c) of each step [T, B, H], of weight [I + H, 4H] in the order i, f, j, o."""
    hidden = first[0].shape[-1]
    if input.dim() != 3 or weight.shape != (input.shape[2] + hidden, 4 * hidden) or not input.shape[0]:
        seen = [list(input.shape), list(weight.shape)]
        refuse(operator, "input [T, B, I] of a step at least, and weight [I + H, 4H]", seen)
    of_input, of_hidden = weight.float().split((input.shape[2], hidden))
    gates = input.float() @ of_input + bias.float()
    start = tuple(t[-1].float() for t in first)
    y, states, kept = _run(_lstm_cell, gates, (of_hidden, gates.new_zeros(())), start, mask, backwards)
    return tuple(t.to(input.dtype) for t in (y, *states, *kept))


@composed(
    "npu_lstm_data(Tensor input, Tensor batch_sizes, Tensor weight, Tensor bias, Tensor seq_mask, Tensor h, Tensor c, "
    "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first, bool flag_seq, "
    "bool direction) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm_data(
    input: Tensor,
    batch_sizes: Tensor,
    weight: Tensor,
    bias: Tensor,
    seq_mask: Tensor,
    h: Tensor,
    c: Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    flag_seq: bool,
    direction: bool,
) -> tuple[Tensor, ...]:
    """npu_lstm of sequences of several lengths: where flag_seq, those of seq_mask [T, B, H], 1 as long as they last.

    Behind a sequence's end y is 0, and h and c stay; with direction it runs from the last step to the first. Options
    of layers are for who calls it, layer by layer, and are not read.
    """
    mask = seq_mask[..., :1] != 0 if flag_seq else None
    return _lstm_of_lengths("npu_lstm_data", input, weight, bias, (h, c), mask, direction)


@composed(
    "npu_lstm_data_backward(Tensor? grady_opt, Tensor? gradh_opt, Tensor? gradc_opt, Tensor input, "
    "Tensor batch_sizes, Tensor weight, Tensor bias, Tensor init_h, Tensor init_c, Tensor y, Tensor h, Tensor c, "
    "Tensor i, Tensor j, Tensor f, Tensor o, Tensor tanhc, bool flag_direction) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm_data_backward(
    grady_opt: Tensor | None, gradh_opt: Tensor | None, gradc_opt: Tensor | None, input: Tensor, batch_sizes: Tensor,
    weight: Tensor, bias: Tensor, init_h: Tensor, init_c: Tensor, y: Tensor, h: Tensor, c: Tensor, i: Tensor, j: Tensor,
    f: Tensor, o: Tensor, tanhc: Tensor, flag_direction: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of npu_lstm_data by input, weight, bias, h and c; lengths are those of batch_sizes [T]."""
    name = "npu_lstm_data_backward"
    mask = _lasting(name, batch_sizes, input.shape[0], input.shape[1], input.device)

    def call(leaves: list[Tensor]) -> tuple[Tensor, ...]:
        x, w, b, *first = leaves
        return _lstm_of_lengths(name, x, w, b, tuple(first), mask, flag_direction)

    return tuple(_again(call, [input, weight, bias, init_h, init_c], [grady_opt, gradh_opt, gradc_opt]))
