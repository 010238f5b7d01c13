"""Operators that other CANN clients call and the adapter does not: in-place forms, forms for captured graphs …"""

import pytest
import torch
import torch.nn.functional as F
from operator_client import call
from tolerance import assert_close

from opspec.table import AclnnOp, aclnn_ops

POINTWISE = ("pointwise_unary", "pointwise_binary", "pointwise_logic", "pointwise_ternary")


def inplace_pairs() -> list[tuple[AclnnOp, AclnnOp]]:
    """(in-place operator, the same operator with an output)."""
    ops = aclnn_ops()
    found = [(op, ops.get(op.name.removeprefix("Inplace"))) for op in ops.values() if op.name.startswith("Inplace")]
    return [(a, b) for a, b in found if b is not None and a.family in POINTWISE]


def value_for(op: AclnnOp, name: str, kind: str, seed: int) -> object:
    if kind == "Tensor":
        accepted = op.param(name).dtypes
        dtype = torch.float32 if not accepted or "float32" in accepted else torch.int64
        values = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed)) * 0.8 + 0.1
        return values if dtype == torch.float32 else (values * 10).long()
    return {"Scalar": 2, "int": 1, "int32": 1, "float32": 1.0, "float": 0.5}[kind]


@pytest.mark.parametrize("pair", inplace_pairs(), ids=lambda pair: pair[0].name)
def test_inplace_forms(pair):
    inplace, plain = pair
    values = [value_for(plain, p.name, p.kind, i) for i, p in enumerate(plain.params) if not p.is_output]
    writes_bool = (
        "bool" in plain.outputs[0].dtypes
        and "float32" not in plain.outputs[0].dtypes
        and "int64" not in plain.outputs[0].dtypes
    )
    out = torch.empty_like(values[0], dtype=torch.bool if writes_bool else None)
    call(plain.name, *values, out)
    changed = values[0].clone()
    call(inplace.name, changed, *values[1:])
    torch.testing.assert_close(changed, out.to(changed.dtype), rtol=0, atol=0, equal_nan=True)


X = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 4
INDEX = torch.tensor([2, 0])


