"""Writing and reading by indices: caches of keys and values, rows of tables."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


def _with_blocks(operator: str, data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """``data`` with block b of ``updates`` written from ``indices[b]`` on along ``axis``."""
    place = axis + data.dim() if axis < 0 else axis
    fits = data.dim() == updates.dim() >= 2 and 0 < place < data.dim()
    fits = fits and all(
        d == place or a == b for d, (a, b) in enumerate(zip(data.shape, updates.shape, strict=True)) if d
    )
    if not fits or updates.shape[0] > data.shape[0] or updates.shape[place] > data.shape[place]:
        expected = "data and updates that differ in the first dimension and along axis, which is not the first, only"
        refuse(operator, expected, [list(data.shape), list(updates.shape), axis])
    if indices.shape != updates.shape[:1]:
        refuse(operator, f"indices of shape [{updates.shape[0]}]", list(indices.shape))
    shape = [1] * data.dim()
    shape[0] = -1
    start = indices.long().view(shape)
    shape[0], shape[place] = 1, -1
    rows = start + torch.arange(updates.shape[place], device=data.device).view(shape)
    return data.scatter(place, rows.expand(updates.shape), updates)


@composed("scatter_update(Tensor self, Tensor indices, Tensor updates, int axis) -> Tensor")
def scatter_update(self: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """self with updates[b] written into self[b] from indices[b] on along axis, for each b of the first dimension."""
    return _with_blocks("scatter_update", self, indices, updates, axis)


@composed("scatter_update_(Tensor(a!) self, Tensor indices, Tensor updates, int axis) -> Tensor(a!)")
def scatter_update_(self: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """scatter_update in place."""
    return self.copy_(_with_blocks("scatter_update_", self, indices, updates, axis))


def _at_points(operator: str, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """``data`` with ``updates`` at the coordinates that the last dimension of ``indices`` holds."""
    count = indices.shape[-1] if indices.dim() else 0
    if not 0 < count <= data.dim() or updates.shape != indices.shape[:-1] + data.shape[count:]:
        refuse(
            operator,
            "indices [..., k] and updates of indices' other dimensions and self's behind k",
            [list(data.shape), list(indices.shape), list(updates.shape)],
        )
    return data.index_put(list(indices.long().unbind(-1)), updates)


@composed("npu_scatter_nd_update(Tensor self, Tensor indices, Tensor updates) -> Tensor")
def scatter_nd_update(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """self with updates at the places whose first coordinates the last dimension of indices holds."""
    return _at_points("npu_scatter_nd_update", self, indices, updates)


@composed("npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)")
def scatter_nd_update_(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """npu_scatter_nd_update in place."""
    return self.copy_(_at_points("npu_scatter_nd_update_", self, indices, updates))


def _lists(
    operator: str, data: list[Tensor], indices: Tensor, updates: Tensor, mask: Tensor | None, reduce: str, axis: int
) -> list[Tensor]:
    if reduce != "update":
        refuse(operator, "reduce 'update'", reduce)
    place = axis + updates.dim() if axis < 0 else axis
    if updates.dim() < 2 or updates.shape[0] != len(data) or indices.shape != (len(data),) or place < 1:
        refuse(operator, f"updates [{len(data)}, ...], indices [{len(data)}] and an axis behind the first", axis)
    if mask is not None and mask.shape != (len(data),):
        refuse(operator, f"mask of shape [{len(data)}]", list(mask.shape))
    results = []
    for i, tensor in enumerate(data):
        written = _with_blocks(operator, tensor[None], indices[i : i + 1], updates[i : i + 1], place)[0]
        results.append(written if mask is None else torch.where(mask[i] != 0, written, tensor))
    return results


_LIST = "Tensor indices, Tensor updates, Tensor? mask=None, str reduce='update', int axis=-2"


@composed(f"npu_scatter_list(Tensor[] self, {_LIST}) -> Tensor[]")
def scatter_list(
    self: list[Tensor],
    indices: Tensor,
    updates: Tensor,
    mask: Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> list[Tensor]:
    """Each of self with updates[i] written from indices[i] on along axis (of updates), where mask[i] is not 0."""
    return _lists("npu_scatter_list", self, indices, updates, mask, reduce, axis)


@composed(f"npu_scatter_list_(Tensor(a!)[] self, {_LIST}) -> ()")
def scatter_list_(
    self: list[Tensor],
    indices: Tensor,
    updates: Tensor,
    mask: Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> None:
    """npu_scatter_list in place."""
    for tensor, written in zip(
        self, _lists("npu_scatter_list_", self, indices, updates, mask, reduce, axis), strict=True
    ):
        tensor.copy_(written)


@composed("npu_gather_sparse_index(Tensor input, Tensor index) -> Tensor")
def gather_sparse_index(input: Tensor, index: Tensor) -> Tensor:
    """The rows of input that index names: [*index, *input without its first dimension]."""
    return input[index.long()]


@composed("npu_gather_sparse_index_backward(Tensor grad, SymInt[] self_sizes, Tensor index) -> Tensor")
def gather_sparse_index_backward(grad: Tensor, self_sizes: list[int], index: Tensor) -> Tensor:
    """Gradient of npu_gather_sparse_index by its input, whose shape is self_sizes."""
    rows = grad.reshape(-1, *self_sizes[1:])
    return grad.new_zeros(self_sizes).index_add(0, index.flatten(), rows)


@composed("_npu_index_add(Tensor self, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor")
def npu_index_add(self: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """index_add along the first dimension."""
    return self.index_add(0, index, source, alpha=alpha)


@composed("_npu_index_add_(Tensor(a!) self, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor(a!)")
def npu_index_add_(self: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """index_add_ along the first dimension."""
    return self.index_add_(0, index, source, alpha=alpha)
