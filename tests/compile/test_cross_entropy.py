"""Cross-entropy in kernels of its own: values, gradients, options, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close
from torch import Tensor

from torchtitan_npu.compile import reports

ROWS, CLASSES = 137, 4001


def data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits = 4 * torch.randn(ROWS, CLASSES)
    target = torch.randint(0, CLASSES, (ROWS,))
    target[:9] = -100
    return logits.to(dtype), target


def found() -> int:
    return sum(r.passes.get("fuse_cross_entropy", 0) for r in reports() if r.kind != "backward")


def check(logits: Tensor, target: Tensor, **options: Any) -> None:
    """Loss and gradient against float64."""
    ours = logits.npu().requires_grad_()
    exact = logits.double().requires_grad_()
    on_npu = {k: v.npu() if isinstance(v, Tensor) else v for k, v in options.items()}
    in_double = {k: v.double() if isinstance(v, Tensor) else v for k, v in options.items()}
    got = torch.compile(F.cross_entropy, backend="npu", dynamic=False)(ours, target.npu(), **on_npu)
    expected = F.cross_entropy(exact, target, **in_double)
    assert_close(got, expected, terms=16)
    got.float().square().sum().backward()
    expected.square().sum().backward()
    assert ours.grad is not None
    assert exact.grad is not None
    assert_close(ours.grad, exact.grad, terms=16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradient(dtype: torch.dtype, reduction: str) -> None:
    if dtype == torch.float16 and reduction == "sum":
        pytest.skip("the square of the sum is beyond float16")
    check(*data(dtype), reduction=reduction)
    assert found() == 1
    names = [u.operator for r in reports() for u in r.unfused]
    assert set(names) == {"aten.full", "aten.embedding"}
    for report in reports():
        matrices = [m for m in report.memory if m.bytes >= 2 * ROWS * CLASSES]
        assert not matrices, "log-softmax or one-hot classes lie in memory"


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.1, "reduction": "sum"},
        {"weight": torch.arange(1, CLASSES + 1) / CLASSES},
        {"ignore_index": 7},
    ],
    ids=lambda options: "-".join(options),
)
def test_options(options: dict[str, Any]) -> None:
    logits, target = data()
    if "ignore_index" in options:
        target = target.clamp(min=0)
        target[3:20] = 7
    check(logits, target, **options)
    assert found() == 1


def test_of_nothing_that_counts() -> None:
    logits, target = data()
    loss = torch.compile(F.cross_entropy, backend="npu")(logits.npu(), torch.full_like(target, -100).npu())
    assert loss.isnan().item()


def test_infinite_logits_and_ignored_rows() -> None:
    logits, target = data()
    logits[0], logits[20, 5], logits[21, int(target[21])] = float("nan"), float("-inf"), float("-inf")
    got = torch.compile(F.cross_entropy, backend="npu")(logits.npu(), target.npu(), reduction="none")
    assert_close(got, F.cross_entropy(logits.double(), target, reduction="none"), terms=16)


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_class_that_does_not_exist_raises(wrong: int) -> None:
    logits, target = (t.npu() for t in data())
    compiled = torch.compile(F.cross_entropy, backend="npu", dynamic=False)
    for _ in range(3):  # the plan, and the captured model
        compiled(logits, target)
    target[5] = wrong
    with pytest.raises(RuntimeError, match="Embedding"):
        compiled(logits, target)
    target[5] = 3
    assert compiled(logits, target).isfinite().item()


def test_number_of_rows_may_be_a_symbol() -> None:
    compiled = torch.compile(F.cross_entropy, backend="npu", dynamic=True)
    logits, target = data()
    for rows in (ROWS, 40):
        got = compiled(logits[:rows].npu(), target[:rows].npu())
        assert_close(got, F.cross_entropy(logits[:rows].double(), target[:rows]), terms=16)


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.randn(9, 50), torch.randint(0, 50, (9,))),  # small: two launches are less
        (torch.randn(2, 50, 6000), torch.randint(0, 50, (2, 6000))),
        (torch.randn(137, 4001), torch.randn(137, 4001).softmax(-1)),
    ],
    ids=["small", "images", "probabilities"],
)
def test_left_alone(arguments: tuple[Tensor, Tensor]) -> None:
    got = torch.compile(F.cross_entropy, backend="npu", dynamic=False)(*(a.npu() for a in arguments))
    logits, target = arguments
    exact = F.cross_entropy(logits.double(), target.double() if target.is_floating_point() else target)
    assert_close(got, exact, terms=256)
    assert found() == 0


def test_can_be_switched_off() -> None:
    logits, target = (t.npu() for t in data())
    torch.compile(F.cross_entropy, backend="npu", options={"passes": {"fuse_cross_entropy": False}})(logits, target)
    (report,) = reports()
    assert report.passes["fuse_cross_entropy"] == 0
    assert [u.operator for u in report.unfused] == ["aten.nll_loss_forward"]
