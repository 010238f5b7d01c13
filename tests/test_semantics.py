"""What PyTorch promises of tensors on any device: views, autograd, transforms, storages, exchange."""

import copy
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
import torch
from tolerance import assert_close
from torch import nn
from torch.utils.checkpoint import checkpoint

# --- views and versions ---------------------------------------------------------------------------------------------


def test_views_share_memory_and_write_through():
    base = torch.zeros(3, 4, device="npu")
    base.t()[1].fill_(5)
    base[2, ::2] += 1
    base.view(2, 6).select(0, 0).mul_(2)
    assert base.tolist() == [[0, 10, 0, 0], [0, 10, 0, 0], [1, 5, 1, 0]]
    assert base[1:].untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert base[1:].data_ptr() == base.data_ptr() + 4 * 4
    assert base[1:]._base is base


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(torch.int32),
        lambda t: t.view(2, 12),
        lambda t: t.unfold(1, 2, 2),
        lambda t: t.diagonal(),
        lambda t: t.expand(5, 4, 6),
        lambda t: t.narrow(1, 2, 3),
        lambda t: t.unsqueeze(1).squeeze(1),
        lambda t: t.movedim(0, 1),
        lambda t: torch.as_strided(t, (2, 2), (1, 3), 4),
        lambda t: t.reshape(24),
        lambda t: t.detach(),
        lambda t: t.split(2)[1],
        lambda t: t.chunk(3, 1)[2],
        lambda t: t.unbind(1)[3],
        lambda t: t.swapaxes(0, 1).contiguous().t(),
    ],
)
def test_views_have_the_strides_of_the_cpu(view):
    host = torch.arange(24.0).reshape(4, 6)
    device = host.npu()
    expected, actual = view(host), view(device)
    assert actual.stride() == expected.stride()
    assert actual.storage_offset() == expected.storage_offset()
    assert (actual.untyped_storage()._cdata == device.untyped_storage()._cdata) == (
        expected.untyped_storage()._cdata == host.untyped_storage()._cdata
    )
    assert torch.equal(actual.cpu(), expected)


def test_complex_views():
    real = torch.arange(6.0, device="npu").reshape(3, 2)
    number = torch.view_as_complex(real)
    number.imag.mul_(-1)
    assert real.tolist() == [[0, -1], [2, -3], [4, -5]]
    assert number.conj().is_conj()
    assert number.conj().cpu().tolist() == [1j, 2 + 3j, 4 + 5j]
    assert number.conj().imag.is_neg()
    assert torch.equal(number.conj().imag.cpu(), torch.tensor([1.0, 3.0, 5.0]))


def test_version_counters():
    x = torch.ones(3, device="npu")
    before = x._version
    x.add_(1)
    x[:2].mul_(2)
    torch.neg(x, out=x)
    assert x._version == before + 3
    assert x.detach()._version == x._version


def test_writing_into_what_backward_needs_is_noticed():
    x = torch.ones(3, device="npu", requires_grad=True)
    y = x.exp()
    z = y.square()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_inplace_on_a_leaf_is_refused():
    x = torch.ones(3, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        x.add_(1)


def test_gradient_through_inplace_on_a_view():
    x = torch.arange(4.0, device="npu", requires_grad=True)
    y = x.clone()
    y[:2].mul_(3)
    y[1:].exp_()
    y.sum().backward()
    reference = torch.arange(4.0, requires_grad=True)
    z = reference.clone()
    z[:2].mul_(3)
    z[1:].exp_()
    z.sum().backward()
    assert_close(x.grad, reference.grad)


# --- autograd -------------------------------------------------------------------------------------------------------


def test_hooks_see_npu_tensors():
    seen = []
    x = torch.ones(2, device="npu", requires_grad=True)
    y = x * 3
    y.register_hook(lambda g: seen.append(g.device.type) or g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    y.sum().backward()
    assert seen == ["npu", [6.0, 6.0]]


def test_module_hooks():
    layer = nn.Linear(2, 2).to("npu")
    seen = []
    layer.register_forward_hook(lambda m, i, o: seen.append(o.device.type))
    layer.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].device.type))
    layer(torch.ones(1, 2, device="npu", requires_grad=True)).sum().backward()
    assert seen == ["npu", "npu"]


def test_double_backward():
    def hessian_vector(device: str) -> torch.Tensor:
        x = torch.linspace(-1, 1, 6, device=device, requires_grad=True)
        (g,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x)
        return h

    assert_close(hessian_vector("npu"), hessian_vector("cpu"))


