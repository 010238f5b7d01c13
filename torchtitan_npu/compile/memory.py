"""Where the intermediate tensors of a plan lie: small ones in an arena, large ones where the allocator has room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
LARGEST_IN_ARENA = 1 << 18
"""Bytes. An arena stays between runs, and while a backward's gradients pile up; a large tensor is there only in its
time, which costs a microsecond that its kernel does not notice."""


def is_large(size: int) -> bool:
    """Whether a tensor of so many bytes has memory only in its time."""
    return size > LARGEST_IN_ARENA


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


@dataclass(frozen=True)
class MemoryPlan:
    """All tensors of a plan, in the order they were given.

    Attributes:
        offsets: of small ones in the arena; of large ones above it, where a first fit would put them.
        arena_bytes: what stays between runs.
        bytes: the arena and the most that large tensors take at one time.
        naive_bytes: all tensors together.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    bytes: int
    naive_bytes: int


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Small tensors in an arena, large ones apart."""
    large = [is_large(t.bytes) for t in lifetimes]
    arena = plan_arena([t for t, apart in zip(lifetimes, large, strict=True) if not apart])
    above = plan_arena([t for t, apart in zip(lifetimes, large, strict=True) if apart])
    low, high = iter(arena.offsets), iter(above.offsets)
    offsets = tuple(arena.bytes + next(high) if apart else next(low) for apart in large)
    return MemoryPlan(offsets, arena.bytes, arena.bytes + above.bytes, arena.naive_bytes + above.naive_bytes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
