"""Dimensions of a view in terms of the loops that compute what it is a view of: axes are cut, runs of them joined."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

Size = int | torch.SymInt


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal."""
    return a is b or (a == b if isinstance(a, int) and isinstance(b, int) else statically_known_true(a == b))


def is_one(size: Size) -> bool:
    return same(size, 1)


def regroup(sizes: Sequence[Size], wanted: Sequence[Size]) -> tuple[list[list[Size]], list[int]] | None:
    """How axes are cut so that runs of the pieces have the wanted sizes, both outermost first and without ones.

    Returns:
        The pieces of each axis and how many pieces each wanted size takes; None if there is no way, or none is known
        for symbolic sizes.
    """
    first = 0
    while first < min(len(sizes), len(wanted)) and same(sizes[first], wanted[first]):
        first += 1
    last = 0
    while last < min(len(sizes), len(wanted)) - first and same(sizes[-1 - last], wanted[-1 - last]):
        last += 1
    middle = _cut(sizes[first : len(sizes) - last], wanted[first : len(wanted) - last])
    if middle is None:
        return None
    pieces, counts = middle
    ends = [[n] for n in sizes]
    return [*ends[:first], *pieces, *ends[len(sizes) - last :]], [1] * first + counts + [1] * last


def _cut(sizes: Sequence[Size], wanted: Sequence[Size]) -> tuple[list[list[Size]], list[int]] | None:
    if (len(sizes) == 1 or len(wanted) == 1) and not same(math.prod(sizes), math.prod(wanted)):
        return None
    if len(sizes) == 1:
        return [list(wanted)], [1] * len(wanted)
    if len(wanted) == 1:
        return [[n] for n in sizes], [len(sizes)]
    pieces: list[list[Size]] = [[] for _ in sizes]
    counts = [0] * len(wanted)
    axis = dim = 0
    left = need = 1
    while axis < len(sizes) or dim < len(wanted):
        if axis == len(sizes) or dim == len(wanted):
            return None
        size, target = sizes[axis], wanted[dim]
        if not isinstance(size, int) or not isinstance(target, int):
            return None
        left, need = left if pieces[axis] else size, need if counts[dim] else target
        piece = min(left, need)
        if left % piece or need % piece:
            return None
        pieces[axis].append(piece)
        counts[dim] += 1
        left, need = left // piece, need // piece
        axis, dim = axis + (left == 1), dim + (need == 1)
    return pieces, counts
