"""Sizes of a graph as numbers: which symbols its inputs fix, and what expressions of them are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph


class SizeReader:
    """Finds the values of a graph's symbols in its arguments."""

    def __init__(self, graph: Graph) -> None:
        self._sources: dict[sympy.Symbol, tuple[int, int | None]] = {}
        for number, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._note(value, (number, None))
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    self._note(size, (number, dim))
        self._symbols = list(self._sources)

    def _note(self, size: Any, source: tuple[int, int | None]) -> None:
        if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
            self._sources.setdefault(size.node.expr, source)

    def unknown_in(self, values: Any) -> str:
        """A size of tensors that no argument tells, such as how many elements a mask keeps; empty if there is none."""
        for tensor in torch.utils._pytree.tree_leaves(values):
            for size in (*tensor.shape, *tensor.stride()) if isinstance(tensor, torch.Tensor) else ():
                if isinstance(size, torch.SymInt) and not size.node.expr.free_symbols <= self._sources.keys():
                    return str(size)
        return ""

    def key(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """The values of all symbols, in a fixed order; () for a graph of fixed sizes."""
        return tuple(
            arguments[number] if dim is None else arguments[number].shape[dim] for number, dim in self._sources.values()
        )

    def resolver(self, key: tuple[int, ...]) -> Callable[[Any], int]:
        """The function from sizes to numbers for these values of the symbols."""
        values = dict(zip(self._symbols, key, strict=True))

        def number_of(size: Any) -> int:
            return int(size.node.expr.xreplace(values)) if isinstance(size, torch.SymInt) else int(size)

        return number_of
