"""What comes before multi-head latent attention: low-rank projections, norms, rotations and caches."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse, refuse_options

_WEIGHTS = (
    "Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, Tensor weight_dkv_kr, "
    "Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, Tensor rope_cos"
)
_SCALES = (
    "Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None, Tensor? dequant_scale_w_uq_qr=None, "
    "Tensor? dequant_scale_w_dkv_kr=None, Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, "
    "Tensor? smooth_scales_cq=None"
)
_EPSILONS = "float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05"
_MODES = (
    'str cache_mode="PA_BSND", bool query_norm_flag=False, int weight_quant_mode=0, int kv_cache_quant_mode=0, '
    "int query_quant_mode=0, int ckvkr_repo_mode=0, int quant_scale_repo_mode=0, int tile_size=128, "
    "float qc_qr_scale=1.0, float kc_scale=1.0, int? token_x_dtype=None, int? weight_dq_dtype=None, "
    "int? weight_uq_qr_dtype=None, int? weight_dkv_kr_dtype=None, int? kv_cache_dtype=None"
)
_INT8 = 127


class _Prolog(NamedTuple):
    query: Tensor  # [T, N, Hckv]
    query_rope: Tensor  # [T, N, Dr]
    keys: Tensor  # [T, Hckv]
    keys_rope: Tensor  # [T, Dr]
    query_scale: Tensor  # [T, N, 1], or empty
    norm: Tensor  # [T, Hcq]
    norm_scale: Tensor  # [T, 1], or empty


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    return x * x.square().mean(-1, keepdim=True).add(epsilon).rsqrt() * gamma.float()


def _rotated(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Pairs of neighbours are rotated; the first of each come first in the result."""
    first, second = x[..., ::2], x[..., 1::2]
    return torch.cat((first, second), -1) * cos.float() + torch.cat((-second, first), -1) * sin.float()


