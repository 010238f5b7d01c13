"""Recurrent layers: LSTM and GRU of one layer and one direction, and the forms of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

__all__ = ["lstm_step"]

_LAYER = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"


def _check_layer(operator: str, num_layers: int, dropout: float, bidirectional: bool, batch_first: bool) -> None:
    if num_layers != 1 or dropout or bidirectional or batch_first:
        seen = [num_layers, dropout, bidirectional, batch_first]
        raise NotImplementedError(
            f"{operator}: num_layers must be 1, without dropout, bidirectional and batch_first, got {seen}"
        )


def lstm_step(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """h, c, the gates i, j, f, o, and tanh(c), of gates [B, 4H] in the order i, f, j, o."""
    i, f, j, o = gates.chunk(4, -1)
    i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
    c = f * c + i * j
    tanhc = c.tanh()
    return o * tanhc, c, i, j, f, o, tanhc


@composed(
    "npu_lstm(Tensor input, Tensor weight, Tensor bias, Tensor seq_mask, Tensor h, Tensor c, "
    f"{_LAYER}, bool flag_seq, bool direction) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm(
    input: Tensor,
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
    """LSTM over input [T, B, I]: y, h and c of each step [T, B, H], the gates i, j, f, o and tanh(c).

    weight [I + H, 4H] and bias [4H] have the order i, f, j, o; h and c [1, B, H] are the first ones. Both directions
    run forwards: who wants the other one turns the input over.
    """
    name = "npu_lstm"
    _check_layer(name, num_layers, dropout, bidirectional, batch_first)
    if flag_seq:
        raise NotImplementedError(f"{name}: flag_seq (several lengths) is not supported; use npu_lstm_data")
    if input.dim() != 3 or weight.shape != (input.shape[2] + h.shape[-1], 4 * h.shape[-1]):
        refuse(name, "input [T, B, I] and weight [I + H, 4H]", [list(input.shape), list(weight.shape)])
    width, dtype = input.shape[2], input.dtype
    inner = weight[width:].float()
    projected = input.float() @ weight[:width].float() + bias.float()
    h, c = h[-1].float(), c[-1].float()
    steps = []
    for gates in projected.unbind():
        h, c, *rest = lstm_step(gates + h @ inner, c)
        steps.append((h, c, *rest))
    if not steps:
        return tuple(projected.new_empty(0, *h.shape, dtype=dtype) for _ in range(8))
    hs, cs, *gates_and_tanh = (torch.stack(t).to(dtype) for t in zip(*steps, strict=True))
    return hs, hs.clone(), cs, *gates_and_tanh


def _lstm_gradients(
    x: Tensor,
    weight: Tensor,
    hx: Tensor,
    cx: Tensor,
    grads: tuple[Tensor | None, Tensor | None, Tensor | None],
    kept: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """By x [T, B, I], weight [I + H, 4H], bias, the first h and c; kept: h, c, i, j, f, o, tanhc of each step."""
    hs, cs, i, j, f, o, tanhc = (t.float() for t in kept)
    by_y, by_h, by_c = (None if g is None else g.float() for g in grads)
    wide = weight.float()
    width, first_h, first_c = x.shape[2], hx.float(), cx.float()
    dh, dc = torch.zeros_like(first_h), torch.zeros_like(first_c)
    dx, dweight, dbias = [], torch.zeros_like(wide), wide.new_zeros(wide.shape[1])
    for t in range(x.shape[0] - 1, -1, -1):
        for grad in (by_y, by_h):
            dh = dh if grad is None else dh + grad[t]
        before_h, before_c = (hs[t - 1], cs[t - 1]) if t else (first_h, first_c)
        dc = dc + dh * o[t] * (1 - tanhc[t].square())
        dc = dc if by_c is None else dc + by_c[t]
        gates = torch.cat(
            (
                dc * j[t] * i[t] * (1 - i[t]),
                dc * before_c * f[t] * (1 - f[t]),
                dc * i[t] * (1 - j[t].square()),
                dh * tanhc[t] * o[t] * (1 - o[t]),
            ),
            -1,
        )
        dweight = dweight + torch.cat((x[t].float(), before_h), -1).t() @ gates
        dbias = dbias + gates.sum(0)
        both = gates @ wide.t()
        dx.append(both[:, :width])
        dh, dc = both[:, width:], dc * f[t]
    inputs = torch.stack(dx[::-1]) if dx else torch.zeros_like(x, dtype=torch.float32)
    return inputs, dweight, dbias, dh, dc


@composed(
    "npu_lstm_backward(Tensor? grady, Tensor? gradh, Tensor? gradc, Tensor input, Tensor weight, Tensor bias, "
    "Tensor hx, Tensor cx, Tensor y_output, Tensor h_output, Tensor c_output, Tensor i, Tensor j, Tensor f, Tensor o, "
    "Tensor tanhc) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm_backward(
    grady: Tensor | None,
    gradh: Tensor | None,
    gradc: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    hx: Tensor,
    cx: Tensor,
    y_output: Tensor,
    h_output: Tensor,
    c_output: Tensor,
    i: Tensor,
    j: Tensor,
    f: Tensor,
    o: Tensor,
    tanhc: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of npu_lstm by input, weight, bias, h and c, of those of y, h and c of each step."""
    kept = (h_output, c_output, i, j, f, o, tanhc)
    dx, dweight, dbias, dh, dc = _lstm_gradients(input, weight, hx[-1], cx[-1], (grady, gradh, gradc), kept)
    results = (dx, input), (dweight, weight), (dbias, bias), (dh.view(hx.shape), hx), (dc.view(cx.shape), cx)
    dx, dweight, dbias, dh, dc = (gradient.to(like.dtype) for gradient, like in results)
    return dx, dweight, dbias, dh, dc


