"""What libraries take for granted of modules, optimizers and autograd on a device."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


def test_moving_a_module_keeps_its_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)  # made before the move, as before accelerator.prepare
    model.to("npu")
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(p.device.type == "npu" for p in parameters)
    before = [p.detach().clone() for p in parameters]
    model(torch.ones(3, 4, device="npu")).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    model.cpu()
    assert all(a is b and a.device.type == "cpu" for a, b in zip(model.parameters(), parameters, strict=True))


def test_tied_weights_stay_tied() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embed"].weight
    reference = copy.deepcopy(model)
    model.to("npu")
    assert model["head"].weight is model["embed"].weight
    for m, device in ((model, "npu"), (reference, "cpu")):
        m["head"](m["embed"](torch.arange(5, device=device))).square().sum().backward()
    torch.testing.assert_close(model["embed"].weight.grad.cpu(), reference["embed"].weight.grad)


def test_data_of_a_parameter_can_be_replaced() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.data = torch.ones(3, device="npu")
    assert parameter.device.type == "npu"
    parameter.data = torch.ones(2)
    assert parameter.device.type == "cpu"


def same_on_both(module: nn.Module, run: Callable[[nn.Module, Callable[[Tensor], Tensor]], Tensor]) -> None:
    """Compares results and gradients of ``run(module, to_device)``."""
    results = []
    for device in ("cpu", "npu"):
        there = copy.deepcopy(module).to(device)
        result = run(there, lambda t, device=device: t.to(device))
        if there.training:
            result.square().sum().backward()
        results.append([result.detach().cpu(), *(p.grad.cpu() for p in there.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder_with_padding(training: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not training).train(training)
    x = torch.randn(2, 4, 8)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.set_grad_enabled(training):  # the fused path of eval is for no_grad
        same_on_both(module, lambda m, to: m(to(x), src_key_padding_mask=to(padding))[:, :2])


def test_sparse_gradients_of_an_embedding() -> None:
    torch.manual_seed(0)
    weights = []
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        module = nn.Embedding(10, 4, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(module.parameters(), lr=0.1)
        module(torch.tensor([1, 3, 3], device=device)).square().sum().backward()
        assert module.weight.grad.is_sparse
        assert module.weight.grad.device.type == device
        optimizer.step()
        weights.append(module.weight.detach().cpu())
    torch.testing.assert_close(weights[1], weights[0])


def test_sparse_matrices() -> None:
    torch.manual_seed(0)
    dense = torch.randn(4, 5) * (torch.rand(4, 5) < 0.5)
    other = torch.randn(5, 3)
    sparse = dense.npu().to_sparse()
    assert sparse.device.type == "npu"
    torch.testing.assert_close(sparse.to_dense().cpu(), dense)
    torch.testing.assert_close(torch.sparse.mm(sparse, other.npu()).cpu(), dense @ other)
    moved = dense.to_sparse().to("npu")
    torch.testing.assert_close(moved.coalesce().cpu().to_dense(), dense)
    torch.testing.assert_close((moved + sparse).to_dense().cpu(), 2 * dense)


def test_memory_survives_a_refused_allocation() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"NPU out of memory\. Tried to allocate"):
        torch.empty(1 << 50, dtype=torch.uint8, device="npu")
    assert torch.ones(4, device="npu").sum().item() == 4


def test_attention_under_autocast_takes_mixed_dtypes() -> None:
    # LoRA: one of query, key, value comes out of an adapter in float32.
    q, k, v = (torch.randn(1, 2, 4, 8, device="npu", dtype=d) for d in (torch.bfloat16, torch.float32, torch.bfloat16))
    with torch.autocast("npu", torch.bfloat16):
        out = nn.functional.scaled_dot_product_attention(q, k, v)
    assert out.dtype is torch.bfloat16


def test_random_state_is_seed_and_offset() -> None:
    # DTensor's random operators read and write these 16 bytes.
    torch.npu.manual_seed(1234)
    state = torch.npu.get_rng_state()
    assert state.dtype is torch.uint8
    assert state.numel() == 16
    assert state.view(torch.int64)[0].item() == 1234
    first = torch.rand(5, device="npu")
    assert torch.npu.get_rng_state().view(torch.int64)[1].item() > 0
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="npu"), first)
