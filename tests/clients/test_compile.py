"""torch.compile with backends that keep ATen operators: graphs are captured and run on the device."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

Factory = Callable[[str], nn.Module]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
def test_forward(tiny: Factory, backend: str) -> None:
    model = tiny("llama").eval().to("npu")
    tokens = torch.arange(3, 27).view(2, 12).npu()
    with torch.no_grad():
        expected = model(tokens).logits
        compiled = torch.compile(model, backend=backend)(tokens).logits
    assert compiled.device.type == "npu"
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_training_step(tiny: Factory, name: str) -> None:
    gradients = []
    for compiled in (False, True):
        model = tiny(name).to("npu")
        tokens = torch.arange(3, 27).view(2, 12).npu()
        forward = torch.compile(model, backend="aot_eager") if compiled else model
        forward(input_ids=tokens, labels=tokens).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)
