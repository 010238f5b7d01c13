"""Twins on device npu of CPU tensors, and the comparison of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tolerance import assert_close, assert_no_worse
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "npu"
BELOW_FLOAT64 = (torch.float16, torch.bfloat16, torch.float32)


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def to_npu(tree: Any, share: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """The same tree on device npu: bytes, sizes, strides, offsets, lazy bits and sharing of storages are kept.

    Devices among the arguments become npu, too. Tensors become leaves.
    """
    storages: dict[int, torch.UntypedStorage] = {} if share is None else share

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return _move_tensor(leaf, storages)
        if leaf == "cpu" or leaf == torch.device("cpu"):
            return torch.device(DEVICE)
        return leaf

    return tree_map(move, tree)


def _move_tensor(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.detach().to(DEVICE).requires_grad_(tensor.requires_grad)
    plain = tensor.detach()
    plain = plain.conj() if tensor.is_conj() else plain
    plain = plain._neg_view() if tensor.is_neg() else plain
    storage = plain.untyped_storage()
    if storage._cdata not in storages:
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        storages[storage._cdata] = flat.to(DEVICE).untyped_storage()
    twin = torch.empty(0, dtype=tensor.dtype, device=DEVICE)
    twin.set_(storages[storage._cdata], plain.storage_offset(), plain.size(), plain.stride())
    twin = twin._neg_view() if tensor.is_neg() else twin
    twin = twin.conj() if tensor.is_conj() else twin
    return twin.requires_grad_(tensor.requires_grad)


def layout_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of dimensions that have any extent."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def assert_same(
    actual: Any,
    expected: Any,
    *,
    values: bool = True,
    what: str = "result",
    reference: Callable[[], Any] | None = None,
) -> None:
    """Raises AssertionError unless ``actual`` is on npu what ``expected`` is on the CPU.

    Compared are structure, dtype, shape, strides, layout, lazy bits, requires_grad and, if ``values``, values.
    Plain Python results must be equal. ``reference`` computes the same in float64: it judges values of lower
    precision that differ by more than the tolerance.
    """
    actual_leaves, expected_leaves = tree_leaves(actual), tree_leaves(expected)
    assert len(actual_leaves) == len(expected_leaves), (
        f"{what}: {len(actual_leaves)} parts, {len(expected_leaves)} on CPU"
    )
    for i, (a, e) in enumerate(zip(actual_leaves, expected_leaves, strict=True)):
        name = what if len(actual_leaves) == 1 else f"{what}[{i}]"
        if isinstance(e, torch.Tensor):
            assert isinstance(a, torch.Tensor), f"{name}: {type(a).__name__} instead of a tensor"
            _assert_same_tensor(a, e, values, name, reference and (lambda i=i: tree_leaves(reference())[i]))
        elif values and isinstance(e, bool | int | str | torch.dtype):
            assert a == e, f"{name}: {a!r}, on the CPU {e!r}"
        elif values and isinstance(e, float | complex):
            torch.testing.assert_close(a, e, equal_nan=True)
        else:
            assert type(a) is type(e), f"{name}: {type(a).__name__}, on the CPU {type(e).__name__}"


def _assert_same_tensor(
    actual: torch.Tensor,
    expected: torch.Tensor,
    values: bool,
    name: str,
    reference: Callable[[], torch.Tensor] | None,
) -> None:
    assert actual.device.type == DEVICE, f"{name} is on {actual.device}"
    questions: dict[str, Callable[[torch.Tensor], Any]] = {
        "dtype": lambda t: t.dtype,
        "shape": lambda t: tuple(t.shape),
        "layout": lambda t: t.layout,
        "requires_grad": lambda t: t.requires_grad,
        "conjugate bit": lambda t: t.is_conj(),
        "negative bit": lambda t: t.is_neg(),
        "strides": layout_of,
    }
    for question, ask in questions.items():
        a, e = ask(actual), ask(expected)
        assert a == e, f"{name}: {question} is {a}, on the CPU {e}"
    if values:
        host, expected = actual.detach().cpu(), expected.detach()
        if host.dtype is torch.complex32:  # of which the CPU knows no comparison
            host, expected = torch.view_as_real(host), torch.view_as_real(expected)
        if host.layout is torch.strided and not host.is_quantized and torch.equal(host, expected):
            return
        try:
            assert_close(host, expected, check_stride=False, msg=lambda m: f"{name}: {m}")
        except AssertionError:
            if reference is None or host.dtype not in BELOW_FLOAT64 or host.layout is not torch.strided:
                raise
            # Of long chains, such as gradients of householder_product: two results that are equally good differ.
            assert_no_worse(host, expected, reference(), factor=1.5)


def sharing(outputs: Any, inputs: Any) -> list[list[bool]]:
    """Which output shares its storage with which input."""

    def storage(t: torch.Tensor) -> int:
        return t.untyped_storage()._cdata if t.layout is torch.strided and t.numel() else -1

    addresses = [storage(t) for t in tensors(inputs)]
    return [[storage(o) == a != -1 for a in addresses] for o in tensors(outputs)]