def _dynamic(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows and their scales [.., 1]."""
    scale = x.abs().amax(-1, keepdim=True) / _INT8
    return (x / scale.where(scale > 0, 1)).round().to(torch.int8), scale


def _static(x: Tensor, scale: Tensor) -> Tensor:
    return (x * scale).round().clamp(-128, 127).to(torch.int8)


def _int8_product(x: Tensor, weight: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x @ weight * rows * columns in float32; the sums are exact."""
    one = torch.ones(1, device=x.device)
    total = torch.ops.npu.npu_quant_matmul(x, weight, one, output_dtype=torch.int32)
    return total.float() * rows.view(-1, 1) * columns.view(1, -1)


def _required(operator: str, **scales: Tensor | None) -> list[Tensor]:
    missing = [name for name, value in scales.items() if value is None]
    if missing:
        refuse(operator, f"{', '.join(scales)} with these dtypes", f"no {', '.join(missing)}")
    return [value.float() for value in scales.values() if value is not None]


def _prolog(
    operator: str,
    weights: tuple[Tensor, ...],
    scales: dict[str, Tensor | None],
    epsilons: tuple[float, float],
    weight_mode: int,
    cache_mode: int,
    query_mode: int,
) -> _Prolog:
    token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, gamma_cq, gamma_ckv, rope_sin, rope_cos = weights
    dtype, (heads, width, rank) = weight_uk.dtype, weight_uk.shape
    x = token_x.flatten(0, -2)
    sin, cos = rope_sin.flatten(0, -2), rope_cos.flatten(0, -2)
    rope = sin.shape[1]
    shapes = [list(t.shape) for t in (token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rope_sin)]
    if weight_dq.shape[0] != x.shape[1] or weight_uq_qr.shape != (weight_dq.shape[1], heads * (width + rope)):
        refuse(operator, "weight_dq [He, Hcq] and weight_uq_qr [Hcq, N * (D + Dr)]", shapes)
    if weight_dkv_kr.shape != (x.shape[1], rank + rope) or sin.shape[0] != x.shape[0]:
        refuse(operator, "weight_dkv_kr [He, Hckv + Dr], rope_sin and rope_cos [T, Dr]", shapes)
    if weight_mode == 2:
        rows, w_dq, w_dkv = _required(
            operator, **{n: scales.get(n) for n in ("dequant_scale_x", "dequant_scale_w_dq", "dequant_scale_w_dkv_kr")}
        )
        down, keys = _int8_product(x, weight_dq, rows, w_dq), _int8_product(x, weight_dkv_kr, rows, w_dkv)
    else:
        down, keys = torch.mm(x, weight_dq).float(), torch.mm(x, weight_dkv_kr).float()
    norm, norm_scale = _rms_norm(down, gamma_cq, epsilons[0]), down.new_empty(0)
    if weight_mode:
        (w_uq,) = _required(operator, dequant_scale_w_uq_qr=scales.get("dequant_scale_w_uq_qr"))
        smooth = scales.get("smooth_scales_cq")
        norm, norm_scale = _dynamic(norm if smooth is None else norm * smooth.float().view(1, -1))
        up = _int8_product(norm, weight_uq_qr, norm_scale, w_uq)
    else:
        norm = norm.to(dtype)
        up = torch.mm(norm, weight_uq_qr).float()
    up = up.unflatten(1, (heads, width + rope))
    nope = up[..., :width].to(dtype)
    query = torch.bmm(nope.transpose(0, 1), weight_uk).transpose(0, 1)
    query_rope = _rotated(up[..., width:], sin.unsqueeze(1), cos.unsqueeze(1)).to(dtype)
    latent = _rms_norm(keys[:, :rank], gamma_ckv, epsilons[1])
    keys_rope = _rotated(keys[:, rank:], sin, cos)
    query_scale = down.new_empty(0)
    if cache_mode:
        (ckv,) = _required(operator, quant_scale_ckv=scales.get("quant_scale_ckv"))
        latent = _static(latent, ckv.view(1, -1) if cache_mode == 2 else ckv.flatten()[:1])
        if query_mode:
            query, query_scale = _dynamic(query.float())
            # Scores of both parts are summed in the units of the quantized one.
            query_rope = (query_rope.float() * ckv.flatten()[0] / query_scale).to(dtype)
    if cache_mode == 2:
        (ckr,) = _required(operator, quant_scale_ckr=scales.get("quant_scale_ckr"))
        keys_rope = _static(keys_rope, ckr.view(1, -1))
    return _Prolog(query, query_rope, latent, keys_rope, query_scale, norm, norm_scale)


def _store(operator: str, cache: Tensor, rows: Tensor, index: Tensor | None, mode: str) -> None:
    """Writes rows [T, H] to their places of a cache with one head."""
    if cache.shape[-2:] != (1, rows.shape[1]):
        refuse(operator, f"a cache [.., 1, {rows.shape[1]}]", list(cache.shape))
    rows = rows.to(cache.dtype)
    if mode in ("BSND", "TND"):
        cache.copy_(rows.view(cache.shape))
        return
    if index is None or mode not in ("PA_BSND", "PA_NZ"):
        refuse(operator, "cache_mode BSND or TND, or PA_BSND or PA_NZ with cache_index", mode)
    if mode == "PA_BSND":
        cache.view(-1, rows.shape[1])[index.flatten()] = rows
        return
    lanes = 32 // cache.element_size()  # a block of the packed layout has 32 bytes of each row
    if rows.shape[1] % lanes:
        refuse(operator, f"rows of a multiple of {lanes} elements with PA_NZ", rows.shape[1])
    blocks, size = cache.shape[:2]
    packed = cache.view(blocks, rows.shape[1] // lanes, size, lanes)
    packed[index.flatten() // size, :, index.flatten() % size] = rows.unflatten(1, (-1, lanes))


def _shaped(token_x: Tensor, *results: Tensor) -> list[Tensor]:
    return [t.unflatten(0, token_x.shape[:-1]) for t in results]


def _cached(
    operator: str,
    weights: tuple[Tensor, ...],
    cache_index: Tensor | None,
    kv_cache: Tensor,
    kr_cache: Tensor,
    options: dict[str, Any],
    modes: tuple[int, int, int],
) -> _Prolog:
    epsilons = options.pop("rmsnorm_epsilon_cq", 1e-5), options.pop("rmsnorm_epsilon_ckv", 1e-5)
    names = [part.split()[1].partition("=")[0] for part in _SCALES.split(", ")]
    scales = {name: options.pop(name, None) for name in names}
    mode = options.pop("cache_mode", "PA_BSND")
    refuse_options(operator, options)
    if modes[0] not in (0, 1, 2) or modes[1] not in (0, 1, 2) or modes[2] not in (0, 1) or (modes[2] and modes[1] != 1):
        raise NotImplementedError(
            f"{operator}: weight_quant_mode must be 0, 1 or 2, kv_cache_quant_mode 0, 1 or 2, query_quant_mode 0, or 1 "
            f"with kv_cache_quant_mode 1, got {list(modes)}"
        )
    made = _prolog(operator, weights, scales, epsilons, *modes)
    for name, cache, rows in (("kv_cache", kv_cache, made.keys), ("kr_cache", kr_cache, made.keys_rope)):
        if (cache.dtype == torch.int8) != (rows.dtype == torch.int8):
            refuse(operator, f"{name} in int8 if and only if it is quantized", cache.dtype)
        _store(operator, cache, rows, cache_index, mode)
    return made


def _modes(token_x: Tensor, weight_uq_qr: Tensor, kv_cache: Tensor) -> tuple[int, int, int]:
    """What the first two versions read from the dtypes."""
    weight_mode = 2 if token_x.dtype == torch.int8 else int(weight_uq_qr.dtype == torch.int8)
    if kv_cache.dtype != torch.int8:
        return weight_mode, 0, 0
    return (2, 1, 1) if weight_mode == 2 else (weight_mode, 2, 0)


@composed(
    f"npu_mla_prolog({_WEIGHTS}, Tensor cache_index, Tensor kv_cache, Tensor kr_cache, *, {_SCALES}, {_EPSILONS}, "
    'str cache_mode="PA_BSND") -> (Tensor, Tensor, Tensor, Tensor)'
)
def mla_prolog(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    cache_index: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys of multi-head latent attention for tokens token_x [T, He] or [B, S, He]; keys go to the caches.

    c = RMSNorm(x @ weight_dq) @ weight_uq_qr, of each head D and Dr columns: query [T, N, Hckv] is the first ones @
    weight_uk [N, D, Hckv], query_rope the others, rotated by pairs. x @ weight_dkv_kr gives Hckv columns, normed, for
    kv_cache [blocks, block size, 1, Hckv], and Dr, rotated, for kr_cache, at cache_index. Results: query, query_rope
    and the two caches. Products are rounded to the dtype of the weights.

    An int8 weight_uq_qr, with dequant_scale_w_uq_qr, makes its left operand int8 by rows, times smooth_scales_cq first.
    int8 caches hold round(x * scale) by quant_scale_ckv and quant_scale_ckr.
    """
    name = "npu_mla_prolog"
    weights = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos,
    )  # fmt: skip
    modes = _modes(token_x, weight_uq_qr, kv_cache)
    if modes[0] == 2:
        refuse(name, "a floating token_x (npu_mla_prolog_v2 takes int8)", token_x.dtype)
    made = _cached(name, weights, cache_index, kv_cache, kr_cache, options, modes)
    query, query_rope = _shaped(token_x, made.query, made.query_rope)
    return query, query_rope, kv_cache, kr_cache


@composed(
    f"npu_mla_prolog_v2({_WEIGHTS}, Tensor cache_index, Tensor kv_cache, Tensor kr_cache, *, {_SCALES}, {_EPSILONS}, "
    'str cache_mode="PA_BSND") -> (Tensor, Tensor, Tensor, Tensor, Tensor)'
)
def mla_prolog_v2(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    cache_index: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """npu_mla_prolog that takes an int8 token_x, with weights in int8, too; the last result is the query's scale.

    token_x has dequant_scale_x [T, 1], weights dequant_scale_w_* of their columns. With an int8 kv_cache (one
    quant_scale_ckv) the query is int8, scaled for each token and head [T, N, 1], query_rope is multiplied by
    quant_scale_ckv over that scale, and kr_cache stays floating.
    """
    weights = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos,
    )  # fmt: skip
    modes = _modes(token_x, weight_uq_qr, kv_cache)
    made = _cached("npu_mla_prolog_v2", weights, cache_index, kv_cache, kr_cache, options, modes)
    query, query_rope = _shaped(token_x, made.query, made.query_rope)
    return query, query_rope, kv_cache, kr_cache, made.query_scale


@composed(
    f"npu_mla_prolog_v3({_WEIGHTS}, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *, Tensor? cache_index=None, {_SCALES}, "
    f"Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None, {_EPSILONS}, {_MODES}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def mla_prolog_v3(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    cache_index: Tensor | None = None,
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """npu_mla_prolog_v2 whose modes are given, and whose caches may be BSND or TND, without cache_index.

    weight_quant_mode 1: weight_uq_qr in int8; 2: all but weight_uk, and token_x. kv_cache_quant_mode 1: kv_cache by one
    scale; 2: both caches by columns. query_quant_mode 1: the query. Results: query, query_rope, its scale; with
    query_norm_flag the normed low-rank query and its scale. What there is not is empty.
    """
    weights = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos,
    )  # fmt: skip
    modes = (weight_quant_mode, kv_cache_quant_mode, query_quant_mode)
    made = _cached("npu_mla_prolog_v3", weights, cache_index, kv_cache, kr_cache, options, modes)
    query, query_rope, norm = _shaped(token_x, made.query, made.query_rope, made.norm)
    if not query_norm_flag:
        return query, query_rope, made.query_scale, norm.new_empty(0), made.norm_scale.new_empty(0)
    return query, query_rope, made.query_scale, norm, made.norm_scale


@composed(
    f"npu_mla_prolog_v3_functional({_WEIGHTS}, Tensor kv_cache, Tensor kr_cache, *, Tensor? cache_index=None, "
    f"{_SCALES}, Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None, {_EPSILONS}, {_MODES}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def mla_prolog_v3_functional(*weights_and_caches: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """npu_mla_prolog_v3 with new caches: its results, then the caches."""
    *weights, kv_cache, kr_cache = weights_and_caches
    caches = kv_cache.clone(), kr_cache.clone()
    results = torch.ops.npu.npu_mla_prolog_v3(*weights, *caches, **options)
    return *results, *caches