def new(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(sizes, 77, dtype=dtype)


# name of the case -> (operator, arguments with the output last, expected output)
CASES = {
    "AddV3": ("AddV3", (2.5, X, 2, new(3, 4)), 2.5 + 2 * X),
    "Cast": ("Cast", (X, torch.int64, new(3, 4, dtype=torch.int64)), X.long()),
    "ChunkCat": ("ChunkCat", ([X, X], 0, 3, new(3, 8)), torch._chunk_cat([X, X], 0, 3)),
    "GatherV3": ("GatherV3", (X, 0, INDEX[:, None], 0, 1, new(2, 1, 4)), X[INDEX[:, None]]),
    "IndexAddV2": ("IndexAddV2", (X, 0, INDEX, X[:2], 2, 0, new(3, 4)), X.index_add(0, INDEX, X[:2], alpha=2)),
    "IndexFill": ("IndexFill", (X, 0, INDEX, 9, new(3, 4)), X.index_fill(0, INDEX, 9)),
    "IndexFillTensor": ("IndexFillTensor", (X, 0, [2, 0], 9, new(3, 4)), X.index_fill(0, INDEX, 9)),
    "Im2col": ("Im2col", (X[None], [2, 2], [1, 1], [0, 0], [1, 1], new(4, 6)), F.unfold(X[None], 2)),
    "IsClose": ("IsClose", (X, X + 1e-9, 1e-5, 1e-8, False, new(3, 4, dtype=torch.bool)), X == X),
    "IsFinite": ("IsFinite", (1 / X, new(3, 4, dtype=torch.bool)), torch.isfinite(1 / X)),
    "LessScalar": ("LessScalar", (X, 1, new(3, 4, dtype=torch.bool)), X < 1),
    "OneHot": (
        "OneHot",
        (INDEX, 4, torch.tensor([5]), torch.tensor([3]), -1, new(2, 4, dtype=torch.int64)),
        3 + 2 * F.one_hot(INDEX, 4),
    ),
    "OneHot, out of range": (
        "OneHot",
        (INDEX, 2, torch.tensor([1]), torch.tensor([0]), 0, new(2, 2, dtype=torch.int64)),
        torch.tensor([[0, 1], [0, 0]]),
    ),
    "Pdist": ("Pdist", (X, 1.0, new(3)), torch.pdist(X, 1)),
    "Range": ("Range", (1, 4, 1.5, new(3)), torch.tensor([1, 2.5, 4])),
    "RepeatInterleave": ("RepeatInterleave", (X, torch.tensor(2), 24, new(24)), X.repeat_interleave(2)),
    "RepeatInterleaveInt": ("RepeatInterleaveInt", (X, 2, 24, new(24)), X.repeat_interleave(2)),
    "RepeatInterleaveIntWithDim": ("RepeatInterleaveIntWithDim", (X, 2, 0, 6, new(6, 4)), X.repeat_interleave(2, 0)),
    "RepeatInterleaveWithDim": (
        "RepeatInterleaveWithDim",
        (X, torch.tensor([1, 0, 2]), 0, 3, new(3, 4)),
        X.repeat_interleave(torch.tensor([1, 0, 2]), 0),
    ),
    "XLogYScalarSelf": ("XLogYScalarSelf", (2, X + 1, new(3, 4)), torch.xlogy(2, X + 1)),
    "Embedding into a transposed output": ("Embedding", (X, INDEX, new(4, 2).t()), X[INDEX]),
    "Index, index 0 not given": ("Index", (X, [torch.empty(0), INDEX], new(3, 2)), X[:, INDEX]),
    "Index, null for not given": ("Index", (X, [INDEX], new(2, 4)), X[INDEX]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results(case):
    op, arguments, expected = CASES[case]
    call(op, *arguments)
    assert torch.equal(arguments[-1], expected.to(arguments[-1].dtype))


UPDATED = X.clone()  # a pair in each row, from column 1, 0, 2
for _row, _start in enumerate((1, 0, 2)):
    UPDATED[_row, _start : _start + 2] = -X[_row, :2]

# operator -> (arguments after the tensor that is written to, expected value of that tensor, which starts as X)
WRITES = {
    "InplaceOne": ((), torch.ones(3, 4)),
    "InplaceZero": ((), torch.zeros(3, 4)),
    "InplaceFillDiagonal": ((5, False), X.clone().fill_diagonal_(5)),
    "InplaceFillTensor": ((torch.tensor([5.0]),), torch.full((3, 4), 5.0)),
    "InplaceTril": ((0,), X.tril()),
    "InplaceTriu": ((1,), X.triu(1)),
    "InplaceRenorm": ((2, 0, 1), X.renorm(2, 0, 1)),
    "InplaceIndexFill": ((0, INDEX, 9), X.index_fill(0, INDEX, 9)),
    "InplaceIndexFillTensor": ((0, [2, 0], 9), X.index_fill(0, INDEX, 9)),
    "ScatterNdUpdate": ((torch.tensor([[2], [0]]), -X[:2]), X.index_put((INDEX,), -X[:2])),
    "InplaceScatterUpdate": (
        (torch.tensor([1, 0, 2]), -X[:, :2], 1),
        UPDATED,
    ),
    "IndexPutImpl": (([INDEX], -X[:2], False, False), X.index_put((INDEX,), -X[:2])),
}  # fmt: skip


@pytest.mark.parametrize("op", WRITES)
def test_writes(op):
    arguments, expected = WRITES[op]
    tensor = X.clone()
    call(op, tensor, *arguments)
    assert torch.equal(tensor, expected)


def test_index_put_with_a_real_empty_index_of_selfs_dtype_writes_nothing():
    tensor = torch.arange(4)
    call("IndexPutImpl", tensor, [torch.empty(0, dtype=torch.int64)], torch.tensor([5]), False, False)
    assert torch.equal(tensor, torch.arange(4))


def test_outputs_of_unknown_shape():
    x = torch.tensor([[0, 3], [3, 0], [0, 1]])
    found = new(6, dtype=torch.int64)
    assert call("MaskedSelect", x, x > 0, found) == {"out": (3,)}
    assert found[:3].tolist() == [3, 3, 1]
    found = new(2, 6, dtype=torch.int64)
    assert call("NonzeroV2", x, found) == {"out": (2, 3)}
    assert found.flatten()[:6].tolist() == [0, 1, 2, 1, 0, 1]
    values, inverse, counts = new(6, dtype=torch.int64), new(3, 2, dtype=torch.int64), new(6, dtype=torch.int64)
    assert call("Unique2", x, True, True, True, values, inverse, counts) == {"valueOut": (3,), "countsOut": (3,)}
    assert values[:3].tolist() == [0, 1, 3]
    assert counts[:3].tolist() == [3, 1, 2]
    assert inverse.tolist() == [[0, 2], [2, 0], [0, 1]]


def test_split():
    parts = [new(3, 1), new(3, 3)]
    call("SplitWithSize", X, [1, 3], 1, parts)
    assert torch.equal(torch.cat(parts, 1), X)


def test_dropout_with_a_packed_mask():
    x, n = torch.ones(1000), 1000
    mask = new(128, dtype=torch.uint8)
    call("DropoutGenMask", [n], 0.25, 1, 2, mask)
    bits = (mask[:, None] >> torch.arange(8)) & 1
    keep = bits.flatten()[:n].bool()
    assert 0.7 < keep.float().mean() < 0.8
    assert not bits.flatten()[n:].any()
    out = new(n)
    call("DropoutDoMask", x, mask, 0.25, out)
    assert torch.equal(out, keep / 0.75)
    again, out2 = new(128, dtype=torch.uint8), new(n)
    call("DropoutV3", x, None, 0.25, 1, 2, out2, again)
    assert torch.equal(out2, out)
    assert torch.equal(again, mask)
    call("DropoutGenMaskV2", [n], 0.25, 1, 2, torch.float32, again)
    assert torch.equal(again, mask)


# operator -> its arguments after (tensor) and before the seed, and whether the tensor comes last
DRAWS = {
    "InplaceUniform": (0.0, 2.0),
    "InplaceNormal": (1.0, 2.0),
    "InplaceRandom": (0, 100),
    "InplaceRandomWithoutFromTo": (),
}


@pytest.mark.parametrize("op", DRAWS)
def test_seed_and_offset_from_device_tensors(op):
    direct, captured, next_replay = new(100), new(100), new(100)
    call(op, direct, *DRAWS[op], 5, 12)
    call(f"{op}Tensor", captured, *DRAWS[op], torch.tensor([5]), torch.tensor([8]), 4)
    call(f"{op}Tensor", next_replay, *DRAWS[op], torch.tensor([5]), torch.tensor([24]), 4)
    assert torch.equal(direct, captured)
    assert not torch.equal(captured, next_replay)


def test_other_draws_with_seed_and_offset_from_device_tensors():
    p = torch.tensor([0.2, 0.3, 0.5])
    direct, captured = new(50, dtype=torch.int64), new(50, dtype=torch.int64)
    call("Multinomial", p, 50, True, 5, 12, direct)
    call("MultinomialTensor", p, 50, True, torch.tensor([5]), torch.tensor([8]), 4, captured)
    assert torch.equal(direct, captured)
    masks = new(16, dtype=torch.uint8), new(16, dtype=torch.uint8)
    call("DropoutGenMaskV2", [100], 0.5, 5, 12, torch.float32, masks[0])
    call("DropoutGenMaskV2Tensor", [100], 0.5, torch.tensor([5]), torch.tensor([8]), 4, torch.float32, masks[1])
    assert torch.equal(*masks)
    normal = new(20_000)
    call("NormalFloatFloat", 3.0, 2.0, 5, 12, normal)
    assert abs(normal.mean() - 3) < 0.1
    assert abs(normal.std() - 2) < 0.1


@pytest.mark.parametrize(
    ("op", "arguments", "message"),
    [
        ("DivMod", (X, X, 3, new(3, 4)), "mode must be 0"),
        ("InplaceNormal", (new(3), 0.0, -1.0, 0, 0), "may not be negative"),
        ("IndexSelect", (X, 2, INDEX, new(2, 4)), "dimension 2 of a tensor of shape"),
        ("Clamp", (X, None, None, new(3, 4)), "at least one of the two limits"),
        ("BitwiseNot", (X, new(3, 4)), "float32; this operator takes"),
        ("Sort", (X, True, 0, False, new(3, 4), new(4, 4, dtype=torch.int64)), "must be equal"),
        ("DropoutDoMask", (X, new(1, dtype=torch.uint8), 0.5, new(3, 4)), "mask is too short"),
    ],
)
def test_refusals_in_phase_1(op, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        call(op, *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [5, 70])
def test_batches_of_one_matrix_are_multiplied_by_each_of_the_others(dtype, size):
    one, many = torch.randn(1, 3, size).to(dtype), torch.randn(4, size, 7).to(dtype)
    out = torch.empty(4, 3, 7, dtype=dtype)
    call("BatchMatMul", one, many, out, 0)
    assert_close(out, one.double() @ many.double(), terms=size)
    out = torch.empty(4, 7, 3, dtype=dtype)
    call("BatchMatMul", many.mT, one.mT, out, 0)
    assert_close(out, many.double().mT @ one.double().mT, terms=size)


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [((3, 2, 5), (4, 5, 2), (4, 2, 2)), ((1, 2, 5), (4, 5, 2), (1, 2, 2)), ((4, 2, 5), (4, 5, 2), (2, 2))],
)
def test_batches_that_do_not_fit_are_refused(left, right, out):
    with pytest.raises(RuntimeError, match=r"cannot multiply|it must have 3 dimensions"):
        call("BatchMatMul", torch.randn(left), torch.randn(right), torch.empty(out), 0)


@pytest.mark.parametrize("room", [0, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_ctc_loss_with_room_for_more_in_log_alpha(room, batched):
    log_probs = torch.randn(9, 2, 5, dtype=torch.double).log_softmax(-1).requires_grad_()
    targets, lengths = torch.tensor([[1, 2, 2], [4, 3, 0]]), ([9, 8], [3, 2])
    if not batched:
        log_probs, targets, lengths = log_probs.detach()[:, 0].clone().requires_grad_(), targets[0], ([9], [3])
    loss = F.ctc_loss(log_probs, targets, *lengths, reduction="none")
    x, batches = log_probs.detach().float(), len(lengths[0])
    out, alpha = torch.empty(loss.shape), new(batches, 9, 7 + room)
    call("CtcLoss", x, targets, *lengths, 0, False, out, alpha)
    assert_close(out, loss.detach(), terms=64)
    loss.sum().backward()
    grad = torch.empty_like(x)
    call("CtcLossBackward", torch.ones_like(out), x, targets, *lengths, out, alpha, 0, False, grad)
    assert_close(grad, log_probs.grad, terms=64)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("InplaceAdd", (torch.ones(3, dtype=torch.int64), torch.ones(3), 1)),
        ("InplaceAdds", (torch.ones(3, dtype=torch.int64), 1.5, 1)),
        ("InplaceMul", (torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.int32))),
        ("InplaceMuls", (torch.ones(3, dtype=torch.int32), 0.5)),
        ("InplaceDiv", (torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int32))),
        ("Divs", (torch.ones(3, dtype=torch.int32), 2, torch.ones(3, dtype=torch.int32))),
        ("Sub", (torch.ones(3, dtype=torch.complex64), torch.ones(3), 1, torch.ones(3))),
        ("PowScalarTensor", (1.5, torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int32))),
    ],
)
def test_results_that_cannot_be_cast_are_refused_before_work_is_on_a_stream(op, arguments):
    with pytest.raises(RuntimeError, match=r"161002.*can't be cast to the desired output type"):
        call(op, *arguments)


