"""transformers' Trainer finds the device by itself and trains as on the CPU."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

Factory = Callable[[str], object]

# How far a loss may be from the CPU's: float32 differs by the order of sums alone. float16 has a scaled loss on the
# device and not on the CPU, where Trainer refuses it: it is compared with float32 there.
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 2e-2}


@pytest.fixture
def train(tiny: Factory, examples: Factory, fresh_accelerate: Callable[[], None], tmp_path: Path) -> Callable:
    """``train(model name, on_cpu, **training arguments)`` returns the trainer after its training."""

    def run(name: str, on_cpu: bool, resume: str | None = None, callbacks: tuple = (), **options: object) -> Trainer:
        fresh_accelerate()
        arguments = TrainingArguments(
            output_dir=str(tmp_path / ("cpu" if on_cpu else "device")), use_cpu=on_cpu, report_to=[],
            per_device_train_batch_size=4, learning_rate=5e-3, logging_steps=1, disable_tqdm=True,
            **{"save_strategy": "no", "max_steps": 6, **options},
        )  # fmt: skip
        trainer = Trainer(tiny(name), arguments, train_dataset=examples(name), callbacks=list(callbacks))
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def losses(trainer: Trainer) -> list[float]:
    """One a step, which Trainer rounds to four digits."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def gradient_norms(trainer: Trainer) -> list[float]:
    return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]


def assert_same_training(device: Trainer, cpu: Trainer, tolerance: float) -> None:
    assert device.args.device.type == "npu"
    assert all(p.device.type == "npu" for p in device.model.parameters())
    assert cpu.args.device.type == "cpu"
    curve = losses(cpu)
    assert len(curve) == cpu.state.max_steps
    assert curve[-1] < curve[0]
    for ours, theirs in ((losses(device), curve), (gradient_norms(device), gradient_norms(cpu))):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("model", ["bert", pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
def test_default_settings(train: Callable, model: str) -> None:
    device = train(model, on_cpu=False)
    assert device.optimizer.param_groups[0]["fused"]  # Trainer's default for this version of PyTorch
    assert_same_training(device, train(model, on_cpu=True), TOLERANCE["fp32"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "llama"])
def test_bfloat16(train: Callable, model: str) -> None:
    device = train(model, on_cpu=False, bf16=True)
    assert_same_training(device, train(model, on_cpu=True, bf16=True), TOLERANCE["bf16"])


@pytest.mark.parametrize("model", ["bert"])
def test_float16_scales_the_loss(train: Callable, model: str) -> None:
    device = train(model, on_cpu=False, fp16=True)
    assert type(device.accelerator.scaler).__module__.startswith("torch_npu")
    assert device.accelerator.scaler.get_scale() > 1
    assert_same_training(device, train(model, on_cpu=True), TOLERANCE["fp16"])


@pytest.mark.slow
def test_gradient_accumulation_and_clipping(train: Callable) -> None:
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "max_steps": 4}
    assert_same_training(train("gpt2", False, **options), train("gpt2", True, **options), TOLERANCE["fp32"])


@pytest.mark.slow
def test_gradient_checkpointing(train: Callable) -> None:
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert_same_training(train("llama", False, **options), train("llama", True), TOLERANCE["fp32"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw_torch_npu_fused", "adamw_torch", "sgd", "adafactor"])
def test_optimizers_by_name(train: Callable, name: str) -> None:
    on_cpu = "adamw_torch" if name == "adamw_torch_npu_fused" else name
    device = train("llama", False, optim=name, max_steps=4)
    assert_same_training(device, train("llama", True, optim=on_cpu, max_steps=4), TOLERANCE["fp32"])


class StopAfter(TrainerCallback):
    """An interruption at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        control.should_training_stop = state.global_step >= self.step


def test_resumes_from_a_checkpoint(train: Callable) -> None:
    whole = train("bert", on_cpu=False)
    first = train("bert", on_cpu=False, save_strategy="steps", save_steps=3, callbacks=(StopAfter(3),))
    checkpoint = Path(first.args.output_dir) / "checkpoint-3"
    names = {file.name for file in checkpoint.iterdir()}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"} <= names
    torch.npu.manual_seed(99)
    rest = train("bert", on_cpu=False, resume=str(checkpoint))
    assert losses(rest)[3:] == losses(whole)[3:]
    for a, b in zip(rest.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dropout_is_reproducible_after_resuming(
    train: Callable, tiny: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_dropout(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.3
        return model

    init = Trainer.__init__
    monkeypatch.setattr(Trainer, "__init__", lambda self, model, *a, **k: init(self, with_dropout(model), *a, **k))
    whole = train("bert", on_cpu=False, max_steps=4)
    first = train("bert", on_cpu=False, max_steps=4, save_strategy="steps", save_steps=2, callbacks=(StopAfter(2),))
    torch.npu.manual_seed(99)
    rest = train("bert", on_cpu=False, max_steps=4, resume=str(Path(first.args.output_dir) / "checkpoint-2"))
    assert losses(rest)[2:] == losses(whole)[2:]


@pytest.mark.slow
def test_evaluation_and_prediction(train: Callable, examples: Factory) -> None:
    def accuracy(prediction: object) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}

    device, cpu = train("bert", on_cpu=False), train("bert", on_cpu=True)
    results = []
    for trainer in (device, cpu):
        trainer.compute_metrics = accuracy
        results.append((trainer.evaluate(examples("bert")), trainer.predict(examples("bert")).predictions))
    for key in ("eval_loss", "eval_accuracy"):
        assert results[0][0][key] == pytest.approx(results[1][0][key], abs=1e-5)
    torch.testing.assert_close(*(torch.from_numpy(r[1]) for r in results), atol=1e-4, rtol=1e-4)
