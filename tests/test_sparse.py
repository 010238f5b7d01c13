"""Sparse tensors on npu: built from npu indices and values; operators run on the CPU's kernels over the same memory."""

import copy

import pytest
import torch
from tolerance import assert_close
from torch import nn

LAYOUTS = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
}


def dense(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """On the CPU, with about half of the elements zero."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator)
    return (values * (torch.rand(*shape, generator=generator) < 0.5)).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in layout, dtype, shape, number of entries and values, and on npu."""
    assert actual.device.type == "npu"
    assert actual.layout == expected.layout
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.layout is torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
    if actual.layout is not torch.strided:
        assert actual._nnz() == expected._nnz()
        assert actual.values().device.type == "npu" if actual.layout is not torch.sparse_coo else True
        actual, expected = actual.to_dense(), expected.to_dense()
    assert_close(actual, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
def test_from_dense_and_back(layout, dtype):
    host = dense(4, 6, dtype=dtype)
    same(LAYOUTS[layout](host.npu()), LAYOUTS[layout](host))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moves_between_devices(layout):
    host = LAYOUTS[layout](dense(4, 6))
    moved = host.to("npu")
    same(moved, host)
    back = moved.cpu()
    assert back.device.type == "cpu"
    assert back.layout == host.layout
    assert torch.equal(back.to_dense(), host.to_dense())


def test_constructors():
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
    values = torch.tensor([3.0, 4.0, 5.0])
    from_npu = torch.sparse_coo_tensor(indices.npu(), values.npu(), (2, 4))
    from_host = torch.sparse_coo_tensor(indices, values, (2, 4), device="npu")
    expected = torch.sparse_coo_tensor(indices, values, (2, 4))
    same(from_npu, expected)
    same(from_host, expected)
    assert torch.sparse_coo_tensor((3, 5), device="npu")._nnz() == 0


def test_values_and_indices_are_npu_tensors_that_share_memory():
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,), device="npu").coalesce()
    assert sparse.indices().device.type == sparse.values().device.type == "npu"
    sparse.values().mul_(10)
    assert sparse.to_dense().tolist() == [10.0, 0.0, 20.0, 0.0]


def test_invalid_indices_are_refused():
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        torch.sparse_coo_tensor(
            torch.tensor([[0, 9]]), torch.tensor([1.0, 2.0]), (4,), device="npu", check_invariants=True
        )


def test_coalesce_sums_duplicates():
    indices = torch.tensor([[1, 0, 1, 1], [2, 0, 2, 0]])
    values = torch.tensor([1.0, 2.0, 4.0, 8.0])
    host = torch.sparse_coo_tensor(indices, values, (2, 3))
    device = torch.sparse_coo_tensor(indices.npu(), values.npu(), (2, 3))
    assert not device.is_coalesced()
    same(device.coalesce(), host.coalesce())
    assert device.coalesce().is_coalesced()


@pytest.mark.parametrize(
    "call",
    [
        lambda s, d: torch.sparse.mm(s, d),
        lambda s, d: s @ d,
        lambda s, d: torch.sparse.addmm(torch.ones(4, 3, device=d.device), s, d, beta=0.5, alpha=2),
        lambda s, d: torch.sparse.mm(s, s.t().coalesce()),
        lambda s, d: s * 2.5,
        lambda s, d: s + s,
        lambda s, d: s * s,
        lambda s, d: s.neg().abs().sqrt(),
        lambda s, d: torch.sparse.sum(s, 0),
        lambda s, d: torch.sparse.sum(s),
        lambda s, d: torch.sparse.softmax(s, 1),
        lambda s, d: s.transpose(0, 1),
        lambda s, d: s.index_select(0, torch.tensor([2, 0], device=d.device)),
        lambda s, d: torch.cat([s, s]),
        lambda s, d: s.unsqueeze(0).coalesce(),
        lambda s, d: s.clone().mul_(3),
        lambda s, d: s.clone().zero_(),
        lambda s, d: torch.ones(4, 6, device=d.device) + s,
        lambda s, d: torch.ones(4, 6, device=d.device).add_(s, alpha=-2),
        lambda s, d: torch.ones(4, 6, device=d.device).sparse_mask(s),
        lambda s, d: s.double(),
    ],
)
def test_operators(call):
    matrix, right = dense(4, 6), torch.randn(6, 3)
    same(call(matrix.npu().to_sparse(), right.npu()), call(matrix.to_sparse(), right))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])  # PyTorch has no product with BSC on the CPU
def test_matmul_with_dense(layout):
    matrix, right = dense(4, 6), torch.randn(6, 4)
    same(LAYOUTS[layout](matrix.npu()) @ right.npu(), LAYOUTS[layout](matrix) @ right)


def test_gradients_through_sparse_mm():
    results = []
    for device in ("cpu", "npu"):
        sparse = dense(4, 6).to(device).to_sparse().requires_grad_()
        right = torch.linspace(-1, 1, 18).reshape(6, 3).to(device).requires_grad_()
        torch.sparse.mm(sparse, right).pow(2).sum().backward()
        results.append((sparse.grad, right.grad))
    (host_sparse, host_right), (npu_sparse, npu_right) = results
    same(npu_sparse, host_sparse)
    same(npu_right, host_right)


