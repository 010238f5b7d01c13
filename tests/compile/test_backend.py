"""torch.compile(backend="npu") against eager CPU: inference, training, shapes, views, mutation, random numbers."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compile_models import Block, Convolutions, Mlp, rms_norm, rotary, swiglu
from tolerance import assert_close
from torch import Tensor, nn

import torchtitan_npu.compile
from torchtitan_npu.compile import counters, fallbacks, reports


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="npu", fullgraph=True, **options)


def on_npu(value: Any) -> Any:
    return value.detach().npu().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def check(function: Callable[..., Any], *arguments: Any, terms: int = 64, **options: Any) -> None:
    """The compiled function on npu gives what the function gives on the CPU, in the same layout.

    16-bit floats are compared with float64: a kernel rounds once where the CPU rounds after every operator.
    """
    eager = function(*arguments)
    actual = compiled(function, **options)(*map(on_npu, arguments))
    half = any(isinstance(a, Tensor) and a.dtype in (torch.float16, torch.bfloat16) for a in arguments)
    exact = function(*(a.double() if isinstance(a, Tensor) else a for a in arguments)) if half else eager
    torch.utils._pytree.tree_map(lambda a, e, x: same(a, e, terms, x), actual, eager, exact)
    assert not fallbacks()


def same(actual: Tensor, eager: Tensor, terms: int = 64, exact: Tensor | None = None) -> None:
    assert actual.device.type == "npu"
    assert actual.dtype == eager.dtype
    assert actual.stride() == eager.stride()
    assert_close(actual, eager if exact is None else exact, terms=terms)


def check_training(model: nn.Module, *inputs: Tensor, terms: int = 256) -> None:
    """Loss, gradients of parameters and inputs of a training step."""
    ours = copy.deepcopy(model).npu()
    given = [on_npu(x) for x in inputs]
    loss = model(*inputs).square().mean()
    loss.backward()
    step = compiled(ours)
    our_loss = step(*given).square().mean()
    our_loss.backward()
    assert_close(our_loss, loss, terms=terms)
    for (name, p), q in zip(model.named_parameters(), ours.parameters(), strict=True):
        assert q.grad is not None, name
        assert_close(q.grad, p.grad, terms=terms, msg=lambda text, name=name: f"{name}: {text}")
    for x, y in zip(inputs, given, strict=True):
        if x.requires_grad:
            assert_close(y.grad, x.grad, terms=terms)
    assert not fallbacks()
    assert counters["kernels"]


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chain_is_one_kernel(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 33, 65, dtype=dtype)
    check(lambda x, y: torch.tanh(x * y + 0.5).abs(), x, y)
    (report,) = reports()
    assert [len(k.operators) for k in report.kernels] == [4]
    assert not report.unfused


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, 1),
        lambda x: F.layer_norm(x, (x.shape[-1],)),
        lambda x: rms_norm(x, x[0]),
        lambda x: F.gelu(x, approximate="tanh") * x.mean(0),
        lambda x: (x - x.amax(0)).exp().sum(0),
        lambda x: x.var(-1),
    ],
    ids=["softmax", "log_softmax", "layer_norm", "rms_norm", "gelu_mean", "columns", "var"],
)
def test_reductions(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    check(function, torch.randn(37, 70, dtype=dtype))
    (report,) = reports()
    assert len(report.kernels) <= 2
    assert not report.unfused


@pytest.mark.parametrize("model", [Mlp, Block])
def test_inference(model: type[nn.Module]) -> None:
    made = model().eval()
    x = torch.randn(3, 5, 24) if model is Mlp else torch.randn(2, 7, 32)
    with torch.no_grad():
        expected = made(x)
        actual = compiled(copy.deepcopy(made).npu())(x.npu())
    same(actual, expected, 256)
    assert not fallbacks()
    assert reports()[0].kind == "inference"


@pytest.mark.parametrize("model", [Mlp, Block])
def test_training(model: type[nn.Module]) -> None:
    x = torch.randn(3, 5, 24) if model is Mlp else torch.randn(2, 7, 32)
    check_training(model(), x.requires_grad_())
    assert [r.kind for r in reports()] == ["forward", "backward"]


def test_training_of_convolutions() -> None:
    check_training(Convolutions(), torch.randn(4, 3, 8, 8))


def test_batch_norm_changes_its_buffers() -> None:
    model = Convolutions()
    ours = copy.deepcopy(model).npu()
    x = torch.randn(4, 3, 8, 8)
    model(x)
    compiled(ours)(x.npu())
    for a, b in zip(ours.buffers(), model.buffers(), strict=True):
        assert_close(a, b, terms=64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(24, 17), (64, 33), (5, 16)])
def test_one_row_times_a_matrix_is_a_kernel(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight, bias = (torch.randn(s, dtype=dtype) for s in ((1, inputs), (outputs, inputs), (outputs,)))
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)) + b, x, weight, bias)
    (report,) = reports()
    assert [k.operators[0] for k in report.kernels] == ["aten.addmm"]
    assert not report.unfused


def test_rotary_and_swiglu() -> None:
    check(rotary, torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8))
    check(swiglu, torch.randn(4, 9), torch.randn(4, 9))


def test_mixed_types() -> None:
    x, n = torch.randn(4, 9), torch.randint(-5, 5, (4, 9))
    check(lambda x, n: (torch.where(n > 0, x, n) * n, n // 3, n % 4, x > 0, (n == 2) | (x < 0)), x, n)


def test_sizes_of_one_and_empty() -> None:
    check(lambda x: torch.softmax(x, -1), torch.randn(3, 1))
    check(lambda x: (x + 1).sum(-1), torch.randn(3, 0))
    check(lambda x: x.exp() * 2, torch.randn(()))


def test_nan_and_infinity() -> None:
    x = torch.tensor([[float("nan"), 1, -2], [float("inf"), 0, -0.0], [float("-inf"), -1, 3]])
    check(lambda x: (x.relu(), x.clamp(-1, 1), x.amax(-1), torch.sigmoid(x), torch.softmax(x, -1), x.sign()), x)


def test_not_contiguous() -> None:
    x = torch.randn(6, 5, 4)
    check(lambda x: x.transpose(0, 2).exp() + 1, x)
    check(lambda x: torch.softmax(x.permute(2, 0, 1), -1), x)
    check(lambda x: x[1:4, ::2].tanh().sum(0), x)


def test_channels_last_stays() -> None:
    check(lambda x: F.relu(x) * 2, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


def test_dynamic_shapes() -> None:
    function = compiled(lambda x: torch.softmax(x * x.shape[0], -1), dynamic=True)
    for shape in [(3, 5), (7, 9), (16, 64), (7, 9)]:
        x = torch.randn(shape)
        same(function(x.npu()), torch.softmax(x * shape[0], -1))
    assert counters["graphs"] == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0].cumsum(0) * 2 + 1,
        lambda x: torch.nonzero(x > 0).float().sum(0) * 2,
        lambda x: x * (x > 0).sum().item(),
    ],
    ids=["mask", "nonzero", "number"],
)
def test_sizes_that_depend_on_data(function: Callable[[Tensor], Tensor]) -> None:
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        compiled_function = torch.compile(function, backend="npu", fullgraph=True)
        for _ in range(3):
            x = torch.randn(5, 6)
            assert_close(compiled_function(x.npu()), function(x), terms=30)
    assert all("depends on data" in reason for reason in fallbacks())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_rounded_to_float8(dtype: torch.dtype) -> None:
    def there_and_back(x: Tensor) -> Tensor:
        return x.to(dtype).to(torch.float32) * 2

    x = torch.randn(5, 6)
    assert torch.equal(compiled(there_and_back)(x.npu()).cpu(), there_and_back(x))
    small = x.to(dtype)
    assert torch.equal(compiled(lambda x: x.float().to(dtype).float())(small.npu()).cpu(), small.float())


def test_recompile_limit() -> None:
    """Beyond it Dynamo runs eager, on npu, and says so; with fullgraph it raises."""
    with torch._dynamo.config.patch(recompile_limit=3):
        function = torch.compile(lambda x: x.exp().sum(-1), backend="npu", dynamic=False)
        for n in range(2, 8):
            x = torch.randn(4, n)
            same(function(x.npu()), x.exp().sum(-1))
        assert counters["graphs"] == 3
        function = compiled(lambda x: x.exp().sum(0), dynamic=False)
        for n in range(2, 5):
            function(torch.randn(n, 4).npu())
        with pytest.raises(Exception, match="fullgraph=True"):
            function(torch.randn(5, 4).npu())


def test_exported_program() -> None:
    model = Block().eval()
    x = torch.randn(2, 7, 32)
    program = torch.export.export(copy.deepcopy(model).npu(), (x.npu(),))
    with torch.no_grad():
        same(compiled(program.module())(x.npu()), model(x), 256)
    assert not fallbacks()
    assert counters["kernels"]


@pytest.mark.parametrize("length", [2, 7, 33])
def test_counts_are_computed_in_kernels(length: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        position = torch.arange(x.shape[-1], device=x.device)
        causal = position[:, None] >= position
        later = torch.arange(3, 3 + 2 * x.shape[-1], 2, device=x.device)
        return torch.where(causal, x, -1e9).softmax(-1), x * later + position[:, None].to(x.dtype).square()

    check(function, torch.randn(2, length, length))
    (report,) = reports()
    assert not report.unfused


def test_a_count_that_is_a_result() -> None:
    check(lambda x: (x + torch.arange(5, device=x.device), torch.arange(5, device=x.device)), torch.randn(3, 5))


def test_recompiles_become_dynamic() -> None:
    function = compiled(lambda x: x.exp().sum(-1))
    for n in range(2, 9):
        x = torch.randn(4, n)
        same(function(x.npu()), x.exp().sum(-1))
    assert counters["graphs"] == 2


def test_graph_break() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        torch._dynamo.graph_break()
        return y * 2 + 1

    x = torch.randn(8)
    assert_close(torch.compile(function, backend="npu")(x.npu()), function(x))
    assert counters["graphs"] == 2


def test_input_mutation() -> None:
    def function(x: Tensor, cache: Tensor) -> Tensor:
        cache[1] = x * 2
        x.add_(1)
        return cache.sum(0) + x

    x, cache = torch.randn(5), torch.randn(3, 5)
    ours, our_cache = x.npu(), cache.npu()
    expected = function(x, cache)
    same(compiled(function)(ours, our_cache), expected)
    assert_close(ours, x)
    assert_close(our_cache, cache)


def test_swap_of_inputs() -> None:
    """Both writes must see the old values."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        old = x.clone()
        x.copy_(y * 2)
        y.copy_(old * 3)
        return x + y

    x, y = torch.randn(2, 20)
    ours = x.npu(), y.npu()
    expected = function(x, y)
    same(compiled(function)(*ours), expected)
    assert_close(ours[0], x)
    assert_close(ours[1], y)


