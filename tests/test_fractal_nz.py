"""FRACTAL_NZ: matrices packed as the matrix unit of an NPU reads them, and what else may touch them."""

import copy
import ctypes
import io

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close

import torch_npu
from torch_npu import Format

NZ, ND = Format.FRACTAL_NZ, Format.ND
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


def packed(x: torch.Tensor) -> torch.Tensor:
    y = torch_npu.npu_format_cast(x, NZ)
    assert torch_npu.get_npu_format(y) is NZ
    return y


def conversions() -> dict[str, int]:
    """Operators that made a packed tensor plain since the last call."""
    found = {c.function: c.calls for c in torch_npu.unfused_report() if "private format" in c.reason}
    torch_npu.clear_unfused_report()
    return found


@pytest.fixture(autouse=True)
def _fresh_report():
    torch_npu.clear_unfused_report()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8, torch.int32, torch.float64, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (17, 33), (3, 65), (2, 5, 31), (2, 1, 3, 40), (0, 4)])
def test_round_trip(dtype, shape):
    x = torch.randn(shape).mul(9).to(dtype).npu()
    y = packed(x)
    assert y.shape == x.shape
    assert y.is_contiguous()
    assert y.nbytes == x.nbytes
    back = torch_npu.npu_format_cast(y, ND)
    assert torch_npu.get_npu_format(back) is ND
    assert not conversions()
    assert torch.equal(back, x)


@pytest.mark.parametrize(("dtype", "columns"), [(torch.float16, 16), (torch.float32, 16), (torch.int8, 32)])
def test_the_memory_is_in_blocks(dtype, columns):
    x = torch.arange(20 * 50).remainder(100).reshape(20, 50).to(dtype)
    blocks = -(-50 // columns)
    y = packed(x.npu())
    assert torch_npu.get_storage_size(y) == torch_npu._npu_storage_size(y) == blocks * 32 * columns
    memory = torch.empty(blocks * 32 * columns, dtype=dtype)
    torch.npu.synchronize()
    ctypes.memmove(memory.data_ptr(), y.data_ptr(), memory.nbytes)
    expected = F.pad(x, (0, blocks * columns - 50, 0, 12)).view(2, 16, blocks, columns).permute(2, 0, 1, 3)
    assert torch.equal(memory.view(blocks, 2, 16, columns), expected)


def test_strided_tensors_are_packed():
    x = torch.randn(40, 34, device="npu")
    assert torch.equal(packed(x.t()), x.t())
    assert torch.equal(packed(x[3:, ::2]), x[3:, ::2])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 17, 40, 530])
@pytest.mark.parametrize(("inner", "columns"), [(2, 2), (16, 16), (33, 50), (80, 129), (130, 531), (1039, 70)])
def test_products_read_packed_weights(dtype, rows, inner, columns):
    x, w, b = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
    x, w, b = x.to(dtype).npu(), w.to(dtype).npu(), b.to(dtype).npu()
    nz = packed(w)
    plain = packed(w.t().contiguous())
    product = x.double().cpu() @ w.double().cpu().t()
    for y in (F.linear(x, nz), x @ nz.t(), torch.mm(x, plain), torch.matmul(x[None], plain)[0]):
        assert_close(y.cpu(), product, terms=inner)
    for y in (F.linear(x, nz, b), torch.addmm(b, x, plain)):
        assert_close(y.cpu(), product + b.double().cpu(), terms=inner)
    scaled = torch.addmm(b, x, plain, beta=0.5, alpha=2)
    assert_close(scaled.cpu(), 2 * product + 0.5 * b.double().cpu(), terms=2 * inner)
    assert not conversions()


@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_strided_tensors_read_packed_weights(dtype):
    x, w, b = (torch.randn(s).to(dtype).npu() for s in ((70, 50), (300, 70), (300,)))
    expected = x.double().cpu().t() @ w.double().cpu().t()
    for y in (F.linear(x.t(), packed(w)), x.t() @ packed(w.t().contiguous())):
        assert_close(y.cpu(), expected, terms=70)
    assert_close(F.linear(x.t(), packed(w), b).cpu(), expected + b.double().cpu(), terms=70)
    assert not conversions()


