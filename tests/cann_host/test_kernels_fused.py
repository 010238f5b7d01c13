"""Fused kernels of each instruction set against float64."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import kernels_library as kernels
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("isa")

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(5, 37), (3, 1030), (2, 1), (4, 64), (0, 8)]
GATES = [F.silu, F.gelu, lambda x: F.gelu(x, approximate="tanh")]

# The members of the structures in cann_host/kernels/fused.h, attention.h, matvec.h and fractal_nz.h: pointers, ints
# (enumerations), int64 (l), float32, float64, bools, and l3 for three int64.
MEMBERS = {
    "norm": "type:i parameter_type:i x:p added:p gamma:p beta:p sum:p y:p mean:p rstd:p rows:l columns:l x_scale:f "
    "gamma_offset:f epsilon:f centered:b",
    "norm_backward": "type:i parameter_type:i dy:p x:p added:p gamma:p dsum:p mean:p rstd:p dx:p dadded:p dgamma:p "
    "dbeta:p rows:l columns:l x_scale:f gamma_offset:f",
    "gated": "type:i gate:i x:p y:p activated:p rows:l columns:l activates_left:b",
    "gated_backward": "type:i gate:i dy:p x:p dx:p rows:l columns:l activates_left:b",
    "rotary": "type:i x:p cos:p sin:p y:p sizes:l3 x_strides:l3 table_strides:l3 y_strides:l3 columns:l interleaved:b "
    "transposed:b",
    "adamw": "type:i gradient_type:i parameter:p exp_avg:p exp_avg_sq:p max_exp_avg_sq:p gradient:p count:l "
    "learning_rate:d beta1:d beta2:d epsilon:d weight_decay:d step:d maximize:b",
    "decode_attention": "type:i query:p query_strides:l3 key:p key_strides:l3 value:p value_strides:l3 out:p "
    "out_strides:l3 log_sum_exp:p maximum:p batch:l heads:l key_heads:l queries:l keys:l head_size:l value_size:l "
    "scale:f key_lengths:p block_table:p blocks_per_sequence:l block_size:l bias:p bias_strides:l3 causal:b sinks:p",
    "matvec": "type:i weight_type:i x:p weight:p bias:p scale:p offset:p y:p rows:l columns:l inner:l weight_stride:l",
    "nz_matmul": "type:i x:p weight:p bias:p y:p rows:l columns:l inner:l transposed:b tiles:p",
}
C_TYPES = {
    "p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double,
    "b": ctypes.c_bool, "l3": ctypes.c_int64 * 3,
}  # fmt: skip


def run(name: str, **members: Any) -> None:
    """Calls a kernel; members that are not given are null or 0."""
    fields = [(m.split(":")[0], C_TYPES[m.split(":")[1]]) for m in MEMBERS[name].split()]
    structure = type(name, (ctypes.Structure,), {"_fields_": fields})()
    for key, value in members.items():
        if isinstance(value, Tensor):
            assert value.is_contiguous()
            value = value.data_ptr()
        elif isinstance(value, torch.dtype):
            value = kernels.DATA_TYPES[value]
        elif isinstance(value, tuple):
            value = (ctypes.c_int64 * 3)(*value)
        setattr(structure, key, value)
    getattr(kernels._library, name)(ctypes.byref(structure))


def close(actual: Tensor, expected: Tensor, magnitude: float = 4.0) -> None:
    unit = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual.double(), expected, rtol=4 * unit, atol=4 * unit * magnitude)


def sample(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm_of_a_sum(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, columns = shape
    x, added = sample(*shape, dtype=dtype), sample(columns, rows, dtype=dtype).T.contiguous()
    gamma, beta = sample(columns, dtype=torch.float32), sample(1, columns, dtype=torch.float32)
    y, total = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = torch.empty(rows), torch.empty(rows)
    run(
        "norm", type=dtype, parameter_type=torch.float32, x=x, added=added, gamma=gamma, beta=beta, sum=total, y=y,
        mean=mean, rstd=rstd, rows=rows, columns=columns, x_scale=0.5, epsilon=1e-5, centered=True,
    )  # fmt: skip
    close(total, (x.double() * 0.5 + added.double()))
    expected = F.layer_norm(total.double(), (columns,), gamma.double(), beta[0].double(), 1e-5)
    close(y, expected, 16)
    if rows:
        close(mean, total.double().mean(1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_gradient_of_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    rows, columns = shape
    x, dy, gamma = (
        sample(*shape, dtype=dtype),
        sample(*shape, dtype=dtype).flip(0).contiguous(),
        sample(columns, dtype=dtype),
    )
    wide, gain = x.double().requires_grad_(), gamma.double().requires_grad_()
    F.rms_norm(wide, (columns,), gain, 1e-3).backward(dy.double())
    rstd = (x.double().square().mean(1) + 1e-3).rsqrt().float()
    dx, dgamma = torch.empty_like(x), torch.empty(columns)
    run(
        "norm_backward", type=dtype, parameter_type=dtype, dy=dy, x=x, gamma=gamma, rstd=rstd, dx=dx, dgamma=dgamma,
        rows=rows, columns=columns, x_scale=1.0,
    )  # fmt: skip
    close(dx, wide.grad, 32)
    close(dgamma, gain.grad, 32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("gate", range(3), ids=["silu", "gelu_erf", "gelu_tanh"])
@pytest.mark.parametrize("left", [False, True])
def test_gates_and_their_gradients(gate: int, left: bool, dtype: torch.dtype) -> None:
    rows, columns = 3, 67
    x, dy = sample(rows, 2 * columns, dtype=dtype), sample(rows, columns, dtype=dtype)
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    sizes = {"type": dtype, "gate": gate, "rows": rows, "columns": columns, "activates_left": left}
    run("gated", x=x, y=y, **sizes)
    run("gated_backward", dy=dy, x=x, dx=dx, **sizes)
    wide = x.double().requires_grad_()
    halves = wide.chunk(2, -1)
    expected = GATES[gate](halves[1 - left]) * halves[left]
    expected.backward(dy.double())
    close(y, expected.detach())
    close(dx, wide.grad)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_and_back(interleaved: bool, dtype: torch.dtype) -> None:
    rows, columns = 5, 38
    x, angle = sample(rows, columns, dtype=dtype), torch.randn(rows, columns // 2)
    angle = angle.repeat_interleave(2, 1) if interleaved else torch.cat((angle, angle), 1)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    strides = (0, 0, columns)
    options = {
        "type": dtype, "cos": cos, "sin": sin, "sizes": (1, 1, rows), "x_strides": strides, "table_strides": strides,
        "y_strides": strides, "columns": columns, "interleaved": interleaved,
    }  # fmt: skip
    y, back = torch.empty_like(x), torch.empty_like(x)
    run("rotary", x=x, y=y, **options)
    run("rotary", x=y, y=back, transposed=True, **options)
    wide = x.double()
    turned = torch.cat((-wide[:, columns // 2 :], wide[:, : columns // 2]), 1)
    if interleaved:
        turned = torch.stack((-wide[:, 1::2], wide[:, ::2]), -1).flatten(1)
    close(y, wide * cos.double() + turned * sin.double())
    close(back, wide, 8)  # a rotation keeps lengths, up to the rounding of cos and sin


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("heads", "key_heads", "queries", "keys", "size"),
    [
        (4, 2, 1, 65, 24),
        (3, 1, 8, 7, 80),
        (2, 2, 3, 130, 128),
        (8, 2, 1, 65, 24),  # four rows of a head are one piece of work
        (9, 1, 1, 130, 70),
        (6, 2, 3, 41, 133),  # where they see as many keys
        (2, 2, 1, 600, 40),  # several blocks of keys
        (4, 1, 1, 530, 72),
    ],
)
def test_decode_attention(
    heads: int, key_heads: int, queries: int, keys: int, size: int, causal: bool, dtype: torch.dtype
) -> None:
    q, k, v = (sample(2, h, n, size, dtype=dtype) for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys)))
    v = v.flip(0).contiguous()
    out, lse, maximum = torch.empty_like(q), *torch.empty(2, 2, heads, queries)
    strides = {f"{n}_strides": t.stride()[:3] for n, t in (("query", q), ("key", k), ("value", v), ("out", out))}
    run(
        "decode_attention", type=dtype, query=q, key=k, value=v, out=out, log_sum_exp=lse, maximum=maximum, batch=2,
        heads=heads, key_heads=key_heads, queries=queries, keys=keys, head_size=size, value_size=size, scale=0.3,
        causal=causal, **strides,
    )  # fmt: skip
    wide_k, wide_v = (t.double().repeat_interleave(heads // key_heads, 1) for t in (k, v))
    scores = q.double() @ wide_k.transpose(-1, -2) * 0.3
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(keys - queries + 1).bool(), -math.inf)
    close(out, scores.softmax(-1).nan_to_num() @ wide_v)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(maximum.double(), scores.amax(-1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("rows", "columns", "inner"), [(1, 37, 65), (4, 16, 1000)])
@pytest.mark.parametrize("quantized", [False, True])
def test_products_of_few_rows(rows: int, columns: int, inner: int, quantized: bool, dtype: torch.dtype) -> None:
    x, weight, bias = (sample(*s, dtype=dtype) for s in ((rows, inner), (columns, inner), (columns,)))
    scale, offset = torch.rand(columns), torch.rand(columns)
    y = torch.empty(rows, columns, dtype=dtype)
    sizes = {"type": dtype, "rows": rows, "columns": columns, "inner": inner, "weight_stride": inner}
    if quantized:
        weight = torch.randint(-128, 128, (columns, inner), dtype=torch.int8)
        run("matvec", weight_type=torch.int8, x=x, weight=weight, scale=scale, offset=offset, y=y, **sizes)
        expected = x.double() @ ((weight.double() + offset.double()[:, None]) * scale.double()[:, None]).T
    else:
        run("matvec", weight_type=dtype, x=x, weight=weight, bias=bias, y=y, **sizes)
        expected = x.double() @ weight.double().T + bias.double()
    close(y, expected, expected.abs().max().item())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns", "inner"),
    [
        (1, 37, 65),
        (1, 200, 70),
        (3, 16, 1000),
        (5, 600, 31),
        (16, 130, 130),
        (32, 33, 90),
        (33, 50, 1039),
        (71, 1100, 40),
        (515, 20, 17),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_packed_matrices(
    rows: int, columns: int, inner: int, transposed: bool, dtype: torch.dtype
) -> None:
    x, bias = sample(rows, inner, dtype=dtype), sample(columns, dtype=dtype)
    weight = sample(columns, inner, dtype=dtype) if transposed else sample(inner, columns, dtype=dtype)
    blocks = [(size + 15) // 16 for size in weight.shape]
    packed = torch.full((blocks[1], blocks[0], 16, 16), math.nan, dtype=dtype)
    kernels.pack(weight, packed)
    plain = F.pad(weight, (0, blocks[1] * 16 - weight.shape[1], 0, blocks[0] * 16 - weight.shape[0]))
    assert torch.equal(packed, plain.view(blocks[0], 16, blocks[1], 16).permute(2, 0, 1, 3))
    assert torch.equal(kernels.unpack(packed, weight.shape), weight)
    y = torch.empty(rows, columns, dtype=dtype)
    sizes = {"type": dtype, "rows": rows, "columns": columns, "inner": inner, "transposed": transposed}
    run("nz_matmul", x=x, weight=packed, bias=bias, y=y, **sizes)
    expected = x.double() @ (weight.T if transposed else weight).double() + bias.double()
    close(y, expected, expected.abs().max().item() * max(1, math.sqrt(inner) / 8))


@pytest.mark.parametrize(("rows", "columns", "inner"), [(5, 33, 51), (40, 530, 300), (515, 20, 17)])
@pytest.mark.parametrize("transposed", [False, True])
def test_panels_of_packed_matrices_for_instructions_that_multiply_matrices(
    rows: int, columns: int, inner: int, transposed: bool
) -> None:
    """Where the kernels hand panels out, as NzTiles says; elsewhere they multiply themselves."""

    def read(address: int, dtype: torch.dtype, *shape: int) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype).view(shape)

    def multiply_add(some: int, depth: int, x: int, panel: int, sums: int) -> None:
        pairs = read(panel, torch.bfloat16, depth // 2, 32, 2)
        weight = pairs.transpose(1, 2).reshape(depth, 32).float()
        read(sums, torch.float32, some, 32).add_(read(x, torch.bfloat16, some, depth).float() @ weight)

    multiply = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3)(multiply_add)
    release = ctypes.CFUNCTYPE(None)(lambda: None)
    tiles = (ctypes.c_void_p * 2)(*[ctypes.cast(f, ctypes.c_void_p).value for f in (multiply, release)])
    x, weight = sample(rows, inner, dtype=torch.bfloat16), sample(inner, columns, dtype=torch.bfloat16)
    given = weight.T.contiguous() if transposed else weight
    packed = torch.empty([(size + 15) // 16 for size in reversed(given.shape)] + [16, 16], dtype=torch.bfloat16)
    kernels.pack(given, packed)
    y = torch.empty(rows, columns, dtype=torch.bfloat16)
    sizes = {"type": y.dtype, "rows": rows, "columns": columns, "inner": inner, "transposed": transposed}
    run("nz_matmul", x=x, weight=packed, y=y, tiles=ctypes.addressof(tiles), **sizes)
    expected = x.double() @ weight.double()
    close(y, expected, expected.abs().max().item())


def test_adamw_as_torch_does_it() -> None:
    p, m, g = (torch.randn(1001, generator=torch.Generator().manual_seed(i)) for i in range(3))
    v = g.square() + 0.1
    reference = [t.clone() for t in (p, m, v)]
    torch._fused_adamw_(
        [reference[0]], [g], [reference[1]], [reference[2]], [], [torch.tensor(3.0)], lr=1e-2, beta1=0.9, beta2=0.999,
        weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    run(
        "adamw", type=p.dtype, gradient_type=g.dtype, parameter=p, exp_avg=m, exp_avg_sq=v, gradient=g, count=1001,
        learning_rate=1e-2, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01, step=3.0,
    )  # fmt: skip
    for actual, expected in zip((p, m, v), reference, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
