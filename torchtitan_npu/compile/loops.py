"""The loops of a kernel: the order of a group's axes, and which of them are one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True)
class MergedAxes:
    """How the axes of a domain become those of a program: parallel ones first, neighbours merged."""

    runs: tuple[tuple[int, ...], ...]  # axes of the domain that are one of the program
    sizes: tuple[int, ...]
    reduced: tuple[bool, ...]

    @property
    def parallel_names(self) -> list[str]:
        return [f"a{i}" for i, reduced in enumerate(self.reduced) if not reduced]

    @property
    def reduced_names(self) -> list[str]:
        return [f"a{i}" for i, reduced in enumerate(self.reduced) if reduced]

    def apply(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Strides along the program's axes: those of the innermost axis of each run."""
        return tuple(strides[run[-1]] if run else 0 for run in self.runs)

    def axis_of(self, axis: int) -> int:
        """The program's axis that an axis of the domain is part of."""
        return next(i for i, run in enumerate(self.runs) if axis in run)

    def _elements(self, strides: Sequence[int]) -> int:
        count = 1
        for size, stride in zip(self.sizes, strides, strict=True):
            count *= size if stride else 1
        return count

    def choose_lanes(self, uses: Sequence[tuple[Node, tuple[int, ...]]], writes: int) -> str:
        """The axis along which most elements have neighbours; later ones win, as they are the inner loops.

        Without reductions what is written counts twice: storing apart costs more than loading apart.
        """
        last_reduced = max((i for i, r in enumerate(self.reduced) if r), default=-1)
        merged = [self.apply(strides) for _, strides in uses]
        weights = [self._elements(strides) for strides in merged]
        if last_reduced < 0:
            weights[len(merged) - writes :] = [2 * w for w in weights[len(merged) - writes :]]

        def score(axis: int) -> tuple[int, int]:
            return sum(w for w, strides in zip(weights, merged, strict=True) if strides[axis] == 1), axis

        candidates = [i for i, reduced in enumerate(self.reduced) if not reduced or i == last_reduced]
        return f"a{max(candidates, key=score)}"


def loop_order(sizes: Sequence[int], all_strides: Sequence[Sequence[int]]) -> list[int]:
    """The axes as the largest tensor lies in memory, outermost first; of several the last, which is written."""

    def elements(number: int) -> tuple[int, int]:
        return math.prod(n for n, s in zip(sizes, all_strides[number], strict=True) if s), number

    if not all_strides:
        return list(range(len(sizes)))
    largest = all_strides[max(range(len(all_strides)), key=elements)]
    return sorted(range(len(sizes)), key=lambda axis: -largest[axis])


def merge_axes(
    sizes: Sequence[int], reduced: frozenset[int], order: Sequence[int], all_strides: Sequence[Sequence[int]]
) -> MergedAxes:
    """Parallel axes, then reduced ones; neighbours are one where all tensors step through them as through one."""
    runs: list[tuple[int, ...]] = []
    for axis in sorted(order, key=lambda axis: axis in reduced):
        if sizes[axis] == 1 and axis not in reduced:
            continue
        if runs and (runs[-1][-1] in reduced) == (axis in reduced):
            outer = runs[-1][-1]
            if all(s[outer] == s[axis] * sizes[axis] for s in all_strides):
                runs[-1] = (*runs[-1], axis)
                continue
        runs.append((axis,))
    if not runs:
        return MergedAxes(((),), (1,), (False,))
    products = []
    for run in runs:
        product = 1
        for axis in run:
            product *= sizes[axis]
        products.append(product)
    return MergedAxes(tuple(runs), tuple(products), tuple(run[-1] in reduced for run in runs))
