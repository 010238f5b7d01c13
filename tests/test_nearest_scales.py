"""Nearest resampling by factors that float32, in which CANN takes them, does not hold."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


@pytest.mark.parametrize("shape", [(2, 3, 20), (2, 3, 9, 11), (1, 2, 5, 6, 7)], ids=str)
@pytest.mark.parametrize("factor", [1.7, 0.6, 2.3, 1 / 3, 2, 1.1])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_same_elements_as_on_the_cpu(shape: tuple[int, ...], factor: float, mode: str) -> None:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode)

    x = torch.randn(shape).requires_grad_()
    y = x.detach().npu().requires_grad_()
    expected, result = resize(x), resize(y)
    assert torch.equal(result.cpu(), expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(y.grad.cpu(), x.grad)
