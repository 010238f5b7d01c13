"""Eager mode on device npu against CPU PyTorch: cost of one operator, chains of operators, models.

Aims: at most 1.5 times the CPU's time for one small operator through aclnn, 1.3 times through the CPU fallback, 1.05
times for models; less than the CPU's for chains of pointwise operators on large tensors (whose memory comes from a pool
instead of the system).
"""

import os
from collections.abc import Callable

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from benchmarks.timing import Case, Work

NATIVE, FALLBACK, MODEL, LARGE = 1 / 1.5, 1 / 1.3, 1 / 1.05, 1.0


def on(
    shapes: list[tuple[int, ...]], function: Callable[..., object], dtype: torch.dtype = torch.float32
) -> Callable[[str], Work]:
    """Work that calls function with standard normal tensors of the shapes."""

    def prepare(device: str) -> Work:
        tensors = [torch.randn(shape).to(device, dtype) for shape in shapes]
        return lambda: function(*tensors)

    return prepare


def small_operators() -> list[Case]:
    v, m = (16,), (8, 8)
    table: list[tuple[str, list[tuple[int, ...]], Callable[..., object], float]] = [
        ("add, 16 floats", [v, v], torch.add, NATIVE),
        ("add a number", [v], lambda a: a + 1.0, NATIVE),
        ("sub in place", [v, v], Tensor.sub_, NATIVE),
        ("add, out=", [v, v, v], lambda a, b, out: torch.add(a, b, out=out), NATIVE),
        ("add, broadcast 8x8 + 8", [m, (8,)], torch.add, NATIVE),
        ("relu", [v], torch.relu, NATIVE),
        ("exp", [v], torch.exp, NATIVE),
        ("gelu", [v], F.gelu, NATIVE),
        ("a > b", [v, v], torch.gt, NATIVE),
        ("where", [v, v], lambda a, b: torch.where(a > 0, a, b), NATIVE),
        ("sum", [v], torch.sum, NATIVE),
        ("mean, last dim", [m], lambda a: a.mean(-1), NATIVE),
        ("softmax", [m], lambda a: torch.softmax(a, -1), NATIVE),
        ("layer_norm", [m, (8,), (8,)], lambda a, w, b: F.layer_norm(a, (8,), w, b), NATIVE),
        ("mm 8x8", [m, m], torch.mm, NATIVE),
        ("linear 8x8", [m, m, (8,)], F.linear, NATIVE),
        ("cat", [v, v], lambda a, b: torch.cat((a, b)), NATIVE),
        ("contiguous of a transpose", [m], lambda a: a.t().contiguous(), NATIVE),
        ("copy_", [v, v], Tensor.copy_, NATIVE),
        ("empty", [v], torch.empty_like, NATIVE),
        ("zeros", [v], torch.zeros_like, NATIVE),
        ("view", [v], lambda a: a.view(4, 4), NATIVE),
        ("index_select", [m], lambda a: a[2], NATIVE),
        ("item", [()], Tensor.item, NATIVE),
        ("bessel_j0 (fallback)", [v], torch.special.bessel_j0, FALLBACK),
        ("hypot (fallback)", [v, v], torch.hypot, FALLBACK),
    ]
    return [Case(name, "small operators", on(shapes, function), aim) for name, shapes, function, aim in table]