@pytest.mark.parametrize("optimizer", ["SparseAdam", "SGD", "Adagrad"])
def test_training_an_embedding_with_sparse_gradients(optimizer):
    torch.manual_seed(0)
    host = nn.Embedding(20, 8, sparse=True)
    device = copy.deepcopy(host).to("npu")
    tokens = torch.tensor([[1, 4, 4], [9, 1, 19]])
    for model in (host, device):
        step = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
        for _ in range(3):
            step.zero_grad()
            model(tokens.to(model.weight.device)).square().sum().backward()
            assert model.weight.grad.is_sparse
            step.step()
    same(device.weight.grad.coalesce(), host.weight.grad.coalesce())
    assert_close(device.weight, host.weight)


def test_embedding_bag_with_sparse_gradients():
    torch.manual_seed(0)
    host = nn.EmbeddingBag(20, 8, sparse=True, mode="sum")
    device = copy.deepcopy(host).to("npu")
    tokens, offsets = torch.tensor([1, 4, 4, 9, 1]), torch.tensor([0, 3])
    for model in (host, device):
        model(tokens.to(model.weight.device), offsets.to(model.weight.device)).square().sum().backward()
    same(device.weight.grad.coalesce(), host.weight.grad.coalesce())


def test_accumulating_sparse_gradients():
    weight = torch.zeros(5, 2, device="npu", requires_grad=True)
    for _ in range(2):
        nn.functional.embedding(torch.tensor([1, 1, 3], device="npu"), weight, sparse=True).sum().backward()
    assert weight.grad.is_sparse
    assert weight.grad.to_dense()[:, 0].tolist() == [0.0, 4.0, 0.0, 2.0, 0.0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_printing_copying_and_saving(layout, tmp_path):
    sparse = LAYOUTS[layout](dense(4, 6)).to("npu")
    assert "device='npu:0'" in repr(sparse)
    assert f"layout=torch.sparse_{layout}" in repr(sparse)
    same(copy.deepcopy(sparse), sparse.cpu())
    torch.save(sparse, tmp_path / "sparse.pt")
    same(torch.load(tmp_path / "sparse.pt"), sparse.cpu())


def csr(values: list[float], device: str) -> torch.Tensor:
    crow, column = torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1])
    return torch.sparse_csr_tensor(crow.to(device), column.to(device), torch.tensor(values).to(device), (2, 4))


@pytest.mark.parametrize(
    "call",
    [
        lambda s: torch.ops.aten._sparse_csr_sum.dim_dtype(s, [1], True),
        lambda s: torch.ops.aten._sparse_csr_prod.dim_dtype(s, [0], True),
        lambda s: s * 2.5,
        lambda s: s + s,
        lambda s: s.sin().neg(),
        lambda s: s.transpose(0, 1),
        lambda s: s.clone().mul_(3),
        lambda s: s.to_sparse_coo(),
        lambda s: s.double(),
        lambda s: s[1],
        lambda s: torch.zeros_like(s),
        lambda s: torch.addmm(torch.ones(2, 3, device=s.device), s, torch.ones(4, 3, device=s.device), beta=0.5),
    ],
)
def test_csr_operators(call):
    values = [1.0, -2.0, 3.0]
    same(call(csr(values, "npu")), call(csr(values, "cpu")))


def test_the_parts_of_csr_are_npu_tensors_that_share_memory():
    sparse = csr([1.0, -2.0, 3.0], "npu")
    sparse.values().mul_(2)
    assert sparse.values().tolist() == [2.0, -4.0, 6.0]
    assert sparse.crow_indices().tolist() == [0, 2, 3]
    assert sparse.col_indices().device == torch.device("npu:0")
    assert sparse.clone().values().data_ptr() != sparse.values().data_ptr()


def test_gradients_through_csr_matmul():
    grads = []
    for device in ("cpu", "npu"):
        sparse = csr([1.0, -2.0, 3.0], device)
        right = torch.linspace(-1, 1, 12, device="cpu").reshape(4, 3).to(device).requires_grad_()
        (sparse @ right).pow(2).sum().backward()
        grads.append(right.grad)
    same(grads[1], grads[0])


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_through_reducing_csr_matmul(reduce):
    grads = []
    for device in ("cpu", "npu"):
        sparse = csr([1.0, -2.0, 3.0], device)
        right = torch.linspace(-1, 1, 12, device="cpu").reshape(4, 3).to(device).requires_grad_()
        torch.sparse.mm(sparse, right, reduce).pow(2).sum().backward()
        grads.append(right.grad)
    same(grads[1], grads[0])


def test_fallback_is_in_the_ledger():
    import torch_npu

    torch_npu.clear_fallback_report()
    torch.sparse.mm(dense(4, 6).npu().to_sparse(), torch.randn(6, 3).npu())
    entries = {e.op: e for e in torch_npu.fallback_report()}
    assert entries["aten::_sparse_mm"].bytes > 0 if "aten::_sparse_mm" in entries else entries["aten::addmm"].bytes > 0


def test_onednn_tensors_are_refused():
    with pytest.raises(NotImplementedError, match=r"(?i)mkldnn"):
        torch.ones(2, 2, device="npu").to_mkldnn()
