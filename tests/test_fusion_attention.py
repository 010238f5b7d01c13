"""npu_fusion_attention and the fused optimizers against PyTorch's own on the CPU."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import torch_npu

LAYOUTS = {
    "BNSD": lambda t: t,
    "BSND": lambda t: t.transpose(1, 2),
    "BSH": lambda t: t.transpose(1, 2).flatten(2),
    "SBH": lambda t: t.permute(2, 0, 1, 3).flatten(2),
}


def inputs(query_length: int, key_length: int, key_heads: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key and value of shape (2, heads, length, 8)."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, query_length, 8), (2, key_heads, key_length, 8), (2, key_heads, key_length, 8)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_and_grouped_heads(layout: str, key_heads: int, dtype: torch.dtype) -> None:
    q, k, v = inputs(5, 7, key_heads, dtype)
    expected = scaled_dot_product_attention(q.float(), k.float(), v.float(), scale=0.3, enable_gqa=True).to(dtype)
    arrange = LAYOUTS[layout]
    out, maximum, total, *_ = torch_npu.npu_fusion_attention(
        *(arrange(t).npu() for t in (q, k, v)), 4, layout, scale=0.3
    )
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(out.cpu(), arrange(expected), atol=tolerance, rtol=tolerance)
    assert maximum.shape == total.shape == (2, 4, 5, 8)
    scores = q.float() @ k.float().repeat_interleave(4 // key_heads, 1).transpose(-1, -2) * 0.3
    log_sum = (maximum + total.log())[..., 0].cpu()
    torch.testing.assert_close(log_sum, scores.logsumexp(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("sparse_mode", "diagonal"), [(2, 0), (3, 2)])
def test_causal_modes(sparse_mode: int, diagonal: int) -> None:
    q, k, v = inputs(5, 7)
    seen = torch.ones(5, 7).tril(diagonal).bool()
    triangle = torch.ones(2048, 2048).triu(1).bool().npu()
    out = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), 4, "BNSD", atten_mask=triangle, sparse_mode=sparse_mode
    )[0]
    torch.testing.assert_close(out.cpu(), scaled_dot_product_attention(q, k, v, seen, scale=1.0))


def test_band_and_prefix() -> None:
    q, k, v = inputs(6, 6)
    ahead = torch.arange(6) - torch.arange(6)[:, None]
    on_npu = [t.npu() for t in (q, k, v)]
    band = torch_npu.npu_fusion_attention(*on_npu, 4, "BNSD", pre_tockens=2, next_tockens=1, sparse_mode=4)[0]
    seen = (ahead <= 1) & (ahead >= -2)
    torch.testing.assert_close(band.cpu(), scaled_dot_product_attention(q, k, v, seen, scale=1.0))
    prefixed = torch_npu.npu_fusion_attention(*on_npu, 4, "BNSD", prefix=[2, 4], sparse_mode=6)[0]
    seen = (ahead <= 0) | (torch.arange(6) < torch.tensor([2, 4])[:, None, None, None])
    torch.testing.assert_close(prefixed.cpu(), scaled_dot_product_attention(q, k, v, seen, scale=1.0))


def test_sequences_behind_each_other() -> None:
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in inputs(9, 9))
    out, maximum, *_ = torch_npu.npu_fusion_attention(
        q.npu(), k.npu(), v.npu(), 4, "TND", sparse_mode=3, actual_seq_qlen=[4, 9], actual_seq_kvlen=[4, 9]
    )
    parts = [[t[a:b].transpose(0, 1)[None] for t in (q, k, v)] for a, b in [(0, 4), (4, 9)]]
    expected = [scaled_dot_product_attention(*part, is_causal=True, scale=1.0)[0].transpose(0, 1) for part in parts]
    torch.testing.assert_close(out.cpu(), torch.cat(expected))
    assert maximum.shape == (9, 4, 8)


def test_gradients_bias_and_mask() -> None:
    bias = torch.randn(1, 4, 5, 7, generator=torch.Generator().manual_seed(1))
    hidden = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(2)) < 0.3
    hidden[..., 0] = False
    host = [t.requires_grad_() for t in inputs(5, 7)]
    device = [t.detach().npu().requires_grad_() for t in host]
    expected = scaled_dot_product_attention(*host, (bias * 0.5).masked_fill(hidden, float("-inf")), scale=0.5)
    out = torch_npu.npu_fusion_attention(*device, 4, "BNSD", bias.npu(), atten_mask=hidden.npu(), scale=0.5)[0]
    torch.testing.assert_close(out.cpu(), expected, atol=1e-5, rtol=1e-5)
    expected.square().sum().backward()
    out.square().sum().backward()
    for a, b in zip(device, host, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, atol=1e-5, rtol=1e-5)


def test_sink_takes_its_share() -> None:
    q, k, v = inputs(5, 7)
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    out = torch_npu.npu_fusion_attention(q.npu(), k.npu(), v.npu(), 4, "BNSD", sink=sink.npu())[0]
    scores = torch.cat([q @ k.transpose(-1, -2), sink.view(1, 4, 1, 1).expand(2, 4, 5, 1)], -1)
    torch.testing.assert_close(out.cpu(), scores.softmax(-1)[..., :-1] @ v, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"input_layout": "BDSN"}, ValueError, "expected one of BSH, SBH, BSND, BNSD, TND"),
        ({"input_layout": "BSH"}, ValueError, "BSH means 3 dimensions"),
        ({"head_num": 3}, ValueError, "head_num is 3"),
        ({"keep_prob": 0.0}, ValueError, r"expected a number in \(0, 1\]"),
        ({"sparse_mode": 8}, NotImplementedError, "sparse_mode 8"),
        ({"sparse_mode": 6}, ValueError, "needs `prefix`"),
        ({"seed": 5}, NotImplementedError, "argument seed is not implemented"),
    ],
)
def test_refusals(arguments: dict, error: type[Exception], text: str) -> None:
    q, k, v = (t.npu() for t in inputs(5, 7))
    arguments = {"head_num": 4, "input_layout": "BNSD", **arguments}
    with pytest.raises(error, match=text):
        torch_npu.npu_fusion_attention(q, k, v, **arguments)


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