def test_views_as_outputs() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.exp()
        return y.t(), y[1], x.view(-1)

    x = torch.randn(4, 6).npu()
    a, b, c = compiled(function)(x)
    same(a, x.cpu().exp().t())
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    assert c.data_ptr() == x.data_ptr()


def test_dropout() -> None:
    x = torch.ones(1000).npu()
    torch.manual_seed(3)
    a = compiled(lambda x: F.dropout(x, 0.25) * 2)(x)
    assert set(a.cpu().unique().tolist()) <= {0.0, torch.tensor(2 / 0.75).item()}
    assert 600 < int((a != 0).sum()) < 900


def test_cpu_graph_says_that_it_is_not_compiled() -> None:
    x = torch.randn(5)
    assert_close(torch.compile(lambda x: x + 1, backend="npu")(x), x + 1)
    assert fallbacks() == ["graph of 3 nodes: no tensor of it is on device npu"]
    assert counters["fallback_graphs"] == 1


def test_without_fusion() -> None:
    check(lambda x: torch.tanh(x * 2), torch.randn(9), options={"fusion": False})
    assert not counters["kernels"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"fuse": True}}, r"options \['fuse'\]: backend 'npu' knows"),
        ({"options": {"passes": {"magic": False}}}, r"passes \['magic'\]: the graph optimiser has"),
    ],
)
def test_unknown_options(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **arguments)(torch.randn(3).npu())


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_AUTOFUSION_CXX", "no-such-compiler")
    with pytest.raises(Exception, match="no compiler 'no-such-compiler' was found"):
        compiled(lambda x: torch.atanh(x) * 17.5)(torch.randn(3).npu())
    check(lambda x: torch.atanh(x) * 18.5, torch.rand(3), options={"fusion": False})


