"""Compiled resampling, padding by copies, windows: operators as they are, not gathers of single elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor

from torchtitan_npu.compile import fallbacks, reports

LINE, PLANE, SPACE = (2, 3, 20), (2, 3, 9, 11), (1, 2, 5, 6, 7)


def resized(mode: str, **options: bool) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=1.5, mode=mode, **options) * 2


def padded(mode: str, *amounts: int) -> Callable[[Tensor], Tensor]:
    return lambda x: F.pad(x, amounts, mode=mode) * 2


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "nearest line": (resized("nearest"), LINE),
    "nearest": (resized("nearest"), PLANE),
    "nearest space": (resized("nearest"), SPACE),
    "nearest exact": (resized("nearest-exact"), PLANE),
    "linear": (resized("linear"), LINE),
    "bilinear": (resized("bilinear"), PLANE),
    "bilinear with aligned corners": (resized("bilinear", align_corners=True), PLANE),
    "bilinear without aliasing": (resized("bilinear", antialias=True), PLANE),
    "bicubic": (resized("bicubic"), PLANE),
    "trilinear": (resized("trilinear"), SPACE),
    "reflected line": (padded("reflect", 3, 2), LINE),
    "reflected": (padded("reflect", 3, 2, 1, 2), PLANE),
    "replicated": (padded("replicate", 3, 2, 1, 2), PLANE),
    "replicated space": (padded("replicate", 1, 2, 1, 1, 2, 1), SPACE),
    "rolled": (lambda x: torch.roll(x, (2, -3), (2, 3)) * 2, PLANE),
    "windows": (lambda x: F.unfold(x, 3, padding=1, stride=2) * 2, PLANE),
    "sum of windows": (lambda x: F.fold(x, (4, 10), 2, stride=2) * 2, (2, 12, 10)),
    "overlapping windows": (lambda x: x.unfold(2, 8, 4) * 2, LINE),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbols"])
def test_training_and_inference(name: str, dynamic: bool) -> None:
    function, shape = FUNCTIONS[name]
    compiled = torch.compile(function, backend="npu", dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(shape).requires_grad_()
        y = x.detach().npu().requires_grad_()
        function(x).square().sum().backward()
        compiled(y).square().sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert_close(y.grad, x.grad, terms=16)
        with torch.no_grad():
            assert_close(compiled(y), function(x), terms=16)
        with torch.inference_mode():
            assert_close(compiled(y), function(x), terms=16)
    assert not fallbacks()
    operators = [u.operator for r in reports() for u in r.unfused]
    assert not any("index" in operator for operator in operators), operators