def test_hardsigmoid_of_integers_is_cut_off():
    x = torch.tensor([-6, -1, 0, 2, 3, 9], dtype=torch.int32)
    out = torch.empty_like(x)
    call("Hardsigmoid", x, out)
    assert out.tolist() == F.hardsigmoid(x.float()).int().tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_in_16_bits_are_summed_in_float32(dtype):
    x, target, weight = torch.randn(3000, 5).to(dtype), torch.randint(0, 5, (3000,)), torch.rand(5).to(dtype)
    for reduction, name in ((1, "mean"), (2, "sum")):
        out, total = torch.empty((), dtype=dtype), torch.empty((), dtype=dtype)
        call("NLLLoss", x, target, weight, reduction, 2, out, total)
        expected = F.nll_loss(x.double(), target, weight.double(), ignore_index=2, reduction=name)
        assert_close(out, expected)
        assert_close(total, weight.double()[target].masked_fill(target == 2, 0).sum())
    image, labels = x.view(3, 5, 20, 50), target.view(3, 20, 50)
    call("NLLLoss2d", image, labels, None, 1, 2, out, total)
    assert_close(out, F.nll_loss(image.double(), labels, ignore_index=2))
    margins = torch.empty(4, dtype=dtype)
    labels = torch.tensor([[1, 3, -1, 0, 2]]).expand(4, 5)
    call("MultilabelMarginLoss", x[:4], labels, 0, margins, torch.empty(4, 5, dtype=dtype))
    assert_close(margins, F.multilabel_margin_loss(x[:4].double(), labels, reduction="none"), terms=8)
    distances = torch.empty(6, dtype=dtype)
    call("Pdist", x[:4], 2.0, distances)
    assert_close(distances, torch.pdist(x[:4].double()), terms=5)


