"""Older and newer forms of operators on experts, normalizations and quantization, which other CANN clients call."""

from __future__ import annotations

import pytest
import torch
from operator_client import Packed, call
from torch import Tensor

EXPERTS = torch.tensor([[1, 0], [2, 1], [1, 2]], dtype=torch.int32)


def new(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(sizes, 77, dtype=dtype)


@pytest.mark.parametrize("flag", [0, 1, 2])
def test_routing_without_capacity(flag: int) -> None:
    x, rows, places = torch.randn(3, 4), new(6, 4), new(6, dtype=torch.int32)
    counts, before = new(3, dtype=torch.int32), new(3, dtype=torch.int32)
    call("MoeInitRoutingV2", x, EXPERTS, 0, 0, 3, 0, flag, False, rows, places, counts, before)
    order = EXPERTS.flatten().argsort(stable=True)
    assert torch.equal(rows, x[order // 2])
    assert places.tolist() == order.argsort().tolist()
    assert counts.tolist() == [[77] * 3, [1, 4, 6], [1, 3, 2]][flag]
    assert before.tolist() == [77] * 3


def test_routing_with_a_capacity() -> None:
    x, rows, places = torch.randn(3, 4), new(3, 2, 4), new(6, dtype=torch.int32)
    before = new(3, dtype=torch.int32)
    call("MoeInitRoutingV2", x, EXPERTS, 0, 2, 3, 1, 0, True, rows, places, None, before)
    assert before.tolist() == [1, 3, 2]
    assert places.tolist() == [2, 0, 4, 3, -1, 5]  # the third of expert 1 is dropped
    assert torch.equal(rows[1], x[:2])
    assert torch.equal(rows[0], torch.stack((x[0], torch.zeros(4))))


def test_finalizing() -> None:
    rows, skip, scales = torch.randn(6, 4), torch.randn(3, 4), torch.rand(3, 2)
    places, out = torch.tensor([5, 1, 3, 0, 4, 2], dtype=torch.int32), new(3, 4)
    call("MoeFinalizeRouting", rows, skip, None, None, scales, places, None, out)
    copies = rows[places.view(2, 3).T.long()]
    torch.testing.assert_close(out, skip + (copies * scales[..., None]).sum(1))


@pytest.mark.parametrize("form", ["lists", "ends", "rows of several", "results of one"])
def test_grouped_products(form: str) -> None:
    x, weight, ends = torch.randn(5, 4), torch.randn(2, 4, 3), [2, 5]
    parts = [x[:2], x[2:]]
    expected = [p @ w for p, w in zip(parts, weight, strict=True)]
    given, groups, split = {
        "lists": (parts, None, 0),
        "ends": ([x], ends, 3),
        "rows of several": (parts, None, 2),
        "results of one": ([x], ends, 1),
    }[form]
    out = [new(5, 3)] if split >= 2 else [new(2, 3), new(3, 3)]
    call("GroupedMatmul", given, list(weight), [], [], [], [], [], groups, split, out)
    torch.testing.assert_close(torch.cat(out), torch.cat(expected))


def test_grouped_products_with_tuning() -> None:
    x, weight, out = torch.randn(5, 4), torch.randn(2, 4, 3), new(5, 3)
    none: list[Tensor] = []
    floats = ([x], [weight], *[none] * 6)
    call(
        "GroupedMatmulV5", *floats, torch.tensor([2, 5]), none, none, none, 3, 0, 0, 0, [16], [out], none, none
    )  # fmt: skip
    torch.testing.assert_close(out, torch.cat((x[:2] @ weight[0], x[2:] @ weight[1])))


def test_fast_layer_norm() -> None:
    x, weight, out = torch.randn(5, 4), torch.randn(4), new(5, 4)
    call("FastLayerNorm", x, [4], weight, None, 1e-5, out, None, None)
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(x, (4,), weight))


def test_static_quantization() -> None:
    x, scale, out = torch.randn(5, 4), torch.rand(4) * 30, new(5, 4, dtype=torch.int8)
    call("AscendQuant", x, scale, torch.tensor([1.0]), False, "round", torch.int8, out)
    assert torch.equal(out, (x * scale + 1).round().clamp(-128, 127).char())


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("version", ["", "V2"])
def test_dynamic_quantization(smooth: bool, version: str) -> None:
    x, factors = torch.randn(5, 4), torch.rand(4) + 0.5 if smooth else None
    out, scale = new(5, 4, dtype=torch.int8), new(5)
    more = (None, torch.int8) if version else ()
    call(f"DynamicQuant{version}", x, factors, *more, out, scale, *((None,) if version else ()))
    values = x if factors is None else x * factors
    torch.testing.assert_close(scale, values.abs().amax(1) / 127)
    assert torch.equal(out, (values / scale[:, None]).round().char())


def test_dynamic_quantization_with_an_offset() -> None:
    x, out, scale, offset = torch.randn(5, 4), new(5, 4, dtype=torch.int8), new(5), new(5)
    call("DynamicQuantV2", x, None, None, torch.int8, out, scale, offset)
    torch.testing.assert_close(scale, (x.amax(1) - x.amin(1)) / 255)
    assert ((out - offset[:, None]) * scale[:, None] - x).abs().max() <= scale.max() * 0.51


def test_sampling_without_min_p() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0], [4.0, 0.0, 1.0, 2.0]])
    q = torch.tensor([[9.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    chosen, visible = new(2, dtype=torch.int64), new(2, 4)
    limits = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([1.0, 1.0])
    call("TopKTopPSample", logits, *limits, q, 1e-8, True, 32, chosen, visible)
    assert chosen.tolist() == [2, 0]  # q makes the likeliest of the first row unlikely
    assert torch.equal(visible, logits.masked_fill(torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0]]).bool(), -torch.inf))