def test_gradcheck_in_float64():
    x = torch.randn(3, 4, dtype=torch.float64, device="npu", requires_grad=True)
    w = torch.randn(2, 4, dtype=torch.float64, device="npu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: nn.functional.linear(x, w).tanh().logsumexp(1), (x, w))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_repeats_random_numbers(use_reentrant):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU()).to("npu")
    x = torch.randn(4, 8, device="npu", requires_grad=True)
    grads = []
    for run in (lambda: layer(x), lambda: checkpoint(layer, x, use_reentrant=use_reentrant)):
        torch.npu.manual_seed(7)
        (grad,) = torch.autograd.grad(run().square().sum(), x) if not use_reentrant else (None,)
        if use_reentrant:
            x.grad = None
            torch.npu.manual_seed(7)
            run().square().sum().backward()
            grad = x.grad
        grads.append(grad.cpu())
    assert torch.equal(grads[0], grads[1])


def test_custom_function_and_saved_tensor_hooks():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert x.device.type == "npu"
            return 3 * x**2 * g

    x = torch.tensor([2.0], device="npu", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = Cube.apply(x)
    y.backward()
    assert x.grad.tolist() == [12.0]


def test_anomaly_mode_names_the_forward():
    x = torch.tensor([-1.0], device="npu", requires_grad=True)
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.warns(UserWarning, match="Error detected in SqrtBackward"),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        x.sqrt().sum().backward()


def test_gradients_accumulate_into_the_same_memory():
    x = torch.ones(3, device="npu", requires_grad=True)
    x.sum().backward()
    address = x.grad.data_ptr()
    (x * 2).sum().backward()
    assert x.grad.data_ptr() == address
    assert x.grad.tolist() == [3.0, 3.0, 3.0]


# --- functional transforms and modes --------------------------------------------------------------------------------


def both(function):
    return function("npu"), function("cpu")


def test_vmap():
    def run(device):
        x = torch.arange(12.0, device=device).reshape(3, 4)
        return torch.vmap(lambda row: (row * row.sum()).softmax(0), in_dims=1, out_dims=1)(x)

    assert_close(*both(run))


def test_vmap_over_matmul_and_random():
    a = torch.arange(24.0, device="npu").reshape(2, 3, 4)
    b = torch.ones(4, 5, device="npu")
    assert_close(torch.vmap(torch.mm, in_dims=(0, None))(a, b), a.cpu() @ b.cpu())
    draws = torch.vmap(lambda x: x + torch.rand(3, device="npu"), randomness="different")(
        torch.zeros(2, 1, device="npu")
    )
    assert not torch.equal(draws[0], draws[1])


def test_grad_jacobian_hessian():
    def run(device):
        x = torch.linspace(0.1, 1, 5, device=device)
        f = lambda x: (x.log() * x.sin()).sum()  # noqa: E731
        return torch.cat(
            [torch.func.grad(f)(x), torch.func.hessian(f)(x).flatten(), torch.func.jacrev(torch.exp)(x).flatten()]
        )

    assert_close(*both(run))


def test_forward_mode():
    def run(device):
        x, t = torch.linspace(0.1, 1, 5, device=device), torch.ones(5, device=device)
        out, tangent = torch.func.jvp(lambda x: nn.functional.gelu(x) * x.sum(), (x,), (t,))
        return torch.stack([out, tangent])

    assert_close(*both(run))


def test_functional_call_and_per_sample_gradients():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.randn(5, 3)

    def run(device):
        m = copy.deepcopy(model).to(device)
        params = dict(m.named_parameters())
        loss = lambda p, row: torch.func.functional_call(m, p, (row,)).square().sum()  # noqa: E731
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x.to(device))["weight"]

    assert_close(*both(run))


def test_inference_mode():
    layer = nn.Linear(2, 2).to("npu")
    with torch.inference_mode():
        out = layer(torch.ones(1, 2, device="npu"))
        out.add_(1)
        assert out.is_inference()
        assert out.cpu().is_inference()
    assert not out.requires_grad
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        layer(out)
    assert torch.equal(out.clone().cpu(), out.cpu())


def test_no_grad_and_set_grad_enabled():
    x = torch.ones(2, device="npu", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_dispatch_mode_and_function_mode_see_npu_calls():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    with Names() as mode:
        torch.ones(2, device="npu").add_(1)
    assert "aten::add_.Tensor" in mode.names


def test_tensor_subclasses():
    class Tagged(torch.Tensor):
        pass

    x = torch.ones(2, device="npu").as_subclass(Tagged)
    assert isinstance(x + 1, Tagged)
    assert (x + 1).device.type == "npu"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_with_stock_backends(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to("npu")
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(3, 8, device="npu")
    expected = model(x)
    actual = compiled(x)
    assert actual.device.type == "npu"
    assert_close(actual, expected, terms=16)
    grads = []
    for m in (model, compiled):
        model.zero_grad()
        m(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, e in zip(grads[1], grads[0], strict=True):
        assert_close(a, e, terms=16)
    torch._dynamo.reset()


def test_fake_tensors_and_export():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, device="npu")
        assert (x @ x.t()).device.type == "npu"
    program = torch.export.export(nn.Linear(3, 2).to("npu"), (torch.ones(1, 3, device="npu"),))
    assert program.module()(torch.ones(1, 3, device="npu")).shape == (1, 2)


# --- copies ---------------------------------------------------------------------------------------------------------


def test_deepcopy_keeps_sharing_and_devices():
    x = torch.ones(4, device="npu")
    pair = copy.deepcopy([x, x[1:]])
    pair[0].zero_()
    assert pair[1].sum().item() == 0
    assert x.sum().item() == 4
    assert pair[1].device.type == "npu"
    layer = nn.Linear(2, 2).to("npu")
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, nn.Parameter)
    assert twin.weight.data_ptr() != layer.weight.data_ptr()


def test_pickle_keeps_the_device():
    x = torch.arange(4.0, device="npu")[1:]
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device
    assert y.tolist() == [1, 2, 3]


def test_module_to_keeps_parameters():
    """An optimizer made before .to() must go on training the same tensors."""
    layer = nn.Linear(2, 2)
    weight = layer.weight
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer.to("npu")
    assert layer.weight is weight
    layer(torch.ones(1, 2, device="npu")).sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before.cpu(), layer.weight.detach().cpu())
    layer.cpu()
    assert layer.weight is weight
    assert weight.device.type == "cpu"


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied().to("npu")
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.device.type == "npu"
    assert model.to(torch.bfloat16).head.weight is model.embedding.weight


def test_data_assignment_across_devices():
    p = nn.Parameter(torch.ones(2))
    p.data = p.data.to("npu")
    assert p.device.type == "npu"
    assert (p * 2).sum().item() == 4


def test_load_state_dict_across_devices():
    source, target = nn.Linear(2, 2), nn.Linear(2, 2).to("npu")
    target.load_state_dict(source.state_dict())
    assert target.weight.device.type == "npu"
    assert torch.equal(target.weight.cpu(), source.weight)
    with torch.device("meta"):
        lazy = nn.Linear(2, 2)
    lazy.to_empty(device="npu").load_state_dict(source.state_dict())
    assert torch.equal(lazy.weight.cpu(), source.weight)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float64]
)
@pytest.mark.parametrize("how", ["contiguous", "transposed", "strided", "expanded", "channels_last"])
def test_copies_between_devices_dtypes_and_layouts(dtype, how):
    host = torch.randint(0, 2, (2, 3, 4, 6)).float()
    shaped = {
        "contiguous": host,
        "transposed": host.transpose(1, 3),
        "strided": host[..., ::2],
        "expanded": host[:1].expand(5, 3, 4, 6),
        "channels_last": host.contiguous(memory_format=torch.channels_last),
    }[how]
    device = shaped.npu()
    assert torch.equal(device.cpu(), shaped)
    assert device.to(dtype).dtype == dtype
    assert torch.equal(device.to(dtype).cpu(), shaped.to(dtype))
    assert torch.equal(shaped.to("npu", dtype).cpu(), shaped.to(dtype))
    assert device.to(dtype).stride() == shaped.to(dtype).stride()