def test_images_are_padded_apart_at_both_ends():
    x, weight = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 2, 2)
    expected = F.conv2d(F.pad(x, (3, 0, 1, 2)).double(), weight.double())
    out = torch.empty(expected.shape)
    call("Convolution", x, weight, None, [1, 1], [1, 2, 3, 0], [1, 1], False, [0, 0], 1, out, 0)
    assert_close(out, expected, terms=12)
    with pytest.raises(RuntimeError, match="the kernel has no elements"):
        call("Convolution", x, weight[:, :, :0], None, [1, 1], [0], [1, 1], False, [0, 0], 1, out, 0)


@pytest.mark.parametrize("p", [0, -1.5])
def test_norms_that_are_no_norms_are_refused(p):
    with pytest.raises(RuntimeError, match=r"161002.*p must be positive"):
        call("Renorm", X, p, 0, 1, new(3, 4))


def test_triangular_matrices_of_batches():
    a, b = torch.randn(4, 4).tril() + 4 * torch.eye(4), torch.randn(2, 3, 4, 5)
    x, copy = torch.empty(2, 3, 4, 5), torch.empty(2, 3, 4, 4)
    call("TriangularSolve", b, a, False, False, False, x, copy)
    assert_close(x, torch.linalg.solve_triangular(a.double(), b.double(), upper=False), terms=64)
    assert torch.equal(copy, a.expand_as(copy))