def test_infinities_stay_in_their_places():
    x, w = torch.randn(2, 35), torch.randn(19, 35)
    x[0, 34], w[3, 2] = float("inf"), float("nan")
    expected, y = F.linear(x, w), F.linear(x.npu(), packed(w.npu())).cpu()
    torch.testing.assert_close(y, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_linear_layer_with_a_packed_weight():
    layer = torch.nn.Linear(34, 50).npu()
    reference = copy.deepcopy(layer).cpu().double()
    layer.weight.data = packed(layer.weight.data)
    x = torch.randn(3, 5, 34)
    ours, theirs = x.npu().requires_grad_(), x.double().requires_grad_()
    layer(ours).square().sum().backward()
    reference(theirs).square().sum().backward()
    assert not conversions()
    assert_close(ours.grad.cpu(), theirs.grad, terms=50)
    assert_close(layer.weight.grad.cpu(), reference.weight.grad, terms=50)
    assert torch_npu.get_npu_format(layer.weight) is NZ
    assert torch_npu.get_npu_format(layer.weight.grad) is ND


def test_the_cast_has_a_gradient():
    w = torch.randn(20, 18, device="npu", requires_grad=True)
    torch_npu.npu_format_cast(packed(w), ND).mul(3).sum().backward()
    assert torch.equal(w.grad, torch.full_like(w, 3))


def test_the_cast_below_the_function_always_copies():
    w = torch.randn(20, 18, device="npu")
    copies = [torch_npu._npu_format_cast(packed(w), NZ), torch_npu._npu_format_cast(w, ND)]
    assert [torch_npu.get_npu_format(c) for c in copies] == [NZ, ND]
    assert all(torch.equal(c.cpu(), w.cpu()) and c.data_ptr() != w.data_ptr() for c in copies)


@pytest.mark.parametrize(
    "read",
    [
        lambda w: w.cpu(),
        lambda w: w.clone(),
        lambda w: w * 2,
        lambda w: w.sum(),
        lambda w: w[3],
        lambda w: w[:, 2:7].contiguous(),
        lambda w: w.reshape(-1),
        lambda w: w.to(torch.float16),
        lambda w: torch.cat([w, w]),
        lambda w: w.t() @ w,
        lambda w: w[0, 0].item(),
        lambda w: w.tolist(),
        lambda w: repr(w),
        lambda w: torch.linalg.svdvals(w),  # on the CPU
        lambda w: F.embedding(torch.tensor([1, 0], device=w.device), w),
        lambda w: torch._foreach_add([w, w], 1),
        lambda w: w.view(torch.int32).flatten(),
        lambda w: w.detach().as_strided((3, 2), (5, 1), 4),
    ],
)
def test_other_operators_see_plain_numbers_and_that_is_noted(read):
    w = torch.randn(19, 21, device="npu")
    nz = packed(w)
    ours, theirs = read(nz), read(w)
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours.cpu(), theirs.cpu())
    elif isinstance(theirs, list | tuple) and isinstance(theirs[0], torch.Tensor):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    else:
        assert ours == theirs
    assert sum(conversions().values()) > 0
    assert torch_npu.get_npu_format(nz) is NZ


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.copy_(torch.arange(19 * 21.0).view(19, 21)),
        lambda w: w.zero_(),
        lambda w: w.add_(w, alpha=2),
        lambda w: w[4].fill_(7),
        lambda w: w.t()[2:5].mul_(3),
        lambda w: torch._foreach_mul_([w], 2),
        lambda w: torch.add(w, 1, out=w),
        lambda w: w.view(-1)[5:90].neg_(),
        lambda w: w.index_fill_(0, torch.tensor([1], device=w.device), 5),
        lambda w: w.erfinv_(),  # on the CPU
        lambda w: w.untyped_storage().fill_(0),
    ],
)
def test_writes_arrive(write):
    w = torch.rand(19, 21, device="npu")
    nz = packed(w)
    write(nz), write(w)
    assert conversions()
    assert torch_npu.get_npu_format(nz) is NZ
    assert torch.equal(nz.cpu(), w.cpu())


def test_in_place_operators_return_their_argument():
    nz = packed(torch.ones(4, 4, device="npu"))
    version = nz._version
    assert nz.add_(1) is nz
    assert nz._version == version + 1


def test_optimizers_train_packed_parameters():
    layers = [torch.nn.Linear(20, 30).npu() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].weight.data = packed(layers[1].weight.data)
    x = torch.randn(8, 20, device="npu")
    for layer in layers:
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    assert torch_npu.get_npu_format(layers[1].weight) is NZ
    assert_close(layers[1].weight.cpu(), layers[0].weight.cpu().double(), terms=1000)


def test_saving_copying_and_loading_keep_the_numbers():
    layer = torch.nn.Linear(33, 20).npu()
    weight = layer.weight.detach().cpu()
    layer.weight.data = packed(layer.weight.data)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    assert torch.equal(loaded["weight"].cpu(), weight)
    assert torch_npu.get_npu_format(loaded["weight"]) is ND
    assert torch.equal(copy.deepcopy(layer).weight.cpu(), weight)
    other = torch.nn.Linear(33, 20).npu()
    other.weight.data = packed(other.weight.data)
    other.load_state_dict(loaded)
    assert torch_npu.get_npu_format(other.weight) is NZ
    assert torch.equal(other.weight.cpu(), weight)
    assert torch.equal(layer.cpu().weight, weight)


