"""npu_kv_rmsnorm_rope_cache in each of its cache modes against a loop over tokens in float64."""

from __future__ import annotations

import pytest
import torch
from tolerance import assert_close
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu

BATCH, LENGTH, PAGES, PAGE = 2, 5, 7, 4
MODES = ["Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"]


def arguments(
    mode: str, dtype: torch.dtype, own_values: bool, quantized: bool
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """kv, gamma, cos, sin, index, k_cache, ckv_cache, and what goes by name."""
    torch.manual_seed(0)
    rope, size, values = 32, 64, 32
    columns = size if own_values else size + rope
    kv = torch.randn(BATCH, 1, LENGTH, columns)
    cos, sin = torch.randn(2, BATCH, 1, LENGTH, rope)
    key_size, latent_size = (columns, values) if own_values else (rope, size)
    if mode == "Norm":
        index = torch.stack([torch.randperm(PAGE * 2)[:LENGTH] for _ in range(BATCH)])
        shape: tuple[int, ...] = (BATCH, 1, PAGE * 2)
    else:
        index = torch.randperm(PAGES * PAGE)[: BATCH * LENGTH]
        if "BLK" in mode:
            index = torch.randperm(PAGES)[: BATCH * -(-LENGTH // PAGE)] * PAGE
        shape = (PAGES, PAGE, 1)
    index.view(-1)[1] = -1
    stored = torch.int8 if quantized else dtype
    caches = [torch.full((*shape, n), 9).to(stored) for n in (key_size, latent_size)]
    named = {"v": torch.randn(BATCH, 1, LENGTH, values).to(dtype)} if own_values else {}
    if quantized:
        named |= {"k_rope_scale": torch.rand(key_size) * 20, "c_kv_scale": torch.rand(latent_size) * 20}
    floats = [t.to(dtype) for t in (kv, torch.rand(size), cos, sin)]
    return [*floats, index, *caches], named


def parts(kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    """What goes to the two caches, in float64."""

    def normal(x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gamma.double()

    def rotated(x: Tensor) -> Tensor:
        halves = torch.cat((x[..., ::2], x[..., 1::2]), -1)
        first, second = halves.chunk(2, -1)
        return halves * cos.double() + torch.cat((-second, first), -1) * sin.double()

    rope, wide = cos.shape[-1], kv.double()
    if v is None:
        return rotated(wide[..., len(gamma) :]), normal(wide[..., : len(gamma)])
    key = normal(wide)
    return torch.cat((rotated(key[..., :rope]), key[..., rope:]), -1), v.double()


def slot(index: Tensor, mode: str, b: int, t: int) -> tuple[int, int]:
    """Page and place of token t of sequence b; a negative page is padding."""
    if mode == "Norm":
        place = int(index[b, t])
        return (b, place) if place >= 0 else (-1, 0)
    if "BLK" in mode:
        start = int(index.view(BATCH, -1)[b, t // PAGE])
        return start // PAGE, t % PAGE
    row = int(index[b * LENGTH + t])
    return row // PAGE, row % PAGE


def put(cache: Tensor, page: int, place: int, row: Tensor, mode: str) -> None:
    if mode == "Norm":
        cache[page, 0, place] = row
    elif mode.endswith("NZ"):
        part = 32 if cache.dtype == torch.int8 else 16
        cache[page].view(-1, PAGE, part)[:, place] = row.view(-1, part)
    else:
        cache[page, place, 0] = row


@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "int8"])
@pytest.mark.parametrize("own_values", [False, True], ids=["latent", "own-values"])
@pytest.mark.parametrize("mode", MODES)
def test_caches(mode: str, own_values: bool, quantized: bool) -> None:
    tensors, named = arguments(mode, torch.float32, own_values, quantized)
    key, latent = parts(*tensors[:4], named.get("v"))
    expected = [t.clone() for t in tensors[5:]]
    scales = (named.get("k_rope_scale"), named.get("c_kv_scale"))
    for cache, values, scale in zip(expected, (key, latent), scales, strict=True):
        stored = values if scale is None else (values * scale.double()).round().clamp(-128, 127)
        for b in range(BATCH):
            for t in range(LENGTH):
                page, place = slot(tensors[4], mode, b, t)
                if page >= 0:
                    put(cache, page, place, stored[b, 0, t].to(cache.dtype), mode)
    moved = [t.npu() for t in tensors]
    with torch_npu.fallback_policy("error"):
        results = torch_npu.npu_kv_rmsnorm_rope_cache(
            *moved, **{k: t.npu() for k, t in named.items()}, cache_mode=mode, is_output_kv=True
        )
    assert results[0].data_ptr() == moved[5].data_ptr()
    for actual, wanted in zip(results[:2], expected, strict=True):
        if quantized:
            assert (actual.cpu().int() - wanted.int()).abs().max() <= 1  # a tie that float32 rounds the other way
        else:
            assert_close(actual, wanted, terms=64)
    for actual, wanted in zip(results[2:], (key, latent), strict=True):
        assert_close(actual, wanted, terms=64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    tensors, _ = arguments("PA", dtype, False, False)
    *_, key, latent = torch_npu.npu_kv_rmsnorm_rope_cache(
        *(t.npu() for t in tensors), cache_mode="PA", is_output_kv=True
    )
    for actual, wanted in zip((key, latent), parts(*tensors[:4], None), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, wanted, terms=4, atol=8 * torch.finfo(dtype).eps)


def test_strided_caches_and_version_2() -> None:
    tensors, _ = arguments("PA", torch.float32, False, False)
    moved = [t.npu() for t in tensors]
    wide = torch.zeros(PAGES, PAGE, 1, 64, device="npu")
    strided = wide[..., ::2]
    torch_npu.npu_kv_rmsnorm_rope_cache_v2(*moved[:5], strided, moved[6], cache_mode="PA")
    torch_npu.npu_kv_rmsnorm_rope_cache_v2(*moved[:5], moved[5].zero_(), moved[6], cache_mode="PA")
    assert torch.equal(strided, moved[5])
    assert not wide[..., 1::2].any()


def test_fake_shapes() -> None:
    tensors, named = arguments("PA", torch.float32, True, False)
    with FakeTensorMode():
        fake = [torch.empty(t.shape, dtype=t.dtype, device="npu") for t in tensors]
        v = torch.empty(named["v"].shape, device="npu")
        results = torch_npu.npu_kv_rmsnorm_rope_cache(*fake, v=v, cache_mode="PA")
    assert [t.shape for t in results] == [tensors[5].shape, tensors[6].shape, tensors[0].shape, named["v"].shape]


def test_wrong_arguments() -> None:
    tensors, _ = arguments("PA", torch.float32, False, False)
    moved = [t.npu() for t in tensors]
    operator = torch_npu.npu_kv_rmsnorm_rope_cache
    with pytest.raises(ValueError, match="cache_mode must be Norm, PA"):
        operator(*moved, cache_mode="paged")
    with pytest.raises(ValueError, match=r"index must be \[B, S\] in cache_mode Norm"):
        operator(*moved)
    with pytest.raises(ValueError, match="int8 and have scales"):
        operator(*moved, cache_mode="PA", k_rope_scale=torch.ones(32, device="npu"))
    with pytest.raises(ValueError, match="as many columns as gamma and cos"):
        operator(moved[0][..., :-1], *moved[1:], cache_mode="PA")
    with pytest.raises(TypeError, match="index"):
        operator(*moved[:4], moved[4].int(), *moved[5:], cache_mode="PA")