def test_entry_point_name() -> None:
    assert "npu" in torch._dynamo.list_backends(exclude_tags=())
    assert torchtitan_npu.compile.npu


def test_grouped_attention_trains() -> None:
    """The gradients of attention come in another layout than PyTorch's meta kernel says."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t[:, :, None].expand(2, 2, 2, 11, 8).reshape(2, 4, 11, 8) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 11, 32)

    given = [torch.randn(2, heads, 11, 8, requires_grad=True) for heads in (4, 2, 2)]
    ours = [on_npu(x) for x in given]
    weights = torch.randn(2, 11, 32)
    expected = torch.autograd.grad((function(*given) * weights).sum(), given)
    actual = torch.autograd.grad((compiled(function)(*ours) * weights.npu()).sum(), ours)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, terms=256)


def test_a_constant_like_a_tensor_in_memory() -> None:
    check(lambda x, y: torch.where(x > 0, torch.full_like(y, 3.0), y) + x, torch.randn(4, 9), torch.randn(4, 9))


def test_two_passes_divide() -> None:
    check(lambda x: torch.softmax(x / 3, -1), torch.randn(5, 40))


def test_padding_by_nothing_is_no_operator() -> None:
    check(lambda x: F.pad(x, (0, 0, 0, 0)) * 2, torch.randn(3, 5))
    assert reports()[0].passes["remove_redundant_copies"] == 1


@pytest.mark.slow
def test_a_backward_that_is_the_first_work_of_its_thread() -> None:
    """Of autograd's, which no operator has made known to the device yet: in a process of its own."""
    program = """
import torch, torchtitan_npu.compile
x, weights = torch.randn(3, 5).npu().requires_grad_(), torch.randn(3, 5).npu()
y = torch.compile(torch.tanh, backend="npu")(x)
(grad,) = torch.autograd.grad(y, x, weights)
torch.testing.assert_close(grad, weights * (1 - y.detach().square()))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