def large_operators() -> list[Case]:
    n = (4 << 20,)  # 16 MiB

    def activation_chain(a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(F.gelu(a * b + a) * 0.5 - b)

    def normalize_chain(a: Tensor) -> Tensor:
        centered = a - a.mean(-1, keepdim=True)
        return centered * torch.rsqrt((centered * centered).mean(-1, keepdim=True) + 1e-5)

    def matmul_chain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.relu(F.gelu(a @ b) @ c) @ b

    def rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = q.shape[-1] // 2
        return q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin

    square = (512, 512)
    return [
        Case("a + b, 16 MiB", "large tensors", on([n, n], torch.add), LARGE),
        Case("exp, 16 MiB", "large tensors", on([n], torch.exp), LARGE),
        Case("a * b + a, gelu, tanh, 16 MiB", "large tensors", on([n, n], activation_chain), LARGE),
        Case("the same, 64 MiB", "large tensors", on([(16 << 20,)] * 2, activation_chain), LARGE),
        Case("normalization by parts, 16 MiB", "large tensors", on([(4096, 1024)], normalize_chain), LARGE),
        Case(
            "rotary embedding, 16 MiB",
            "large tensors",
            on([(1, 32, 1024, 128), (1, 1, 1024, 128), (1, 1, 1024, 128)], rotary),
            LARGE,
        ),
        Case("softmax, 16 MiB", "large tensors", on([(4096, 1024)], lambda a: torch.softmax(a, -1)), LARGE),
        Case("matmul chain, 512", "matrices", on([square] * 3, matmul_chain), MODEL),
        Case("matmul chain, 64", "matrices", on([(64, 64)] * 3, matmul_chain), MODEL),
        Case("matmul chain, 512, float16", "matrices", on([square] * 3, matmul_chain, torch.float16), MODEL),
        Case(
            "attention, 8 heads, 256 tokens",
            "matrices",
            on([(1, 8, 256, 64)] * 3, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            MODEL,
        ),
        Case(
            "attention with a mask, 1 token, 512 keys",
            "matrices",
            on([(1, 8, 1, 64), (1, 8, 512, 64), (1, 8, 512, 64), (1, 1, 1, 512)], F.scaled_dot_product_attention),
            MODEL,
        ),
        Case(
            "convolution 3x3, 64 channels, 56x56",
            "matrices",
            on([(1, 64, 56, 56), (64, 64, 3, 3)], lambda x, w: F.conv2d(x, w, padding=1)),
            MODEL,
        ),
        Case("max_pool 3x3, 64 channels, 112x112", "matrices", on([(1, 64, 112, 112)], _max_pool), MODEL),
    ]


def _max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1)


def inference(make: Callable[[], nn.Module], batch: int, dtype: torch.dtype) -> Callable[[str], Work]:
    def prepare(device: str) -> Work:
        model = make().eval().to(device, dtype)
        images = torch.randn(batch, 3, 224, 224).to(device, dtype)
        return lambda: model(images).logits

    return prepare


def recurrent(layer: type[nn.RNNBase], train: bool) -> Callable[[str], Work]:
    """Two layers of 256 in both directions over 4 sequences of 100 steps of 80 numbers."""

    def prepare(device: str) -> Work:
        model = layer(80, 256, num_layers=2, bidirectional=True).to(device)
        x = torch.randn(100, 4, 80).to(device)

        def step() -> None:
            output, _ = model(x)
            if train:
                output.sum().backward()

        return step

    return prepare


def image_training(make: Callable[[], nn.Module], batch: int) -> Callable[[str], Work]:
    def prepare(device: str) -> Work:
        model = make().train().to(device)
        images = torch.randn(batch, 3, 224, 224).to(device)
        labels = torch.arange(batch).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        return training_step(model, optimizer, pixel_values=images, labels=labels)

    return prepare


def text_training(device: str) -> Work:
    config = GPT2Config(vocab_size=2048, n_embd=256, n_layer=4, n_head=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).to(device)
    tokens = torch.randint(0, 2048, (4, 96)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return training_step(model, optimizer, input_ids=tokens, labels=tokens)


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, **inputs: Tensor) -> Work:
    def step() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def models() -> list[Case]:
    def resnet() -> nn.Module:
        return ResNetForImageClassification(ResNetConfig(num_labels=10))

    def vit() -> nn.Module:
        return ViTForImageClassification(ViTConfig(num_labels=10))

    def small_vit() -> nn.Module:
        config = ViTConfig(
            num_labels=10, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return ViTForImageClassification(config)

    f32, bf16 = torch.float32, torch.bfloat16
    return [
        Case("ResNet-50 inference, 1 image", "models", inference(resnet, 1, f32), MODEL),
        Case("ResNet-50 inference, 1 image, bfloat16", "models", inference(resnet, 1, bf16), MODEL),
        Case("ViT-Base inference, 1 image", "models", inference(vit, 1, f32), MODEL),
        Case("ViT-Base inference, 1 image, bfloat16", "models", inference(vit, 1, bf16), MODEL),
        Case("ResNet-50 training step, 4 images", "models", image_training(resnet, 4), MODEL, grad=True),
        Case("ViT (6 layers, 384) training step, 4 images", "models", image_training(small_vit, 4), MODEL, grad=True),
        Case("GPT-2 (4 layers, 256) training step", "models", text_training, MODEL, grad=True),
    ]


def recurrent_layers() -> list[Case]:
    return [
        Case(
            f"{layer.__name__} {'training step' if train else 'inference'}",
            "recurrent layers",
            recurrent(layer, train),
            MODEL,
            grad=train,
        )
        for layer in (nn.LSTM, nn.GRU, nn.RNN)
        for train in (False, True)
    ]


def cases() -> list[Case]:
    return [*small_operators(), *large_operators(), *recurrent_layers(), *models()]
