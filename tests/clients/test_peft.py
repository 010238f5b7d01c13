"""PEFT: LoRA adapters train on the device as on the CPU."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import infer_device
from torch import Tensor, nn

Factory = Callable[[str], nn.Module]


def adapted(model: nn.Module, **options: object) -> PeftModel:
    torch.manual_seed(3)
    targets = ["q_proj", "v_proj", "up_proj"]
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.0, **options))


def train(model: PeftModel, device: str, dtype: torch.dtype | None, steps: int = 3) -> list[Tensor]:
    """Losses, then the adapter's weights."""
    model.to(device)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens = torch.arange(3, 27).view(2, 12).to(device)
    losses = []
    for _ in range(steps):
        with torch.autocast(device, dtype, enabled=dtype is not None):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return [torch.stack(losses), *(p.detach().cpu() for p in model.parameters() if p.requires_grad)]


def test_it_finds_the_device() -> None:
    assert infer_device() == "npu"


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-4), (torch.bfloat16, 5e-2), (torch.float16, 2e-2)])
def test_training_as_on_the_cpu(tiny: Factory, dtype: torch.dtype | None, tolerance: float) -> None:
    results = [train(adapted(tiny("llama")), device, dtype) for device in ("npu", "cpu")]
    assert results[1][0][-1] < results[1][0][0]
    torch.testing.assert_close(results[0][0], results[1][0], atol=tolerance, rtol=tolerance)
    if dtype is None:
        torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)


def test_float32_adapters_of_a_bfloat16_model_under_autocast(tiny: Factory) -> None:
    # The attention's query and value come out of adapters in float32, the key in bfloat16.
    model = adapted(tiny("llama").to(torch.bfloat16), init_lora_weights=True)
    losses = train(model, "npu", torch.bfloat16)[0]
    assert losses[-1] < losses[0]


def test_adapters_are_saved_loaded_and_merged(tiny: Factory, tmp_path: Path) -> None:
    base = tiny("llama").eval()
    model = adapted(copy.deepcopy(base))
    train(model, "npu", None, steps=1)
    tokens = torch.arange(3, 15)[None].npu()
    model.eval()
    expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(copy.deepcopy(base).to("npu"), tmp_path).eval()
    assert {p.device.type for p in loaded.parameters()} == {"npu"}
    torch.testing.assert_close(loaded(tokens).logits, expected)
    merged = loaded.merge_and_unload()
    torch.testing.assert_close(merged(tokens).logits, expected, atol=1e-4, rtol=1e-4)
