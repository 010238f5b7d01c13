"""nn.LSTM, nn.GRU and nn.RNN: each layer and direction is one operator, forward and backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tolerance import assert_close
from torch import Tensor, nn

import torch_npu

KINDS = ["LSTM", "GRU", "RNN"]
Case = dict[str, Any]


def pair(kind: str, options: Case, sizes: tuple[int, int] = (5, 17)) -> tuple[nn.Module, nn.Module]:
    """The module in float64, and on npu."""
    torch.manual_seed(3)
    module = getattr(nn, kind)(*sizes, **options)
    return copy.deepcopy(module).double(), module.npu()


def results(module: nn.Module, x: Tensor, states: Any = None) -> list[Tensor]:
    """Outputs, last states, and the gradients of all of them."""
    x = x.clone().requires_grad_()
    output, last = module(x) if states is None else module(x, states)
    last = last if isinstance(last, tuple) else (last,)
    weights = torch.arange(output.numel(), device=output.device, dtype=output.dtype).view(output.shape).cos()
    loss = (output * weights).sum() + sum((state**2).sum() * (i + 1) for i, state in enumerate(last))
    leaves = [x, *module.parameters()]
    return [output, *last, *torch.autograd.grad(loss, leaves)]


def assert_same(actual: list[Tensor], exact: list[Tensor]) -> None:
    for a, e in zip(actual, exact, strict=True):
        assert (a.shape, a.stride()) == (e.shape, e.stride())
        assert_close(a, e, terms=512)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bidirectional": True, "num_layers": 2},
        {"batch_first": True, "bias": False, "num_layers": 3},
        {"batch_first": True, "bidirectional": True},
        {"dropout": 0.0, "num_layers": 2},
    ],
    ids=str,
)
def test_values_and_gradients(options: Case, batch: int, kind: str) -> None:
    exact, there = pair(kind, options)
    x = torch.randn((batch, 6, 5) if options.get("batch_first") else (6, batch, 5))
    assert_same(results(there, x.npu()), results(exact, x.double()))
    with torch.no_grad():
        assert_close(there(x.npu())[0], exact(x.double())[0], terms=512)
    with torch.inference_mode():
        assert_close(there(x.npu())[0], exact(x.double())[0], terms=512)
    assert "_thnn_fused" not in str(torch_npu.fallback_report())


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_activations_of_rnn(nonlinearity: str) -> None:
    exact, there = pair("RNN", {"nonlinearity": nonlinearity})
    x = torch.randn(4, 3, 5)
    assert_same(results(there, x.npu()), results(exact, x.double()))


@pytest.mark.parametrize("kind", KINDS)
def test_given_states_strided_inputs_and_long_sequences(kind: str) -> None:
    exact, there = pair(kind, {"bidirectional": True}, (3, 33))
    x = torch.randn(4, 200, 6)[..., ::2].transpose(0, 1)
    states = [torch.randn(2, 4, 66)[..., ::2] for _ in range(2)]
    given = tuple(states) if kind == "LSTM" else states[0]
    moved = tuple(s.npu() for s in states) if kind == "LSTM" else states[0].npu()
    wide = tuple(s.double() for s in given) if kind == "LSTM" else states[0].double()
    assert_same(results(there, x.npu(), moved), results(exact, x.double(), wide))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_none(kind: str) -> None:
    exact, there = pair(kind, {})
    x = torch.randn(4, 3, 5)
    x[1, 1, 2], x[2, 0, 1], x[0, 2, 0] = float("nan"), float("inf"), -float("inf")
    assert_close(there(x.npu())[0], exact(x.double())[0], terms=512)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 0, 5), (1, 3, 5), (4, 5)], ids=str)
def test_small_shapes(shape: tuple[int, ...], kind: str) -> None:
    exact, there = pair(kind, {})
    x = torch.randn(shape)
    assert_same(results(there, x.npu()), results(exact, x.double()))
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        there(torch.randn(0, 2, 5, device="npu"))


@pytest.mark.parametrize("kind", KINDS)
def test_only_some_gradients(kind: str) -> None:
    exact, there = pair(kind, {})
    for module in (exact, there):
        module.weight_ih_l0.requires_grad_(False)
        module.bias_hh_l0.requires_grad_(False)
    x = torch.randn(4, 3, 5)
    for module, value in ((exact, x.double()), (there, x.npu())):
        module(value)[1][0].sum().backward()  # of the last state alone
    assert_close(there.weight_hh_l0.grad, exact.weight_hh_l0.grad, terms=512)
    assert_close(there.bias_ih_l0.grad, exact.bias_ih_l0.grad, terms=512)
    assert there.weight_ih_l0.grad is None


def test_the_last_cell_alone() -> None:
    exact, there = pair("LSTM", {"num_layers": 2})
    x = torch.randn(4, 3, 5)
    for module, value in ((exact, x.double()), (there, x.npu())):
        module(value)[1][1].square().sum().backward()
    for a, e in zip(there.parameters(), exact.parameters(), strict=True):
        assert_close(a.grad, e.grad, terms=512)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_are_composed_of_steps(dtype: torch.dtype, kind: str) -> None:
    _, there = pair(kind, {"num_layers": 2})
    there.to(dtype)
    x = torch.randn(4, 3, 5).to(dtype)
    result = there(x.npu())[0]
    assert result.dtype == dtype
    exact = copy.deepcopy(there).cpu().double()(x.double())[0]
    assert_close(result, exact, **({} if dtype == torch.float64 else {"atol": 0.02}))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_and_projections(kind: str) -> None:
    exact, there = pair(kind, {"proj_size": 3} if kind == "LSTM" else {})
    x = torch.randn(4, 3, 5)

    def packed(module: nn.Module, value: Tensor) -> Tensor:
        data = nn.utils.rnn.pack_padded_sequence(value, [4, 2, 1])
        return nn.utils.rnn.pad_packed_sequence(module(data)[0])[0]

    assert_close(packed(there, x.npu()), packed(exact, x.double()), terms=512)
    torch_npu.clear_unfused_report()
    assert_same(results(there, x.npu()), results(exact, x.double()))
    reasons = [(call.function, call.reason) for call in torch_npu.unfused_report()]
    assert reasons == ([("lstm", "proj_size must be 0")] if kind == "LSTM" else [])


def test_autocast_and_transforms() -> None:
    exact, there = pair("GRU", {})
    x = torch.randn(4, 3, 5)
    with torch.autocast("npu", torch.bfloat16):
        result = there(x.npu())[0]
    assert_close(result.float(), exact(x.double())[0], atol=0.02, rtol=0.02)
    parameters = {name: p.detach() for name, p in there.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(there, values, (x.npu(),))[0].square().sum()

    gradients = torch.func.grad(loss)(parameters)
    exact(x.double())[0].square().sum().backward()
    for name, p in exact.named_parameters():
        assert_close(gradients[name], p.grad, terms=512)


def test_dropout_between_layers() -> None:
    _, there = pair("LSTM", {"num_layers": 2, "dropout": 0.5})
    x = torch.randn(4, 3, 5, device="npu")
    assert not torch.equal(there(x)[0], there(x)[0])
    there.eval()
    assert torch.equal(there(x)[0], there(x)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["graph", "compiled"])
def test_in_graphs(way: str, kind: str) -> None:
    torch._dynamo.reset()
    exact, there = pair(kind, {"bidirectional": True})
    call = torch.compile(there, backend="npu") if way == "compiled" else there
    for _ in range(3):
        x = torch.randn(6, 2, 5)
        if way == "graph":
            with torch_npu.enable_graph():
                output = call(x.npu())[0]
        else:
            output = call(x.npu())[0]
        gradients = torch.autograd.grad(output.square().sum(), list(there.parameters()))
        expected = exact(x.double())[0]
        assert_close(output, expected, terms=512)
        for a, e in zip(gradients, torch.autograd.grad(expected.square().sum(), list(exact.parameters())), strict=True):
            assert_close(a, e, terms=512)


def test_inference_keeps_no_gates() -> None:
    _, there = pair("LSTM", {}, (8, 64))
    x = torch.randn(500, 4, 8, device="npu")
    there(x)
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_stats()["requested_bytes.all.current"]
    with torch.no_grad():
        there(x)
    gates = 500 * 4 * 4 * 64 * 4
    assert torch.npu.memory_stats()["requested_bytes.all.peak"] - before < 1.5 * gates  # the input's products alone


def test_gradients_need_what_training_leaves() -> None:
    gates, weight, h, c = (torch.randn(s, device="npu") for s in ((3, 2, 16), (16, 4), (2, 4), (2, 4)))
    output, last, cells, kept = torch.ops.npu._recurrent_layer(gates, weight, None, h, c, "LSTM", False, False)
    assert cells.shape == (1, 2, 4)
    assert torch.equal(cells[0], last)
    with pytest.raises(ValueError, match="with train=True"):
        torch.ops.npu._recurrent_layer_backward(output, None, output, weight, h, c, cells, kept, "LSTM", False)
    with pytest.raises(ValueError, match="must fit together"):
        torch.ops.npu._recurrent_layer(gates[..., :-1], weight, None, h, c, "LSTM", False, True)
