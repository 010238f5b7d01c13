"""The fused optimizers against PyTorch's own on the CPU."""

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
