"""torch.nn.attention.flex_attention on npu: eager, compiled, in autocast; against scores that are spelled out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tolerance import assert_close
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from torchtitan_npu.compile import fallbacks, reports

LENGTH, WINDOW = 50, 20  # no multiple of the mask's blocks


def local(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < WINDOW)


def mask_on(device: str) -> BlockMask:
    return create_block_mask(local, None, None, LENGTH, LENGTH, device=device, BLOCK_SIZE=32)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: BlockMask) -> Tensor:
    def score(s: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s + bias[head, j] + (j - i) * 0.1

    result = flex_attention(torch.sin(q), k, v, score_mod=score, block_mask=mask, enable_gqa=True)
    assert isinstance(result, Tensor)
    return result * 2


def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = torch.sin(q) @ k.mT * q.shape[-1] ** -0.5 + bias[:, None] + (j - i) * 0.1
    kept = (i >= j) & (i - j < WINDOW)
    return scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v * 2


def operands() -> list[Tensor]:
    shapes = [(2, 4, LENGTH, 16), (2, 2, LENGTH, 16), (2, 2, LENGTH, 16), (4, LENGTH)]
    return [torch.randn(shape) for shape in shapes]


def assert_near(actual: Tensor | None, exact: Tensor | None, in_bfloat16: bool = False) -> None:
    """Against float64. In autocast operands are rounded, too: 2 % of the largest element."""
    assert actual is not None
    assert exact is not None
    allowed = {"atol": 0.02 * exact.detach().abs().max().item()} if in_bfloat16 else {}
    assert_close(actual.float(), exact.float(), terms=2048, **allowed)


WAYS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "eager": lambda f: f,
    "npu": lambda f: torch.compile(f, backend="npu"),
    "aot_eager": lambda f: torch.compile(f, backend="aot_eager"),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("autocast", [False, True])
def test_values_and_gradients(way: str, autocast: bool) -> None:
    exact = [t.double().requires_grad_() for t in operands()]
    ours = [t.detach().float().npu().requires_grad_() for t in exact]
    reference(*exact).square().sum().backward()
    function = WAYS[way](attend)
    for _ in range(3):
        for tensor in ours:
            tensor.grad = None
        with torch.autocast("npu", torch.bfloat16, enabled=autocast):
            result = function(*ours, mask_on("npu"))
        result.float().square().sum().backward()
    assert result.dtype == (torch.bfloat16 if autocast else torch.float32)
    assert_near(result, reference(*exact), autocast)
    for tensor, wanted in zip(ours, exact, strict=True):
        assert_near(tensor.grad, wanted.grad, autocast)


def test_a_plan_has_it_in_parts_that_fuse() -> None:
    given = [t.npu() for t in operands()]
    result = torch.compile(attend, backend="npu", fullgraph=True)(*given, mask_on("npu"))
    assert_near(result, reference(*[t.double().cpu() for t in given]))
    assert not fallbacks()
    (noted,) = reports()
    assert noted.passes["spell_out_flex_attention"] == 1


@pytest.mark.slow
def test_inductor() -> None:
    exact = [t.double().requires_grad_() for t in operands()]
    ours = [t.detach().float().npu().requires_grad_() for t in exact]
    reference(*exact).square().sum().backward()
    result = torch.compile(attend)(*ours, mask_on("npu"))
    result.square().sum().backward()
    assert_near(result, reference(*exact))
    for tensor, wanted in zip(ours, exact, strict=True):
        assert_near(tensor.grad, wanted.grad)


def test_refusals_are_those_of_other_devices() -> None:
    q = torch.randn(1, 1, 8, 4, device="npu")
    with pytest.raises(ValueError, match="same embedding dimension"):
        flex_attention(q, torch.randn(1, 1, 8, 3, device="npu"), q)
