"""What comes before multi-head latent attention (torch_npu/composed/latent_attention.py), in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torch_npu
from tests.tolerance import assert_close

HE, HCQ, N, D, RANK, ROPE, BLOCKS, SIZE = 48, 32, 3, 8, 32, 32, 3, 4
DTYPE = torch.bfloat16
NAMES = ["token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr", "gamma_cq", "gamma_ckv", "sin", "cos"]


def sample(*tokens: int, quantized: int = 0) -> dict[str, Tensor]:
    sizes = [(*tokens, HE), (HE, HCQ), (HCQ, N * (D + ROPE)), (N, D, RANK), (HE, RANK + ROPE), (HCQ,), (RANK,)]
    sizes += [(*tokens, ROPE), (*tokens, ROPE)]
    values = {name: (torch.randn(size) / 4).to(DTYPE) for name, size in zip(NAMES, sizes, strict=True)}
    whole = {1: ["weight_uq_qr"], 2: ["token_x", "weight_dq", "weight_uq_qr", "weight_dkv_kr"]}.get(quantized, [])
    for name in whole:
        values[name] = torch.randint(-50, 50, values[name].shape, dtype=torch.int8)
    return values


def scales(tokens: int, quantized: int) -> dict[str, Tensor]:
    sizes = {"dequant_scale_w_uq_qr": (1, N * (D + ROPE)), "smooth_scales_cq": (1, HCQ)}
    if quantized == 2:
        sizes |= {"dequant_scale_x": (tokens, 1), "dequant_scale_w_dq": (1, HCQ)}
        sizes |= {"dequant_scale_w_dkv_kr": (1, RANK + ROPE)}
    return {name: torch.rand(size) / 50 + 0.01 for name, size in sizes.items()} if quantized else {}


def normed(x: Tensor, gamma: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double()


def rotated(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    half = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    turned = torch.cat((-x[..., 1::2], x[..., ::2]), -1)
    return half * cos.double() + turned * sin.double()


def dynamic(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round(), scale


def reference(v: dict[str, Tensor], s: dict[str, Tensor], quantized: int) -> dict[str, Tensor]:
    x, sin, cos = (v[name].flatten(0, -2).double() for name in ("token_x", "sin", "cos"))
    down, keys = x @ v["weight_dq"].double(), x @ v["weight_dkv_kr"].double()
    if quantized == 2:
        down = down * s["dequant_scale_x"] * s["dequant_scale_w_dq"]
        keys = keys * s["dequant_scale_x"] * s["dequant_scale_w_dkv_kr"]
    norm, scale = normed(down, v["gamma_cq"]), torch.empty(0)
    if quantized:
        norm, scale = dynamic(norm * s["smooth_scales_cq"])
    up = norm @ v["weight_uq_qr"].double()
    if quantized:
        up = up * scale * s["dequant_scale_w_uq_qr"]
    up = up.unflatten(1, (N, D + ROPE))
    return {
        "query": torch.einsum("tnd,ndr->tnr", up[..., :D], v["weight_uk"].double()),
        "query_rope": rotated(up[..., D:], sin[:, None], cos[:, None]),
        "keys": normed(keys[:, :RANK], v["gamma_ckv"]),
        "keys_rope": rotated(keys[:, RANK:], sin, cos),
        "norm": norm,
        "norm_scale": scale,
    }


def check(actual: Tensor, expected: Tensor, step: float = 0.0) -> None:
    """Several roundings to bfloat16 follow one another: errors are those of the largest element, or a quantum."""
    assert actual.shape == expected.shape
    eps = torch.finfo(DTYPE).eps
    assert_close(actual.float(), expected, atol=max(step, 6 * eps * expected.abs().max().item()))


def caches(dtype: torch.dtype = DTYPE, rope_dtype: torch.dtype = DTYPE) -> list[Tensor]:
    return [torch.zeros(BLOCKS, SIZE, 1, w, dtype=t).npu() for w, t in ((RANK, dtype), (ROPE, rope_dtype))]


def on_device(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.npu() for name, value in values.items()}


INDEX = torch.tensor([7, 2, 11, 4, 0])


@pytest.mark.parametrize("quantized", [0, 1, 2])
@pytest.mark.parametrize("tokens", [(5,), (1, 5)])
def test_queries_and_keys(quantized, tokens):
    values, factors = sample(*tokens, quantized=quantized), scales(5, quantized)
    expected = reference(values, factors, quantized)
    kv, kr = caches()
    weights = on_device(values).values()
    query, rope, kv_out, kr_out, scale = torch_npu.npu_mla_prolog_v2(
        *weights, INDEX.view(tokens).npu(), kv, kr, **on_device(factors)
    )
    assert query.shape == (*tokens, N, RANK)
    assert rope.shape == (*tokens, N, ROPE)
    assert query.dtype == rope.dtype == DTYPE
    assert kv_out.data_ptr() == kv.data_ptr()
    assert kr_out.data_ptr() == kr.data_ptr()
    assert scale.numel() == 0
    check(query.flatten(0, -3), expected["query"])
    check(rope.flatten(0, -3), expected["query_rope"])
    check(kv.view(-1, RANK)[INDEX.npu()], expected["keys"])
    check(kr.view(-1, ROPE)[INDEX.npu()], expected["keys_rope"])
    rest = [i for i in range(BLOCKS * SIZE) if i not in INDEX.tolist()]
    assert not kv.view(-1, RANK)[torch.tensor(rest).npu()].any()
    again = caches()
    results = torch_npu.npu_mla_prolog_v3_functional(
        *weights, *again, cache_index=INDEX.view(tokens).npu(), query_norm_flag=True, weight_quant_mode=quantized,
        **on_device(factors),
    )  # fmt: skip
    assert not any(c.any() for c in again)
    assert torch.equal(results[0], query)
    assert torch.equal(results[5], kv)
    check(results[3].flatten(0, -2), expected["norm"])
    assert results[4].shape == ((5, 1) if quantized else (0,))
    if quantized < 2:
        first = torch_npu.npu_mla_prolog(*weights, INDEX.view(tokens).npu(), *caches(), **on_device(factors))
        assert torch.equal(first[0], query)


def test_packed_and_plain_caches():
    weights = on_device(sample(5)).values()
    plain, packed = caches(), caches()
    torch_npu.npu_mla_prolog(*weights, INDEX.npu(), *plain)
    torch_npu.npu_mla_prolog(*weights, INDEX.npu(), *packed, cache_mode="PA_NZ")
    for a, b in zip(plain, packed, strict=True):
        assert torch.equal(b.view(BLOCKS, -1, SIZE, 16).transpose(1, 2).reshape(a.shape), a)
    direct = [torch.zeros(5, 1, w, dtype=DTYPE).npu() for w in (RANK, ROPE)]
    torch_npu.npu_mla_prolog_v3(*weights, *direct, cache_mode="TND")
    assert torch.equal(direct[0].view(5, RANK), plain[0].view(-1, RANK)[INDEX.npu()])


def test_caches_by_columns():
    values, factors = sample(5, quantized=1), scales(5, 1)
    ckv, ckr = torch.rand(1, RANK) * 20 + 5, torch.rand(1, ROPE) * 20 + 5
    expected = reference(values, factors, 1)
    kv, kr = caches(torch.int8, torch.int8)
    torch_npu.npu_mla_prolog(
        *on_device(values).values(), INDEX.npu(), kv, kr, quant_scale_ckv=ckv.npu(), quant_scale_ckr=ckr.npu(),
        **on_device(factors),
    )  # fmt: skip
    for cache, name, scale in ((kv, "keys", ckv), (kr, "keys_rope", ckr)):
        found = cache.flatten(0, -2)[INDEX.npu()]
        check(found, (expected[name] * scale).round().clamp(-128, 127), 1)


def test_quantized_query():
    values, factors = sample(5, quantized=2), scales(5, 2)
    expected, one = reference(values, factors, 2), torch.tensor([[30.0]])
    kv, kr = caches(torch.int8)
    query, rope, _, _, scale = torch_npu.npu_mla_prolog_v2(
        *on_device(values).values(), INDEX.npu(), kv, kr, quant_scale_ckv=one.npu(), **on_device(factors)
    )
    assert query.dtype == torch.int8
    assert scale.shape == (5, N, 1)
    check(query.cpu() * scale.cpu(), expected["query"])
    check(rope.cpu() * scale.cpu() / 30, expected["query_rope"])
    check(kv.view(-1, RANK)[INDEX.npu()], (expected["keys"] * 30).round().clamp(-128, 127), 1)


def test_no_tokens():
    kv, kr = caches()
    query, *_ = torch_npu.npu_mla_prolog(*on_device(sample(0)).values(), INDEX[:0].npu(), kv, kr)
    assert query.shape == (0, N, RANK)
    assert not kv.any()


def test_recorded():
    weights, (kv, kr), index = on_device(sample(5)), caches(), INDEX.npu()
    graph = torch.npu.NPUGraph()
    torch_npu.npu_mla_prolog(*weights.values(), index, kv, kr)
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        query, *_ = torch_npu.npu_mla_prolog(*weights.values(), index, kv, kr)
    weights["token_x"].copy_(torch.randn(5, HE))
    graph.replay()
    again = caches()
    expected, *_ = torch_npu.npu_mla_prolog(*weights.values(), index, *again)
    assert torch.equal(query, expected)
    assert torch.equal(kv.view(-1, RANK)[index], again[0].view(-1, RANK)[index])


REFUSED = {
    "shape": (ValueError, "weight_dq", lambda v, c: torch_npu.npu_mla_prolog(*v[:1], v[2], *v[2:], INDEX, *c)),
    "cache": (ValueError, r"a cache", lambda v, c: torch_npu.npu_mla_prolog(*v, INDEX, c[1][..., :4], c[1])),
    "index": (ValueError, "with cache_index", lambda v, c: torch_npu.npu_mla_prolog_v3(*v, *c)),
    "mode": (
        NotImplementedError, "weight_quant_mode must",
        lambda v, c: torch_npu.npu_mla_prolog_v3(*v, *c, weight_quant_mode=3),
    ),
    "scale": (
        NotImplementedError, "qc_qr_scale=2.0", lambda v, c: torch_npu.npu_mla_prolog_v3(*v, *c, qc_qr_scale=2.0)
    ),
    "missing": (
        ValueError, "no dequant_scale_w_uq_qr",
        lambda v, c: torch_npu.npu_mla_prolog(*v[:2], v[2].char(), *v[3:], INDEX, *c),
    ),
    "int8": (
        ValueError, "in int8 if and only if", lambda v, c: torch_npu.npu_mla_prolog(*v, INDEX, c[0], c[1].char())
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    error, message, call = REFUSED[case]
    with pytest.raises(error, match=message):
        call(list(sample(5).values()), [c.cpu() for c in caches()])