# --- storages -------------------------------------------------------------------------------------------------------


def test_out_is_resized_with_a_warning_if_it_had_elements():
    out = torch.empty(0, device="npu")
    assert torch.add(torch.ones(3, device="npu"), 1, out=out) is out
    assert out.tolist() == [2, 2, 2]
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(torch.ones(4, device="npu"), 1, out=out)
    assert out.shape == (4,)


@pytest.mark.parametrize("op", [torch.add, torch.hypot, torch.mul])
def test_out_must_fit(op):
    a = torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match="can't be cast to"):
        op(a, a, out=torch.empty(3, dtype=torch.int64, device="npu"))
    with pytest.raises(RuntimeError, match="device"):
        op(a, a, out=torch.empty(3))
    b = torch.ones(4, device="npu")
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        op(b[:3], b[:3], out=b[1:])


def test_set_and_resize():
    x = torch.arange(6.0, device="npu")
    y = torch.empty(0, device="npu").set_(x)
    assert y.data_ptr() == x.data_ptr()
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.tolist() == [[2, 3], [4, 5]]
    x.resize_(10)
    assert x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert x.untyped_storage().nbytes() == 40
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError):
        torch.empty(0).set_(x.untyped_storage())
    with pytest.raises(RuntimeError, match="negative"):
        x.resize_(-1)


