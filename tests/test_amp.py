"""Autocast and gradient scaling."""

import copy

import pytest
import torch
import torch.nn.functional as F

LOW = [torch.float16, torch.bfloat16]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="npu", dtype=dtype)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "op",
    [
        lambda x: x @ x,
        lambda x: torch.mm(x, x),
        lambda x: torch.addmm(x, x, x),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: F.linear(x, x),
        lambda x: torch.bmm(x[None], x[None]),
        lambda x: F.conv1d(x[None], x[:, :, None]),
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    ],
)
def test_lower_precision(op, dtype):
    x = randn(8, 8)
    with torch.autocast("npu", dtype=dtype):
        assert op(x).dtype == dtype
        assert op(x.double()).dtype == torch.float64, "float64 is never cast"
    assert op(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.exp(),
        lambda x: x.abs().log(),
        lambda x: x.pow(2),
        lambda x: F.layer_norm(x, (8,)),
        lambda x: F.mse_loss(x, x),
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: x.sum(),
        lambda x: x.cumsum(0),
        lambda x: x.norm(),
        lambda x: x.norm(dim=0),
        lambda x: F.cross_entropy(x, torch.zeros(8, dtype=torch.long, device="npu")),
    ],
)
def test_float32(op, dtype):
    x = randn(8, 8, dtype=dtype)
    with torch.autocast("npu", dtype=dtype):
        assert op(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", LOW)
def test_promote_to_the_widest(dtype):
    low, high = randn(8, dtype=dtype), randn(8)
    with torch.autocast("npu", dtype=dtype):
        assert torch.dot(low, high).dtype == torch.float32
        assert torch.addcmul(low, low, high).dtype == torch.float32
        assert torch.dot(low, low).dtype == dtype


def test_other_ops_keep_their_dtype():
    x = randn(8, dtype=torch.float16)
    with torch.autocast("npu"):
        assert (x + x).dtype == torch.float16
        assert x.relu().dtype == torch.float16
        assert (x + x.float()).dtype == torch.float32


def test_binary_cross_entropy_is_refused():
    x = randn(8).sigmoid()
    with torch.autocast("npu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def test_defaults_and_state():
    assert not torch.npu.is_autocast_enabled()
    assert torch.npu.get_autocast_dtype() == torch.float16
    with torch.autocast("npu"):
        assert torch.npu.is_autocast_enabled()
        assert torch.is_autocast_enabled("npu")
        assert not torch.is_autocast_enabled("cpu")
        with torch.autocast("npu", enabled=False):
            assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float32
    torch.npu.set_autocast_enabled(True)
    torch.npu.set_autocast_dtype(torch.bfloat16)
    try:
        assert torch.npu.is_autocast_enabled()
        assert torch.npu.get_autocast_dtype() == torch.bfloat16
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.bfloat16
    finally:
        torch.npu.set_autocast_enabled(False)
        torch.npu.set_autocast_dtype(torch.float16)
    assert torch.npu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16, torch.float32]
    assert torch.npu.is_bf16_supported()


def test_unsupported_dtype_disables_with_a_warning():
    with pytest.warns(UserWarning, match="target dtype is not supported"), torch.autocast("npu", dtype=torch.float64):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float32


def test_npu_amp_autocast():
    with torch.npu.amp.autocast():
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float16
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.bfloat16
    with torch.npu.amp.autocast(False):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float32

    @torch.npu.amp.autocast()
    def product(x):
        return x @ x

    assert product(randn(2, 2)).dtype == torch.float16


def test_cpu_tensors_are_left_alone():
    x = torch.randn(2, 2)
    with torch.autocast("npu"):
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu"):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.float32


def test_custom_function():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.npu.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            assert not torch.is_autocast_enabled("npu")
            return x @ x

        @staticmethod
        @torch.npu.amp.custom_bwd
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    x = randn(4, 4, dtype=torch.float16).requires_grad_()
    with torch.autocast("npu"):
        y = Square.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.float16


def test_backward_through_autocast_matches_the_cpu():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    x = torch.randn(5, 8)
    grads = {}
    for device in ("cpu", "npu"):
        m = copy.deepcopy(model).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = m(x.to(device)).float().pow(2).mean()
        loss.backward()
        grads[device] = [p.grad.cpu() for p in m.parameters()]
        assert all(p.grad.dtype == torch.float32 for p in m.parameters())
    for a, b in zip(grads["cpu"], grads["npu"], strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)  # a few units of bfloat16's 8 bits


SCALERS = {"torch.amp": lambda **kw: torch.amp.GradScaler("npu", **kw), "npu.amp": torch.npu.amp.GradScaler}


@pytest.mark.parametrize("make", SCALERS.values(), ids=SCALERS.keys())
def test_scaler_trains_like_without(make):
    def train(scaler):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).npu()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4, device="npu")).pow(2).mean()
            if scaler:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
        return model.weight.detach().cpu()

    scaler = make(init_scale=128.0, growth_interval=2)
    torch.testing.assert_close(train(scaler), train(None))
    assert scaler.get_scale() == 256.0, "two good steps of growth_interval 2 double the scale once"


@pytest.mark.parametrize("make", SCALERS.values(), ids=SCALERS.keys())
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_scaler_skips_steps_that_overflow(make, bad):
    weight = torch.nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = make(init_scale=8.0)
    scaler.scale((weight * bad).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight.detach().cpu(), torch.ones(3))
    assert scaler.get_scale() == 4.0


def test_an_overflow_skips_the_later_optimizers_too():
    weights = [torch.nn.Parameter(torch.ones(3, device="npu")) for _ in range(3)]
    optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    scaler = torch.npu.amp.GradScaler(init_scale=8.0)
    scaler.scale(sum((w * f).sum() for w, f in zip(weights, (1.0, float("inf"), 1.0), strict=True))).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [w.detach().tolist() for w in weights] == [[0.0] * 3, [1.0] * 3, [1.0] * 3]
    assert scaler.get_scale() == 4.0
    weights[2].grad = torch.zeros(3, device="npu")
    scaler.step(optimizers[2])  # the next iteration starts anew
    assert scaler._per_optimizer_states[id(optimizers[2])]["stage"].name == "STEPPED"


def test_unscale_and_clip():
    weight = torch.nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("npu", init_scale=8.0)
    scaler.scale((weight * 2).sum()).backward()
    scaler.unscale_(optimizer)
    assert torch.equal(weight.grad.cpu(), torch.full((3,), 2.0))
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert (1 - weight.detach()).norm().item() == pytest.approx(1.0, rel=1e-4)


def test_static_scale():
    weight = torch.nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.npu.amp.GradScaler(init_scale=8.0, growth_interval=1, dynamic=False)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 8.0
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0


def test_scaler_state_and_disabled_scaler():
    scaler = torch.npu.amp.GradScaler(init_scale=2.0)
    other = torch.npu.amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 2.0
    off = torch.npu.amp.GradScaler(enabled=False)
    x = torch.ones(2, device="npu")
    assert off.scale(x) is x
    assert not off.is_enabled()
    assert off.get_scale() == 1.0
    off.update()
