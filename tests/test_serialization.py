"""Saving, loading, copying and pickling."""

import copy
import io
import pickle

import pytest
import torch


def saved(obj) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("weights_only", [True, False])
def test_tensors_come_back_where_they_were(weights_only):
    x = torch.randn(3, 4, device="npu")
    y = torch.load(saved({"x": x, "cpu": x.cpu()}), weights_only=weights_only)
    assert y["x"].device == x.device
    assert y["cpu"].device.type == "cpu"
    assert torch.equal(y["x"].cpu(), x.cpu())
    assert torch.equal(y["cpu"], x.cpu())


@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        ("cpu", "cpu"),
        (torch.device("cpu"), "cpu"),
        ("npu", "npu:0"),
        ("npu:0", "npu:0"),
        (torch.device("npu", 0), "npu:0"),
        (torch.device("npu"), "npu:0"),
        ({"npu:0": "cpu"}, "cpu"),
        (lambda storage, location: storage, "cpu"),
        (lambda storage, location: storage.npu(0), "npu:0"),
        ("meta", "meta"),
    ],
)
def test_map_location(map_location, expected):
    x = torch.arange(6.0, device="npu").view(2, 3)
    y = torch.load(saved(x), map_location=map_location)
    assert y.device == torch.device(expected)
    assert y.shape == x.shape
    if expected != "meta":
        assert torch.equal(y.cpu(), x.cpu())


def test_cpu_checkpoint_to_npu():
    x = torch.arange(4.0)
    y = torch.load(saved(x), map_location="npu")
    assert y.is_npu
    assert torch.equal(y.cpu(), x)


def test_integer_devices_reach_the_npu():
    assert torch.ones(2).to(0).device == torch.device("npu:0")
    assert torch.load(saved(torch.ones(2)), map_location=torch.device(0)).is_npu


def test_missing_device_is_refused(run_python, tmp_path):
    path = tmp_path / "x.pt"
    run_python(f"import torch; torch.save(torch.ones(2, device='npu:1'), {str(path)!r})", CANN_HOST_DEVICES="2")
    with pytest.raises(RuntimeError, match=r"NPU device 1 but torch\.npu\.device_count"):
        torch.load(path)
    assert torch.load(path, map_location="npu:0").device.index == 0


def test_loading_to_npu_means_the_current_device(run_python, tmp_path):
    path = tmp_path / "x.pt"
    torch.save(torch.ones(2), path)
    run_python(
        f"""
        import torch
        torch.npu.set_device(1)
        assert torch.load({str(path)!r}, map_location="npu").device.index == 1
        """,
        CANN_HOST_DEVICES="2",
    )


def test_views_keep_sharing_their_storage():
    base = torch.arange(10.0, device="npu")
    a, b = torch.load(saved([base[:4], base[2:]]))
    a[3] = 100
    assert b[1].item() == 100


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64],
)
def test_dtypes(dtype):
    x = torch.tensor([0, 1, 1, 0]).to("npu", dtype)
    y = torch.load(saved(x))
    assert y.dtype == dtype
    assert torch.equal(y.cpu(), x.cpu())


def test_legacy_format():
    x = torch.arange(5.0, device="npu")
    buffer = io.BytesIO()
    torch.save(x, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer).cpu(), x.cpu())


def test_module_and_optimizer_states():
    model = torch.nn.Linear(3, 2).npu()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device="npu")).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    other = torch.nn.Linear(3, 2).npu()
    other.load_state_dict(state["model"])
    other_optimizer = torch.optim.Adam(other.parameters())
    other_optimizer.load_state_dict(state["optimizer"])
    assert torch.equal(other.weight.cpu(), model.weight.cpu())
    moments = other_optimizer.state[other.weight]["exp_avg"]
    assert moments.is_npu
    assert torch.equal(moments.cpu(), optimizer.state[model.weight]["exp_avg"].cpu())


def test_pickle_and_deepcopy_of_tensors():
    x = torch.randn(3, device="npu", requires_grad=True)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.is_npu
        assert y.requires_grad
        assert torch.equal(y.detach().cpu(), x.detach().cpu())
        assert y.data_ptr() != x.data_ptr()
    model = torch.nn.Linear(2, 2).npu()
    assert copy.deepcopy(model).weight.is_npu


def test_deepcopy_of_a_storage():
    storage = torch.arange(4.0, device="npu").untyped_storage()
    again = copy.deepcopy(storage)
    assert again.device == storage.device
    assert again.data_ptr() != storage.data_ptr()
    assert again.tolist() == storage.tolist()


@pytest.mark.parametrize("make", [torch.npu.Stream, torch.npu.Event, lambda: torch.Stream("npu")])
def test_streams_and_events_cannot_be_pickled(make):
    # As torch.Stream and torch.Event: a handle means nothing in another process.
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(make())


def test_generator_states_can_be_saved():
    generator = torch.Generator("npu").manual_seed(5)
    state = torch.load(saved(generator.get_state()))
    assert torch.equal(state, generator.get_state())


def test_repr_names_the_device():
    text = repr(torch.ones(2, device="npu"))
    assert "device='npu:0'" in text
    assert "1., 1." in text
