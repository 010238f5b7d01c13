"""Nested tensors on npu, and the modules that make them."""

import copy

import pytest
import torch
from tolerance import assert_close
from torch import nn


def ragged(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 4, generator=generator, dtype=dtype).to(device) for n in (3, 1, 5)]


def test_to_padded_tensor():
    host, device = torch.nested.nested_tensor(ragged()), torch.nested.nested_tensor(ragged(), device="npu")
    assert device.device.type == "npu"
    assert device.is_nested
    padded = device.to_padded_tensor(-1.0)
    assert padded.device.type == "npu"
    assert torch.equal(padded.cpu(), host.to_padded_tensor(-1.0))


def test_moves_between_devices():
    host = torch.nested.nested_tensor(ragged())
    device = host.to("npu")
    assert device.device.type == "npu"
    back = device.cpu()
    assert back.device.type == "cpu"
    assert all(torch.equal(a, b) for a, b in zip(host.unbind(), back.unbind(), strict=True))


def test_components_share_memory():
    device = torch.nested.nested_tensor(ragged(), device="npu")
    first = device.unbind()[0]
    assert first.device.type == "npu"
    first.zero_()
    assert device.to_padded_tensor(0.0)[0].abs().sum().item() == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t * 2,
        lambda t: t + t,
        lambda t: nn.functional.relu(t),
        lambda t: nn.functional.gelu(t),
        lambda t: torch.softmax(t, -1),
        lambda t: nn.functional.linear(t, torch.linspace(0, 1, 8, device=t.device).reshape(2, 4)),
        lambda t: nn.functional.layer_norm(t, (4,), *torch.ones(2, 4, device=t.device)),
        lambda t: t.transpose(1, 2),
        lambda t: torch.matmul(t, t.transpose(1, 2)),
        lambda t: t.clone(),
    ],
)
def test_operators(call):
    host = call(torch.nested.nested_tensor(ragged()))
    device = call(torch.nested.nested_tensor(ragged(), device="npu"))
    assert device.device.type == "npu"
    for a, e in zip(device.unbind(), host.unbind(), strict=True):
        assert_close(a, e)


def test_gradients():
    results = []
    for device in ("cpu", "npu"):
        parts = [t.requires_grad_() for t in ragged(device)]
        nested = torch.nested.as_nested_tensor(parts)
        nn.functional.linear(nested, torch.eye(4, device=device)).to_padded_tensor(0.0).square().sum().backward()
        results.append([t.grad for t in parts])
    for host, npu in zip(*results, strict=True):
        assert_close(npu, host)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder_with_padding_mask(norm_first):
    """In eval mode the encoder goes through a nested tensor."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    host = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    device = copy.deepcopy(host).to("npu")
    x = torch.randn(3, 7, 16)
    mask = torch.arange(7) >= torch.tensor([7, 4, 2])[:, None]
    with torch.no_grad():
        expected = host(x, src_key_padding_mask=mask)
        actual = device(x.npu(), src_key_padding_mask=mask.npu())
    assert actual.device.type == "npu"
    assert_close(actual, expected, terms=32)


def test_jagged_layout():
    results = []
    for device in ("cpu", "npu"):
        nested = torch.nested.nested_tensor(ragged(device), layout=torch.jagged).requires_grad_()
        weight = torch.linspace(-1, 1, 12, device=device).reshape(3, 4).requires_grad_()
        out = nn.functional.relu(nn.functional.linear(nested, weight))
        out.to_padded_tensor(0.0).square().sum().backward()
        results.append((out.values(), weight.grad))
    for host, npu in zip(*results, strict=True):
        assert npu.device.type == "npu"
        assert_close(npu, host)
