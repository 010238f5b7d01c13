"""scaled_dot_product_attention of 16-bit floats, forward and backward, with more queries than a decoding step has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_no_worse
from torch import Tensor

import torch_npu

# batch, heads, heads of keys, queries, keys, size of a head: around blocks of 64 queries, 256 and 512 keys and vectors.
SHAPES = [
    (1, 1, 1, 9, 1, 2), (2, 3, 3, 9, 9, 8), (1, 4, 2, 33, 70, 16), (1, 2, 2, 64, 256, 32), (1, 2, 1, 65, 257, 6),
    (2, 4, 4, 197, 197, 64), (1, 6, 2, 130, 600, 40), (1, 1, 1, 300, 33, 128), (1, 1, 1, 17, 64, 5),
    (1, 2, 1, 66, 1057, 12), (1, 1, 1, 545, 545, 8),
]  # fmt: skip
DTYPES = [torch.float16, torch.bfloat16]


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    batch, heads, key_heads, queries, keys, size = shape
    generator = torch.Generator().manual_seed(sum(shape))
    return [
        torch.randn(batch, h, n, size, generator=generator).to(dtype)
        for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys))
    ]


def results(given: list[Tensor], grad: Tensor, **options: object) -> list[Tensor]:
    """The attention, and the gradients."""
    leaves = [t.detach().requires_grad_() for t in given]
    out = F.scaled_dot_product_attention(*leaves, **options)  # type: ignore[arg-type]
    return [t.detach().cpu() for t in (out, *torch.autograd.grad(out, leaves, grad.to(out)))]


def check(given: list[Tensor], **options: object) -> None:
    options["enable_gqa"] = given[0].shape[1] != given[1].shape[1]
    mask = options.get("attn_mask")
    on_npu = options | ({"attn_mask": mask.npu()} if isinstance(mask, Tensor) else {})
    wide = options | (
        {"attn_mask": mask.double() if mask.is_floating_point() else mask} if isinstance(mask, Tensor) else {}
    )
    grad = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(0))
    torch_npu.clear_fallback_report()
    got = results([t.npu() for t in given], grad.npu(), **on_npu)
    assert not torch_npu.fallback_report()
    for a, b, c in zip(
        got, results(given, grad, **options), results([t.double() for t in given], grad, **wide), strict=True
    ):
        assert_no_worse(a, b, c)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(tensors(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[3] == s[4]], ids=str)
def test_causal(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(tensors(shape, dtype), is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = tensors(shape, dtype)
    batch, _, _, queries, keys, _ = shape
    generator = torch.Generator().manual_seed(2)
    check(given, attn_mask=torch.randn(batch, 1, queries, keys, generator=generator).to(dtype))
    seen = torch.rand(queries, keys, generator=generator) < 0.7
    seen[:, 0] = True
    check(given, attn_mask=seen)
    check(given, attn_mask=seen[:1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_strides_and_scales(dtype: torch.dtype) -> None:
    given = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors((2, 3, 3, 70, 70, 16), dtype)]
    check(given, scale=0.3)
    packed = torch.cat([t.transpose(1, 2).flatten(2) for t in given], -1)
    check([t.unflatten(2, (3, 16)).transpose(1, 2) for t in packed.chunk(3, -1)])
    shifted = torch.cat([packed[..., :1], packed], -1)[..., 1:]  # odd strides, at odd addresses
    check([t.unflatten(2, (3, 16)).transpose(1, 2) for t in shifted.chunk(3, -1)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_queries_that_see_nothing_and_numbers_that_are_none(dtype: torch.dtype) -> None:
    given = [t.npu().requires_grad_() for t in tensors((1, 2, 2, 40, 300, 8), dtype)]
    seen = torch.ones(40, 300, dtype=torch.bool)
    seen[7] = False
    out = F.scaled_dot_product_attention(*given, attn_mask=seen.npu())
    out.sum().backward()
    assert (out[:, :, 7] == 0).all()
    for leaf in given:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
    with torch.no_grad():
        given[1][0, 0, 290, 3] = float("nan")
        out = F.scaled_dot_product_attention(*given)
    assert out[0, 0].isnan().all()
    assert out[0, 1].isfinite().all()