def test_in_place_casts():
    x = torch.randn(20, 30, device="npu")
    numbers = x.cpu()
    assert torch_npu.npu_format_cast_(x, NZ) is x
    assert torch_npu.get_npu_format(x) is NZ
    assert torch_npu.get_npu_format(x.t()) is NZ
    assert torch.equal(x.cpu(), numbers)
    other = torch.ones(2, 2, device="npu")
    torch_npu.npu_format_cast_(x, other)
    assert torch_npu.get_npu_format(x) is ND
    assert torch.equal(x, numbers.npu())
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(x, packed(other))) is NZ


def test_in_place_casts_of_shared_memory_are_refused():
    parameter = torch.nn.Parameter(torch.randn(20, 30, device="npu"))
    with pytest.raises(NotImplementedError, match=r"Write p.data = torch_npu.npu_format_cast\(p.data, 29\)"):
        torch_npu.npu_format_cast_(parameter.data, NZ)
    assert torch_npu.get_npu_format(parameter) is ND


def test_what_is_no_matrix_stays_plain_and_says_so(capfd):
    x = torch.ones(5, device="npu")
    torch._C._set_warnAlways(True)
    try:
        y = torch_npu.npu_format_cast(x, NZ)
        torch_npu.npu_format_cast_(x, NZ)
    finally:
        torch._C._set_warnAlways(False)
    said = "FRACTAL_NZ (29) packs matrices; a tensor of shape [5] stays in its plain format"
    assert capfd.readouterr().err.count(said) == 2
    assert torch_npu.get_npu_format(x) is torch_npu.get_npu_format(y) is ND
    assert y.data_ptr() != x.data_ptr()
    assert torch.equal(x, y)


def test_resizing_is_refused():
    x = packed(torch.ones(5, 5, device="npu"))
    with pytest.raises(NotImplementedError, match=r"cast it back first: torch_npu.npu_format_cast\(t, 2\)"):
        x.resize_(3)
    with pytest.raises(RuntimeError, match="resiz"):
        x.untyped_storage().resize_(4096)


def test_set_takes_the_format_along():
    x, w = torch.ones(4, 4, device="npu"), torch.randn(20, 20, device="npu")
    x.set_(packed(w))
    assert torch_npu.get_npu_format(x) is NZ
    assert torch.equal(x.cpu(), w.cpu())
    x.set_(w)
    assert torch_npu.get_npu_format(x) is ND
    assert torch.equal(x, w)


def test_weak_references_know_the_format():
    x = packed(torch.randn(20, 30, device="npu"))
    weak = torch_npu._C._weak_ref_tensor(x)
    assert torch_npu.get_npu_format(weak) is NZ
    assert weak.data_ptr() == x.data_ptr()
    assert torch.equal(weak.cpu(), x.cpu())


def test_captured_products_replay():
    w, x = packed(torch.randn(50, 34, device="npu")), torch.randn(2, 34, device="npu")
    F.linear(x, w)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = F.linear(x, w)
        z = (w * 2).sum(0)  # converted at each replay
    x.copy_(torch.randn(2, 34))
    w.mul_(2)
    graph.replay()
    plain = torch_npu.npu_format_cast(w, ND)
    assert_close(y.cpu(), F.linear(x, plain).cpu().double(), terms=34)
    assert_close(z.cpu(), (plain * 2).sum(0).cpu().double(), terms=50)


def test_sunk_models_read_packed_weights():
    model = torch.nn.Sequential(torch.nn.Linear(34, 50), torch.nn.ReLU(), torch.nn.Linear(50, 20)).npu().eval()
    x = torch.randn(2, 34, device="npu")
    with torch.no_grad():
        expected = model(x).cpu()
        for layer in (model[0], model[2]):
            layer.weight.data = packed(layer.weight.data)
        conversions()
        with torch_npu.enable_graph():
            for _ in range(4):
                y = model(x)
        assert not conversions()
    assert_close(y.cpu(), expected.double(), terms=50)


def test_compiled_models_read_packed_weights():
    model = torch.nn.Sequential(torch.nn.Linear(34, 50), torch.nn.GELU(), torch.nn.Linear(50, 20)).npu().eval()
    x = torch.randn(2, 34, device="npu")
    with torch.no_grad():
        expected = model(x).cpu()
        compiled = torch.compile(model, backend="npu")
        assert_close(compiled(x).cpu(), expected.double(), terms=50)
        for layer in (model[0], model[2]):
            layer.weight.data = packed(layer.weight.data)
        for _ in range(3):
            y = compiled(x)
    assert_close(y.cpu(), expected.double(), terms=50)


def test_fused_kernels_refuse_packed_tensors():
    def f(x, w):
        return (x * w).relu() + 1

    x, w = torch.randn(20, 20, device="npu"), torch.randn(20, 20, device="npu")
    compiled = torch.compile(f, backend="npu")
    assert_close(compiled(x, w).cpu(), f(x, w).cpu().double())
    nz = packed(w)
    with pytest.raises(Exception, match=r"FRACTAL_NZ.*npu_format_cast\(t, 2\)"):
        compiled(x, nz)
