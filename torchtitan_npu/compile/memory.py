"""The arena of a plan: where its intermediate tensors lie in one piece of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """A tensor of the plan: its bytes are needed from step ``first`` to step ``last``, both included."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class ArenaPlan:
    """Offsets of the tensors, in the order they were given, and the sizes of the arena and of all tensors together."""

    offsets: tuple[int, ...]
    bytes: int
    naive_bytes: int


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Places tensors, large ones first, each at the lowest offset where nothing lives at the same time."""
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].bytes, lifetimes[i].first)):
        own = lifetimes[i]
        size = _aligned(own.bytes)
        taken = sorted(
            (offsets[j], offsets[j] + _aligned(lifetimes[j].bytes))
            for j in placed
            if lifetimes[j].first <= own.last and own.first <= lifetimes[j].last
        )
        offset = 0
        for low, high in taken:
            if offset + size <= low:
                break
            offset = max(offset, high)
        offsets[i] = offset
        placed.append(i)
    total = max((o + _aligned(t.bytes) for o, t in zip(offsets, lifetimes, strict=True)), default=0)
    return ArenaPlan(tuple(offsets), total, sum(_aligned(t.bytes) for t in lifetimes))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
