"""The fused optimizers against PyTorch's own on the CPU; LAMB and npu_apply_adam_w against their formulas."""

import pytest
import torch

import torch_npu


@pytest.mark.parametrize(
    ("fused", "plain"),
    [
        (torch_npu.optim.NpuFusedAdamW, torch.optim.AdamW),
        (torch_npu.optim.NpuFusedAdam, torch.optim.Adam),
        (torch_npu.optim.NpuFusedSGD, torch.optim.SGD),
    ],
)
def test_fused_optimizers(fused: type[torch.optim.Optimizer], plain: type[torch.optim.Optimizer]) -> None:
    start = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    results = []
    for optimizer, device in ((fused, "npu"), (plain, "cpu")):
        parameter = torch.nn.Parameter(start.to(device))
        step = optimizer([parameter], lr=0.1, weight_decay=0.01)
        for _ in range(3):
            parameter.grad = gradient.to(device)
            step.step()
        results.append(parameter.detach().cpu())
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-5)


def lamb(parameter: torch.Tensor, gradients: list[torch.Tensor], decay: float, adam: bool) -> torch.Tensor:
    """The algorithm with lr 0.1, betas 0.9 and 0.99, eps 1e-6."""
    mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for g in gradients:
        mean = 0.9 * mean + 0.1 * g
        square = 0.99 * square + 0.01 * g * g
        step = mean / (square.sqrt() + 1e-6) + decay * parameter
        weight, length = parameter.norm().clamp(max=10), step.norm()
        ratio = 1 if adam or weight == 0 or length == 0 else weight / length
        parameter = parameter - 0.1 * ratio * step
    return parameter


@pytest.mark.parametrize("adam", [False, True], ids=["lamb", "adam"])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lamb(decay: float, adam: bool) -> None:
    torch.manual_seed(0)
    starts = [torch.randn(5, 3), torch.zeros(4), torch.randn(40, 50), torch.randn(7)]
    gradients = [[torch.randn_like(s) for _ in range(3)] for s in starts]
    gradients[3] = [torch.zeros(7)] * 3
    parameters = [torch.nn.Parameter(s.npu()) for s in starts]
    optimizer = torch_npu.optim.NpuFusedLamb(parameters, 0.1, (0.9, 0.99), weight_decay=decay, adam=adam)
    with torch_npu.fallback_policy("error"):
        for i in range(3):
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = g[i].npu()
            optimizer.step()
    for p, s, g in zip(parameters, starts, gradients, strict=True):
        wanted = lamb(s.double(), [x.double() for x in g], decay, adam)
        torch.testing.assert_close(p.detach().cpu(), wanted.float(), atol=1e-5, rtol=1e-5)


def test_lamb_divides_by_the_norm_of_all_gradients() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2).npu()), torch.nn.Parameter(torch.ones(2).npu())]
    optimizer = torch_npu.optim.NpuFusedLamb(parameters, use_global_grad_norm=True)
    for p, g in zip(parameters, (3.0, 4.0), strict=True):
        p.grad = torch.tensor([g, 0.0]).npu()
    optimizer.step()
    means = [optimizer.state[p]["exp_avg"][0].item() for p in parameters]
    assert means == pytest.approx([0.1 * 3 / 5, 0.1 * 4 / 5], rel=1e-5)


def test_lamb_refuses() -> None:
    parameter = torch.nn.Parameter(torch.ones(2).npu())
    with pytest.raises(ValueError, match=r"betas must lie in \[0, 1\)"):
        torch_npu.optim.NpuFusedLamb([parameter], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="must not be negative"):
        torch_npu.optim.NpuFusedLamb([parameter], lr=-1.0)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_npu_apply_adam_w(dtype: torch.dtype, maximize: bool, amsgrad: bool) -> None:
    torch.manual_seed(0)
    var, m, grad, largest = torch.randn(4, 7, 5).to(dtype)
    v = torch.rand(7, 5).to(dtype)
    lr, decay, beta1, beta2, eps, power1, power2 = 0.01, 0.1, 0.9, 0.99, 1e-3, 0.9**2, 0.99**2
    out = tuple(t.npu() for t in (var, m, v))
    result = torch_npu.npu_apply_adam_w(
        power1, power2, lr, decay, beta1, beta2, eps, grad.npu(), largest.npu() if amsgrad else None, amsgrad, maximize,
        out=out,
    )  # fmt: skip
    assert all(a is b for a, b in zip(result, out, strict=True))
    var, m, v, grad, largest = (t.double() for t in (var, m, v, grad, largest))
    g = -grad if maximize else grad
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    root = (torch.maximum(v, largest) if amsgrad else v) / (1 - power2 * beta2)
    var = var * (1 - lr * decay) - lr * m / (1 - power1 * beta1) / (root.sqrt() + eps)
    for actual, wanted in zip(out, (var, m, v), strict=True):
        unit = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(actual.cpu().double(), wanted, atol=4 * unit, rtol=4 * unit)


def test_npu_apply_adam_w_refuses() -> None:
    t = torch.ones(3, device="npu")
    with pytest.raises(ValueError, match="amsgrad needs max_grad_norm"):
        torch_npu.npu_apply_adam_w(0.9, 0.9, 0.1, 0, 0.9, 0.9, 1e-8, t, None, True, False, out=(t, t, t))
    with pytest.raises(ValueError, match="must have one shape"):
        torch_npu.npu_apply_adam_w(0.9, 0.9, 0.1, 0, 0.9, 0.9, 1e-8, t[:2], None, False, False, out=(t, t, t))