@pytest.mark.parametrize("scaled", [False, True])
def test_quantized_norm_without_a_mask(scaled: bool) -> None:
    """A null mask means the first result, and the second where both smooth scales are given."""
    x, gamma, smooth = torch.randn(3, 8), torch.ones(8), torch.rand(8) + 0.5
    first, second = ((new(3, 8, dtype=torch.int8), new(3)) for _ in range(2))
    total = new(3, 8)
    scales = (smooth, smooth) if scaled else (None, None)
    call(
        "AddRmsNormDynamicQuantV2",
        x,
        x,
        gamma,
        *scales,
        None,
        1e-6,
        None,
        first[0],
        second[0],
        total,
        first[1],
        second[1],
    )
    torch.testing.assert_close(total, 2 * x)
    normal = torch.nn.functional.rms_norm(2 * x, (8,), eps=1e-6) * (smooth if scaled else 1)
    torch.testing.assert_close(first[1], normal.abs().amax(1) / 127)
    assert torch.equal(second[0], first[0] if scaled else torch.zeros_like(first[0]))


@pytest.mark.parametrize("nothing", [None, []], ids=["null", "empty lists"])
def test_grouped_products_with_packed_weights(nothing: list[Tensor] | None) -> None:
    x, weight, out = torch.randn(5, 20), torch.randn(2, 20, 17), new(5, 17)
    ends = torch.tensor([2, 5])
    before = [[x], [Packed(weight)], nothing, nothing, nothing, nothing, nothing, nothing, ends, nothing, nothing]
    call("GroupedMatmulWeightNz", *before, nothing, 3, 0, 0, 0, None, 0, [out], nothing, nothing)
    torch.testing.assert_close(out, torch.cat((x[:2] @ weight[0], x[2:] @ weight[1])))
    with pytest.raises(RuntimeError, match="quantGroupSize must be 0"):
        call("GroupedMatmulWeightNz", *before, nothing, 3, 0, 0, 0, None, 256, [out], nothing, nothing)


@pytest.mark.parametrize("transposed", [False, True])
def test_quantized_products_with_packed_weights(transposed: bool) -> None:
    x, weight = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((5, 33), (33, 17)))
    scale, out = torch.rand(17), new(5, 17, dtype=torch.bfloat16)
    given = Packed(weight.T.contiguous() if transposed else weight)
    arguments = [None, scale, None, None, None, None, None, False, transposed, 0, out]
    call("QuantMatmulWeightNz", x, given, *arguments)
    packed = out.clone()
    call("QuantMatmulV5", x, given.plain, *arguments)
    assert torch.equal(packed, out)
    assert not torch.equal(out, new(5, 17, dtype=torch.bfloat16))


@pytest.mark.parametrize("op", ["WeightQuantBatchMatmulV2", "WeightQuantBatchmatmulNz"])
def test_products_with_int8_weights(op: str) -> None:
    x, weight = torch.randn(3, 40), torch.randint(-128, 128, (40, 9), dtype=torch.int8)
    scale, offset, out = torch.rand(9), torch.randn(9), new(3, 9)
    given = Packed(weight) if op.endswith("Nz") else weight
    call(op, x, given, scale, offset, None, None, None, 0, out)
    expected = x.double() @ ((weight.double() + offset.double()) * scale.double())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)


def test_transposed_products_with_packed_weights() -> None:
    x, weight, out = torch.randn(3, 4, 18), torch.randn(4, 18, 5), new(3, 4, 5)
    call("TransposeBatchMatMulWeightNz", x, Packed(weight), None, None, [1, 0, 2], [0, 1, 2], [1, 0, 2], 0, 1, out)
    torch.testing.assert_close(out, torch.einsum("bmk,mkn->bmn", x, weight))