@composed(
    "npu_lstm_cell(Tensor input, Tensor w_ih, Tensor w_hh, Tensor h, Tensor c, Tensor? b_ih=None, "
    "Tensor? b_hh=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm_cell(
    input: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    h: Tensor,
    c: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """One step of an LSTM on input [B, I]: y [1, B, H], h and c [B, H], and the gates i, j, f, o and tanh(c) [1, B, H].

    w_ih [I, 4H] and w_hh [H, 4H] have the order i, f, j, o.
    """
    if w_ih.shape != (input.shape[-1], 4 * h.shape[-1]) or w_hh.shape != (h.shape[-1], 4 * h.shape[-1]):
        refuse("npu_lstm_cell", "w_ih [I, 4H] and w_hh [H, 4H]", [list(w_ih.shape), list(w_hh.shape)])
    gates = input.float() @ w_ih.float() + h.float() @ w_hh.float()
    for bias in (b_ih, b_hh):
        gates = gates if bias is None else gates + bias.float()
    made = [t.to(input.dtype) for t in lstm_step(gates, c.float())]
    return made[0].unsqueeze(0), made[0].clone(), made[1], *(t.unsqueeze(0) for t in made[2:])


@composed(
    "npu_lstm_cell_backward(Tensor? grady, Tensor? gradh, Tensor? gradc, Tensor input, Tensor w_ih, Tensor w_hh, "
    "Tensor h, Tensor c, Tensor y_output, Tensor h_output, Tensor c_output, Tensor i, Tensor j, Tensor f, Tensor o, "
    "Tensor tanhc) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def lstm_cell_backward(
    grady: Tensor | None,
    gradh: Tensor | None,
    gradc: Tensor | None,
    input: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    h: Tensor,
    c: Tensor,
    y_output: Tensor,
    h_output: Tensor,
    c_output: Tensor,
    i: Tensor,
    j: Tensor,
    f: Tensor,
    o: Tensor,
    tanhc: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of npu_lstm_cell by input, w_ih, w_hh, the two biases, h and c."""
    kept = (h_output[None], c_output[None], i, j, f, o, tanhc)
    by_h, by_c = (None if g is None else g.view(1, *h.shape) for g in (gradh, gradc))
    grads = grady, by_h, by_c
    dx, dweight, dbias, dh, dc = _lstm_gradients(input[None], torch.cat((w_ih, w_hh)), h, c, grads, kept)
    split = dweight.split((w_ih.shape[0], w_hh.shape[0]))
    results = dx[0], *split, dbias, dbias.clone(), dh, dc
    return tuple(t.to(input.dtype) for t in results)


@composed(
    "npu_gru(Tensor input, Tensor hx, Tensor weight_input, Tensor weight_hidden, Tensor bias_input, "
    f"Tensor bias_hidden, Tensor seq_length, {_LAYER}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def gru(
    input: Tensor,
    hx: Tensor,
    weight_input: Tensor,
    weight_hidden: Tensor,
    bias_input: Tensor,
    bias_hidden: Tensor,
    seq_length: Tensor,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """GRU over input [T, B, I]: y and h of each step [T, B, H], the gates z, r and n, and h @ weight + bias in n.

    weight_input [I, 3H], weight_hidden [H, 3H] and the biases [3H] have the order r, z, n; hx [1, B, H] is the first h.
    seq_length is not read: all sequences have T steps. Results have the dtype of bias_input.
    """
    name = "npu_gru"
    _check_layer(name, num_layers, dropout, bidirectional, batch_first)
    hidden = hx.shape[-1]
    if input.dim() != 3 or weight_input.shape != (input.shape[2], 3 * hidden) or weight_hidden.shape[1] != 3 * hidden:
        shapes = [list(t.shape) for t in (input, weight_input, weight_hidden)]
        refuse(name, "input [T, B, I], weight_input [I, 3H] and weight_hidden [H, 3H]", shapes)
    projected = input.float() @ weight_input.float() + bias_input.float()
    inner, inner_bias, h = weight_hidden.float(), bias_hidden.float(), hx[-1].float()
    steps = []
    for gates in projected.unbind():
        r_x, z_x, n_x = gates.chunk(3, -1)
        r_h, z_h, new = (h @ inner + inner_bias).chunk(3, -1)
        r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
        n = (n_x + r * new).tanh()
        h = (1 - z) * n + z * h
        steps.append((h, z, r, n, new))
    if not steps:
        return tuple(projected.new_empty(0, *h.shape, dtype=bias_input.dtype) for _ in range(6))
    hs, *rest = (torch.stack(t).to(bias_input.dtype) for t in zip(*steps, strict=True))
    return hs, hs.clone(), *rest


@composed(
    "npu_gru_backward(Tensor? grady, Tensor? gradh, Tensor input, Tensor weight_input, Tensor weight_hidden, "
    "Tensor bias_input, Tensor bias_hidden, Tensor seq_length, Tensor hx, Tensor y_output, Tensor h_output, "
    "Tensor output_updata, Tensor output_reset, Tensor output_new, Tensor hidden_new) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def gru_backward(
    grady: Tensor | None,
    gradh: Tensor | None,
    input: Tensor,
    weight_input: Tensor,
    weight_hidden: Tensor,
    bias_input: Tensor,
    bias_hidden: Tensor,
    seq_length: Tensor,
    hx: Tensor,
    y_output: Tensor,
    h_output: Tensor,
    output_updata: Tensor,
    output_reset: Tensor,
    output_new: Tensor,
    hidden_new: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of npu_gru by weight_input, weight_hidden, input, bias_input, bias_hidden and hx."""
    x, w_x, w_h = input.float(), weight_input.float(), weight_hidden.float()
    hs, z, r, n, new = (t.float() for t in (h_output, output_updata, output_reset, output_new, hidden_new))
    dh, first = torch.zeros_like(hx[-1], dtype=torch.float32), hx[-1].float()
    dx, d_wx, d_wh = [], torch.zeros_like(w_x), torch.zeros_like(w_h)
    d_bx, d_bh = w_x.new_zeros(w_x.shape[1]), w_x.new_zeros(w_x.shape[1])
    for t in range(x.shape[0] - 1, -1, -1):
        for grad in (grady, gradh):
            dh = dh if grad is None else dh + grad[t].float()
        before = hs[t - 1] if t else first
        dz = dh * (before - n[t]) * z[t] * (1 - z[t])
        dn = dh * (1 - z[t]) * (1 - n[t].square())
        dr = dn * new[t] * r[t] * (1 - r[t])
        by_x, by_h = torch.cat((dr, dz, dn), -1), torch.cat((dr, dz, dn * r[t]), -1)
        d_wx, d_wh = d_wx + x[t].t() @ by_x, d_wh + before.t() @ by_h
        d_bx, d_bh = d_bx + by_x.sum(0), d_bh + by_h.sum(0)
        dx.append(by_x @ w_x.t())
        dh = dh * z[t] + by_h @ w_h.t()
    inputs = torch.stack(dx[::-1]) if dx else torch.zeros_like(x)
    results = (d_wx, weight_input), (d_wh, weight_hidden), (inputs, input), (d_bx, bias_input), (d_bh, bias_hidden)
    return *(t.to(like.dtype) for t, like in results), dh.view(hx.shape).to(hx.dtype)
