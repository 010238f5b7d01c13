"""Runs a function on npu tensors and on the same CPU tensors and asks for the same results, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import torch_npu


def to_npu(value: Any) -> Any:
    """Moves tensors inside `value` to the device with their strides; 0-dim CPU tensors marked by `host` stay."""

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if getattr(x, "stays_on_host", False):
            return x
        if x.is_contiguous() or x.numel() == 0:
            return x.npu()
        # With gaps and orders as they are: a view of the moved storage.
        base = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        return torch.as_strided(base.npu(), x.shape, x.stride(), x.storage_offset())

    return tree_map(move, value)


def host(value: float | int | bool | complex, dtype: torch.dtype) -> torch.Tensor:
    """A 0-dim tensor that stays on the CPU when the other arguments move."""
    tensor = torch.tensor(value, dtype=dtype)
    tensor.stays_on_host = True
    return tensor


def clone(value: Any) -> Any:
    """Copies of the tensors inside `value`, with their strides, as operators may write to them."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or getattr(x, "stays_on_host", False):
            return x
        base = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).clone()
        return torch.as_strided(base, x.shape, x.stride(), x.storage_offset())

    return tree_map(one, value)


# cann_host's own element-wise kernels are within 2 units in the last place of the exact result, as ATen's are: the two
# may differ by 4. 16-bit results are rounded once here and up to three times there, which shows where terms cancel.
ROUNDING = {
    torch.float32: {"rtol": 4 * 2**-23, "atol": 2**-23},
    torch.float64: {"rtol": 4 * 2**-52, "atol": 2**-52},
    torch.float16: {"rtol": 2 * 2**-10, "atol": 2 * 2**-10},
    torch.bfloat16: {"rtol": 2 * 2**-7, "atol": 2 * 2**-7},
}


def rounding(dtype: torch.dtype, terms: int = 1) -> dict[str, float]:
    """How far a result on npu may be from the CPU's: nothing but rounding, and nothing at all for other dtypes.

    `terms`: how many numbers near 1 are added, in another order than on the CPU.
    """
    return {bound: value * terms**0.5 for bound, value in ROUNDING.get(dtype, {"rtol": 0, "atol": 0}).items()}


def same(npu: Any, cpu: Any, what: str, strides: bool, terms: int = 1) -> None:
    """Asserts that both have the same structure, dtypes, shapes, (strides) and values."""
    npu_leaves, npu_tree = tree_flatten(npu)
    cpu_leaves, cpu_tree = tree_flatten(cpu)
    assert npu_tree == cpu_tree, what
    for n, c in zip(npu_leaves, cpu_leaves, strict=True):
        if not isinstance(c, torch.Tensor):
            assert n == c, what
            continue
        assert n.device.type == "npu" or n.is_cpu == getattr(c, "stays_on_host", c.is_cpu), what
        assert (n.dtype, n.shape) == (c.dtype, c.shape), f"{what}: {n.dtype}{[*n.shape]}, CPU {c.dtype}{[*c.shape]}"
        assert not strides or n.stride() == c.stride(), f"{what}: strides {n.stride()}, CPU {c.stride()}"
        close = rounding(c.dtype, terms)
        torch.testing.assert_close(n.cpu(), c, **close, equal_nan=True, msg=lambda m: f"{what}: {m}")


def compare(
    fn: Callable[..., Any],
    *args: Any,
    native: bool = True,
    strides: bool = True,
    what: str = "",
    terms: int = 1,
    **kwargs: Any,
) -> None:
    """Same results and same changes of the arguments on npu and CPU; `native`: without a fallback to the CPU."""
    cpu_args, cpu_kwargs = clone(args), clone(kwargs)
    npu_args, npu_kwargs = to_npu(args), to_npu(kwargs)
    try:
        cpu = fn(*cpu_args, **cpu_kwargs)
    except (RuntimeError, IndexError) as error:
        raised = error
    else:
        raised = None
    if raised is not None:
        try:
            fn(*npu_args, **npu_kwargs)
        except (RuntimeError, IndexError):
            return
        raise AssertionError(f"{what}: the CPU raises {raised!r}, npu does not")
    with torch_npu.fallback_policy("error") if native else contextlib.nullcontext():
        npu = fn(*npu_args, **npu_kwargs)
    same(npu, cpu, what, strides, terms)
    same(npu_args, cpu_args, f"{what}, arguments afterwards", strides=True)


def sample(shape: tuple[int, ...], dtype: torch.dtype, low: float = -3, high: float = 3, seed: int = 0) -> torch.Tensor:
    """Random numbers of [low, high), the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    if dtype == torch.bool:
        return values > (low + high) / 2
    if dtype.is_complex:
        return torch.complex(values, values.flip(-1) if values.dim() else values).to(dtype)
    if not dtype.is_floating_point and not dtype.is_signed:
        values = values.abs()
    return values.to(dtype)


def layouts(dtype: torch.dtype, low: float = -3, high: float = 3) -> dict[str, torch.Tensor]:
    """A few shapes and memory layouts that kernels tend to get wrong."""
    return {
        "0-dim": sample((), dtype, low, high),
        "empty": sample((0, 3), dtype, low, high),
        "odd": sample((7, 13), dtype, low, high),
        "transposed": sample((5, 9), dtype, low, high).t(),
        "gaps": sample((6, 11), dtype, low, high)[:, ::2],
        "channels_last": sample((2, 3, 4, 5), dtype, low, high).contiguous(memory_format=torch.channels_last),
    }