def test_storage_resize_and_free_as_fsdp_does():
    x = torch.ones(1000, device="npu")
    storage = x.untyped_storage()
    before = torch.npu.memory_allocated()
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert torch.npu.memory_allocated() == before - 4096
    storage.resize_(4000)
    x.fill_(2)
    assert x.sum().item() == 2000


def test_storages_copy_and_move():
    x = torch.arange(4.0, device="npu")
    storage = x.untyped_storage()
    assert storage.device.type == "npu"
    assert bytes(storage.cpu()) == bytes(torch.arange(4.0).untyped_storage())
    clone = storage.clone()
    assert clone.data_ptr() != storage.data_ptr()
    assert torch.tensor([], device="npu").set_(clone.float() if hasattr(clone, "float") else clone).numel() in (4, 16)


def test_shared_memory():
    """Device memory is not shared through files: share_memory_ leaves it alone, as on CUDA."""
    x = torch.ones(3, device="npu")
    assert x.share_memory_() is x
    assert x.is_shared()
    assert x.tolist() == [1, 1, 1]


def test_use_count_and_release():
    gc.collect()
    before = torch.npu.memory_allocated()
    x = torch.ones(1 << 16, device="npu")
    view, alive = x[::2], weakref.ref(x.untyped_storage())
    del x
    assert torch.npu.memory_allocated() > before
    del view
    gc.collect()
    assert alive() is None
    assert torch.npu.memory_allocated() == before


def test_writing_a_storage_to_a_buffer():
    buffer = io.BytesIO()
    torch.save(torch.arange(3, device="npu"), buffer)
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu").tolist() == [0, 1, 2]


# --- other libraries ------------------------------------------------------------------------------------------------


def test_numpy_is_refused_with_advice():
    x = torch.ones(2, device="npu")
    for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"can't convert npu:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
            convert()
    assert x.numpy(force=True).tolist() == [1, 1]
    assert torch.as_tensor(np.ones(2), device="npu").device.type == "npu"


def test_python_protocols():
    x = torch.tensor([[1, 2], [3, 4]], device="npu")
    assert x.tolist() == [[1, 2], [3, 4]]
    assert int(x[1, 0]) == 3
    assert bool(x[0, 0])
    assert [int(row.sum()) for row in x] == [3, 7]
    assert len(x) == 2
    assert 4 in x
    assert f"{x[0, 1].item():03d}" == "002"
    assert range(5)[x[0, 1]] == 2
    assert x[torch.tensor([1], device="npu")].tolist() == [[3, 4]]
    assert hash(x) == id(x)
    assert "device='npu:0'" in repr(x)


DLPACK_NPU = torch.utils.dlpack.DLDeviceType.kDLExtDev


def test_dlpack_between_npu_tensors_is_zero_copy():
    x = torch.arange(6.0, device="npu").reshape(2, 3)
    assert x.__dlpack_device__() == (DLPACK_NPU, 0)
    y = torch.from_dlpack(x)
    assert y.device == x.device
    assert y.data_ptr() == x.data_ptr()
    y.mul_(2)
    assert x[1, 2].item() == 10
    capsule = torch.utils.dlpack.to_dlpack(x.t())
    z = torch.from_dlpack(capsule)
    assert z.stride() == (1, 3)
    address = x.data_ptr()
    del x, y
    assert z.data_ptr() == address
    assert z.sum().item() == 30


def test_dlpack_refuses_what_cannot_be_shared():
    with pytest.raises((RuntimeError, BufferError)):
        torch.ones(2, device="npu", requires_grad=True).__dlpack__()
    with pytest.raises((RuntimeError, BufferError)):
        torch.ones(2, dtype=torch.complex64, device="npu").conj().__dlpack__()
    with pytest.raises((RuntimeError, BufferError, TypeError)):
        np.from_dlpack(torch.ones(2, device="npu"))
