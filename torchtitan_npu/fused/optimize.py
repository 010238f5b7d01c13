"""Swaps modules' forwards for fused operators, each checked on a sample, all of it reversible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from torchtitan_npu.fused.converters import CONVERTERS, candidates
from torchtitan_npu.fused.offer import Forward, Offer


@dataclass(frozen=True)
class Swap:
    """One module that a converter recognised."""

    module: str  # its name in the model
    kind: str  # its class
    converter: str
    error: float | None  # largest difference on the sample, over the largest value; None: not swapped
    reason: str  # why it was not swapped, "" if it was

    @property
    def kept(self) -> bool:
        return self.error is not None


@dataclass
class Report:
    """What :func:`optimize` did. Prints as a table; :meth:`undo` takes everything back."""

    swaps: list[Swap] = field(default_factory=list)
    _replaced: list[tuple[nn.Module, Forward | None]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Gives the modules their own forwards back. Parameters were never copied, so that none are lost."""
        while self._replaced:
            _put_back(*self._replaced.pop())

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="fused operators in place of modules")
        for name in ("module", "class", "converter", "swapped", "error"):
            table.add_column(name)
        for s in self.swaps:
            outcome = "yes" if s.kept else f"no: {s.reason}"
            table.add_row(s.module, s.kind, s.converter, outcome, "" if s.error is None else f"{s.error:.1e}")
        console = Console(width=140)
        with console.capture() as capture:
            console.print(table)
        return capture.get()


def optimize(model: nn.Module, converters: Sequence[str] | None = None, tolerance: float | None = None) -> Report:
    """Puts fused operators in place of modules of ``model`` that compute the same.

    Args:
        model: on device npu. Its parameters are kept and stay trainable.
        converters: names of ``torchtitan_npu.fused.converters.CONVERTERS``; None: all of them.
        tolerance: largest error of a swap on a random sample, over the largest value of the result; None: 16 units in
            the last place for float32, 8 for float16 and bfloat16, more where a module sums up many roundings.

    Returns:
        what was swapped and what was not, and why. ``print(report)`` shows it, ``report.undo()`` takes it back.

    Raises:
        ValueError: for a converter that does not exist.
    """
    names = list(CONVERTERS) if converters is None else list(converters)
    if unknown := set(names) - set(CONVERTERS):
        raise ValueError(f"optimize: there are no converters {sorted(unknown)}; known: {', '.join(CONVERTERS)}")
    report = Report()
    covered: set[tuple[nn.Module, str]] = set()
    for name, module in model.named_modules():
        for converter, offer in candidates(module, [n for n in names if (module, n) not in covered]):
            if isinstance(offer, str):
                swap = Swap(name, type(module).__name__, converter, None, offer)
            else:
                swap = attempt(name, module, converter, offer, tolerance, report)
                covered |= {(m, converter) for m in offer.covers if swap.kept}
            report.swaps.append(swap)
    return report


def attempt(
    name: str, module: nn.Module, converter: str, offer: Offer, tolerance: float | None, report: Report
) -> Swap:
    """Keeps the forwards with which the module agrees best with itself, if they agree."""

    def refused(reason: str) -> Swap:
        return Swap(name, type(module).__name__, converter, None, reason)

    if not offer.builds_on_forward and any(is_replaced(m) for swap in offer.swaps for m in swap):
        return refused("its forward was replaced before")
    parameter = next(module.parameters())
    if parameter.device.type != "npu":
        return refused(f"its parameters are on {parameter.device.type}")
    if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return refused(f"its parameters are {parameter.dtype}")
    sample = _sample(offer, parameter)
    units = offer.units if parameter.dtype is torch.float32 else offer.half_units
    allowed = tolerance if tolerance is not None else units * torch.finfo(parameter.dtype).eps
    try:
        errors = _errors(module, offer, sample)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        return refused(f"it does not take {_described(sample)}: {error}".splitlines()[0])
    best = min(range(len(errors)), key=errors.__getitem__)
    if not errors[best] <= allowed:
        return refused(f"results differ by {errors[best]:.1e} of the largest, {allowed:.1e} is allowed")
    for m, forward in offer.swaps[best].items():
        report._replaced.append((m, _put(m, forward)))
    return Swap(name, type(module).__name__, converter, errors[best], "")


@torch.no_grad()
def _errors(module: nn.Module, offer: Offer, sample: _Sample) -> list[float]:
    """The module's error with each of the candidates, which are taken back."""
    positional, named = sample
    expected = _results(module(*positional, **named))
    errors = []
    for swap in offer.swaps:
        earlier = [(m, _put(m, forward)) for m, forward in swap.items()]
        try:
            actual = _results(module(*positional, **named))
        finally:
            for m, forward in earlier:
                _put_back(m, forward)
        if len(actual) != len(expected) or actual[0] is None:
            errors.append(float("inf"))
            continue
        # What a candidate leaves out (attention weights) is not compared.
        pairs = [(a, e) for a, e in zip(actual, expected, strict=True) if a is not None]
        errors.append(max(_error(a, e) for a, e in pairs))
    return errors


def is_replaced(module: nn.Module) -> bool:
    """Whether the module has a forward of its own (transformers leaves that of the class behind where it records)."""
    own = vars(module).get("forward")
    return own is not None and getattr(own, "__func__", None) is not type(module).forward


def _put(module: nn.Module, forward: Forward) -> Forward | None:
    """Gives the module a forward; returns the one that it had beside its class's."""
    earlier = vars(module).get("forward")
    module.forward = forward
    return earlier


def _put_back(module: nn.Module, forward: Forward | None) -> None:
    if forward is None:
        del module.forward  # the instance's; the class has its own
    else:
        module.forward = forward


_Sample = tuple[tuple[Any, ...], dict[str, Any]]


def _sample(offer: Offer, parameter: Tensor) -> _Sample:
    """Arguments of the module, with the dtype and on the device of its parameters."""

    def move(value: Any) -> Any:
        return value.to(parameter.device, parameter.dtype) if isinstance(value, Tensor) else value

    if isinstance(offer.sample, tuple):
        return (move(torch.randn(offer.sample, generator=torch.Generator().manual_seed(0))),), {}
    return (), tree_map(move, dict(offer.sample))


def _described(sample: _Sample) -> str:
    positional, named = sample
    shapes = [f"a tensor of shape {tuple(t.shape)}" for t in positional]
    return ", ".join(shapes + list(named))


def _results(result: Any) -> list[Tensor | None]:
    """What a module returns, as a list: a tensor, a tuple or one of transformers' outputs."""
    if isinstance(result, Tensor) or result is None:
        return [result]
    return [t for value in tuple(result[i] for i in range(len(result))) for t in _results(value)]


def _error(actual: Tensor, expected: Tensor | None) -> float:
    if expected is None or actual.shape != expected.shape:
        return float("inf")
    difference = (actual.float() - expected.float()).abs().max() / expected.float().abs().max()
    return float(difference)
