"""accelerate chooses the device by itself."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import (
    Accelerator,
    cpu_offload,
    dispatch_model,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from accelerate.utils import (
    GradScalerKwargs,
    find_executable_batch_size,
    get_max_memory,
    is_bf16_available,
    is_npu_available,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader

Factory = Callable[[str], nn.Module]


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, generator=generator)
    return list(zip(x, x[:, :2].sum(-1, keepdim=True), strict=True))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))


class Run:
    """A training loop as accelerate's documentation has it; no device is named."""

    def __init__(self, accelerator: Accelerator, steps_before: int = 0) -> None:
        self.accelerator = accelerator
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)  # before prepare() moves the model
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, 8)
        loader = DataLoader(batches(), batch_size=4)
        self.model, self.optimizer, self.loader, self.schedule = accelerator.prepare(model, optimizer, loader, schedule)

    def train(self, skip: int = 0, stop: int | None = None) -> list[float]:
        losses = []
        for step, (x, y) in enumerate(self.loader):
            if step < skip:
                continue
            if step == stop:
                break
            with self.accelerator.accumulate(self.model):
                with self.accelerator.autocast():
                    loss = nn.functional.mse_loss(self.model(x), y)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def test_it_finds_the_device() -> None:
    assert is_npu_available()
    assert is_bf16_available()
    accelerator = Accelerator()
    assert accelerator.device.type == "npu"
    assert accelerator.prepare(network())[0].weight.device.type == "npu"
    assert 0 in get_max_memory()


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-5),
        ({"gradient_accumulation_steps": 2}, 1e-5),
        ({"mixed_precision": "bf16"}, 3e-2),
        ({"mixed_precision": "fp16", "kwargs_handlers": [GradScalerKwargs(init_scale=256.0)]}, 3e-2),
    ],
    ids=["float32", "accumulation", "bf16", "fp16"],
)
def test_training_as_on_the_cpu(options: dict, tolerance: float, fresh_accelerate: Callable[[], None]) -> None:
    run = Run(Accelerator(**options))
    assert next(run.model.parameters()).device.type == "npu"
    if options.get("mixed_precision") == "fp16":
        assert type(run.accelerator.scaler).__module__.startswith("torch_npu")
    losses = run.train()
    fresh_accelerate()
    if options.get("mixed_precision") == "fp16":  # refused on the CPU; compared with float32
        options = {}
    reference = Run(Accelerator(cpu=True, **options))
    assert reference.accelerator.device.type == "cpu"
    expected = reference.train()
    assert expected[-1] < expected[0]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=tolerance, rtol=tolerance)


def test_float16_skips_a_step_that_overflows() -> None:
    accelerator = Accelerator(mixed_precision="fp16")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    scale = accelerator.scaler.get_scale()
    accelerator.backward(model(torch.full((2, 4), float("inf"), device=accelerator.device)).sum())
    optimizer.step()
    assert optimizer.step_was_skipped
    assert accelerator.scaler.get_scale() < scale
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_save_and_load_state(tmp_path: Path, fresh_accelerate: Callable[[], None]) -> None:
    whole = Run(Accelerator())
    expected = whole.train()
    fresh_accelerate()
    first = Run(Accelerator())
    first.train(stop=4)
    first.accelerator.save_state(str(tmp_path))
    noise = torch.rand(3, device="npu")
    torch.npu.manual_seed(99)
    fresh_accelerate()
    second = Run(Accelerator())
    second.accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(3, device="npu"), noise)  # the device's random state came back, too
    assert second.train(skip=4) == expected[4:]


def test_cpu_offload(tiny: Factory) -> None:
    model = tiny("llama").eval()
    tokens = torch.arange(3, 15)[None]
    expected = model(tokens).logits
    offloaded = cpu_offload(copy.deepcopy(model), execution_device=torch.device("npu:0"))
    assert all(p.device.type == "meta" for p in offloaded.parameters())
    result = offloaded(tokens).logits
    assert result.device.type == "cpu"  # hooks hand results back where the inputs were
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)


def test_dispatch_with_a_device_map(tiny: Factory) -> None:
    model = tiny("llama").eval()
    tokens = torch.arange(3, 15)[None]
    expected = model(tokens).logits
    device_map = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu", "model.norm": 0,
                  "model.rotary_emb": 0, "lm_head": 0}  # fmt: skip
    dispatched = dispatch_model(copy.deepcopy(model), device_map)
    assert dispatched.model.layers[0].mlp.up_proj.weight.device == torch.device("npu:0")
    torch.testing.assert_close(dispatched(tokens).logits.cpu(), expected, atol=1e-5, rtol=1e-4)


def test_automatic_device_map(tiny: Factory, tmp_path: Path) -> None:
    model = tiny("gpt2").eval()
    assert set(infer_auto_device_map(model).values()) == {0}
    tokens = torch.arange(3, 15)[None]
    expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    with init_empty_weights():
        empty = tiny("gpt2").eval()
    empty.tie_weights()
    loaded = load_checkpoint_and_dispatch(empty, str(tmp_path / "model.safetensors"), device_map="auto")
    assert loaded.transformer.wte.weight.device.type == "npu"
    torch.testing.assert_close(loaded(tokens.npu()).logits.cpu(), expected, atol=1e-5, rtol=1e-4)


def test_from_pretrained_with_a_device_map(tiny: Factory, tmp_path: Path) -> None:
    model = tiny("llama").eval()
    model.save_pretrained(tmp_path)
    tokens = torch.arange(3, 15)[None]
    for device_map in ("auto", "npu", "npu:0", 0):
        loaded = type(model).from_pretrained(tmp_path, device_map=device_map)
        assert loaded.device == torch.device("npu:0")
        torch.testing.assert_close(loaded(tokens.npu()).logits.cpu(), model(tokens).logits, atol=1e-5, rtol=1e-4)


def test_batch_size_shrinks_until_it_fits() -> None:
    row = 1 << 20  # bytes for each sample
    free, total = torch.npu.mem_get_info()
    tried = []

    @find_executable_batch_size(starting_batch_size=int(total * 1.2) // row)
    def step(batch_size: int) -> int:
        tried.append(batch_size)
        torch.empty(batch_size, row, dtype=torch.uint8, device="npu")
        return batch_size

    assert step() * row <= free
    assert len(tried) > 1
    assert torch.ones(3, device="npu").sum().item() == 3


@pytest.mark.slow
def test_gather_and_metrics() -> None:
    accelerator = Accelerator()
    values = torch.arange(4.0, device=accelerator.device)
    assert torch.equal(accelerator.gather_for_metrics(values), values)
    assert accelerator.reduce(values, "sum").device.type == "npu"
    padded = accelerator.pad_across_processes(values)
    assert padded.device.type == "npu"
