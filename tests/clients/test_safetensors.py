"""safetensors reads to the device and writes from it."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

TENSORS = {
    "float32": torch.arange(12.0).view(3, 4),
    "bfloat16": torch.arange(5).bfloat16(),
    "int64": torch.tensor([1, -2, 3]),
    "bool": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(2.5),
}


@pytest.mark.parametrize("device", ["npu", "npu:0", 0])
def test_load_to(device: str | int, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "t.safetensors")
    loaded = load_file(tmp_path / "t.safetensors", device=device)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].device == torch.device("npu:0")
        assert loaded[name].dtype is tensor.dtype
        assert torch.equal(loaded[name].cpu(), tensor)


@pytest.mark.parametrize("device", ["npu", "npu:0", 0])
def test_slices(device: str | int, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "t.safetensors")
    with safe_open(tmp_path / "t.safetensors", framework="pt", device=device) as file:
        part = file.get_slice("float32")[1:, :2]
    assert part.device == torch.device("npu:0")
    assert torch.equal(part.cpu(), TENSORS["float32"][1:, :2])


def test_save_from(tmp_path: Path) -> None:
    save_file({name: tensor.npu() for name, tensor in TENSORS.items()}, tmp_path / "t.safetensors")
    loaded = load_file(tmp_path / "t.safetensors")
    for name, tensor in TENSORS.items():
        assert torch.equal(loaded[name], tensor)


def test_shared_memory_is_refused_as_for_any_device(tmp_path: Path) -> None:
    whole = torch.arange(6.0, device="npu")
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"a": whole, "b": whole[:3]}, tmp_path / "t.safetensors")


def test_models_with_tied_weights(tmp_path: Path) -> None:
    def make() -> nn.ModuleDict:
        model = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
        model["head"].weight = model["embed"].weight
        return model.to("npu")

    saved, loaded = make(), make()
    save_model(saved, str(tmp_path / "m.safetensors"))
    load_model(loaded, tmp_path / "m.safetensors", device="npu")
    assert loaded["head"].weight is loaded["embed"].weight
    assert torch.equal(loaded["embed"].weight, saved["embed"].weight)
