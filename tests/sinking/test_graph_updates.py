"""Arguments of captured calls that change between replays; functions of the host and looks at tensors inside graphs."""

import math
import sys

import pytest
import torch

import torch_npu
from torch_npu.npu import graphs
from torch_npu.npu._npugraph_handlers.npugraph_handler import _NPU_GRAPH_OP_HANDLERS

OPTIONS = {"num_heads": 4, "input_layout": "BNSD", "scale": 0.25}


@pytest.fixture
def qkv():
    generator = torch.Generator("npu").manual_seed(0)
    shape = lambda length: (1, 4, length, 16)  # noqa: E731
    return [torch.randn(shape(n), device="npu", dtype=torch.half, generator=generator) for n in (1, 32, 32)]


def attention(qkv, length, **more):
    return torch_npu.npu_fused_infer_attention_score(*qkv, actual_seq_lengths_kv=[length], **OPTIONS, **more)


def test_out_overload_takes_results_and_workspace(qkv):
    expected, lse = attention(qkv, 20, softmax_lse_flag=True)
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(
        *qkv, actual_seq_lengths_kv=[20], softmax_lse_flag=True, **OPTIONS
    )
    out = [torch.empty_like(expected), torch.empty_like(lse)]
    torch_npu.npu_fused_infer_attention_score.out(
        *qkv, actual_seq_lengths_kv=[20], softmax_lse_flag=True, workspace=workspace, out=out, **OPTIONS
    )
    assert torch.equal(out[0], expected)
    assert torch.equal(out[1], lse)


def test_out_overload_checks_what_it_is_given(qkv):
    expected, lse = attention(qkv, 20)
    with pytest.raises(ValueError, match=r"out\[0\] must be Half\[1, 4, 1, 16\], got Half\[4\]"):
        torch_npu.npu_fused_infer_attention_score.out(*qkv, out=[expected.new_empty(4), lse], **OPTIONS)
    with pytest.raises(ValueError, match="out must be a list of 2 tensors, got 1"):
        torch_npu.npu_fused_infer_attention_score.out(*qkv, out=[expected], **OPTIONS)


def test_update_by_hand(qkv):
    """The pattern of serving engines: the replay waits for an event that follows the update on another stream."""
    graph, event, stream = torch.npu.NPUGraph(), torch.npu.ExternalEvent(), torch.npu.Stream()
    with torch.npu.graph(graph):
        out = [torch.empty_like(t) for t in attention(qkv, 5)]
        capturing = torch.npu.current_stream()
        event.wait(capturing)
        event.reset(capturing)
        torch.npu.graph_task_group_begin(capturing)
        torch_npu.npu_fused_infer_attention_score.out(*qkv, actual_seq_lengths_kv=[5], out=out, **OPTIONS)
        group = torch.npu.graph_task_group_end(capturing)
        doubled = out[0] * 2
    for length in (7, 32, 1):
        with torch.npu.stream(stream):
            torch.npu.graph_task_update_begin(stream, group)
            torch_npu.npu_fused_infer_attention_score.out(*qkv, actual_seq_lengths_kv=[length], out=out, **OPTIONS)
            torch.npu.graph_task_update_end(stream)
            event.record(stream)
        graph.replay()
        expected = attention(qkv, length)[0]
        assert torch.equal(out[0], expected)
        assert torch.equal(doubled, expected * 2)


@pytest.mark.parametrize("version", ["", "_v2"])
def test_update_by_name(qkv, version):
    lengths = "actual_seq_kvlen" if version else "actual_seq_lengths_kv"
    options = {"num_query_heads": 4, "input_layout": "BNSD", "softmax_scale": 0.25} if version else OPTIONS
    call = getattr(torch_npu, "npu_fused_infer_attention_score" + version)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        first, _ = call(*qkv, **{lengths: [5]}, **options)
        second, _ = call(first, *qkv[1:], **{lengths: [6]}, **options)
    for a, b in [(7, 9), (32, 1)]:
        graph.update(cpu_update_input=[{lengths: [a]}, {lengths: [b]}])
        graph.replay()
        expected = call(*qkv, **{lengths: [a]}, **options)[0]
        assert torch.equal(first, expected)
        assert torch.equal(second, call(expected, *qkv[1:], **{lengths: [b]}, **options)[0])
    graph.update(cpu_update_input=[{lengths: [3]}])  # one for all
    graph.replay()
    assert torch.equal(first, call(*qkv, **{lengths: [3]}, **options)[0])


def test_updates_that_do_not_fit_are_refused(qkv):
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        attention(qkv, 5)
    with pytest.raises(RuntimeError, match="has 1 calls that can be updated, but 2 updates were given"):
        graph.update([{}, {}])
    plain = torch.npu.NPUGraph()
    with torch.npu.graph(plain):
        qkv[0] + 1
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        plain.update([{}])


def test_own_handler():
    @torch.library.custom_op("torch_npu_test::scaled", mutates_args={"out"})
    def scaled(x: torch.Tensor, factor: float, out: torch.Tensor) -> None:
        torch.mul(x, factor, out=out)

    @torch.npu.register_npu_graph_handler("scaled.default")
    class Handler(torch.npu.NpuGraphOpHandler):
        UPDATE_SPECS = {"scaled.default": [("arg", 1, "factor")]}

    try:
        x, out = torch.ones(3, device="npu"), torch.zeros(3, device="npu")
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph, auto_dispatch_capture=True):
            torch.ops.torch_npu_test.scaled(x, 2.0, out)
        graph.update([{"factor": 5.0}])
        graph.replay()
        assert out.tolist() == [5.0] * 3
        with pytest.warns(UserWarning, match="graph handler of scaled.default was Handler"):
            torch.npu.register_npu_graph_handler("scaled.default")(Handler)
    finally:
        del _NPU_GRAPH_OP_HANDLERS["scaled.default"]


def test_tensors_in_graphs_are_printed_at_replay(capfd):
    x = torch.arange(6.0, device="npu").reshape(2, 3)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch_npu.print_npugraph_tensor(x * 2, tensor_name="twice")
    torch.npu.synchronize()
    assert capfd.readouterr().out == ""
    for start in (0.0, 10.0):
        x.copy_(torch.arange(6.0).reshape(2, 3) + start)
        graph.replay()
        torch.npu.synchronize()
        printed = capfd.readouterr().out
        assert printed.startswith("twice=tensor([[")
        assert f"{2 * start + 10:g}" in printed
        assert "shape=(2, 3), dtype=torch.float32" in printed


def test_tensors_are_saved(tmp_path):
    x = torch.arange(3.0, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch_npu.save_npugraph_tensor([x, x + 1], save_path=str(tmp_path / "both.pt"), overwrite=True)
        torch_npu.save_npugraph_tensor(x, save_path=str(tmp_path / "one.pt"))
    x += 4
    graph.replay()
    torch.npu.synchronize()
    assert [t.tolist() for t in torch.load(tmp_path / "both_device_0.pt")] == [[4, 5, 6], [5, 6, 7]]
    assert torch.load(tmp_path / "one_device_0_0.pt").tolist() == [4, 5, 6]
    torch_npu.save_npugraph_tensor(x.cpu(), save_path=str(tmp_path / "one.pt"))
    assert torch.load(tmp_path / "one_0.pt").tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="tensors of one device"):
        torch_npu.save_npugraph_tensor([x, x.cpu()])


def test_host_functions_run_in_order_and_survive_their_objects():
    seen = []
    stream = torch.npu.Stream()
    x = torch.zeros(1, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=stream):
        x += 1
        torch.npu._launch_host_func(stream, lambda argument: seen.append(argument), "captured")
    torch.npu._launch_host_func(torch.npu.current_stream(), seen.append, "at once")
    torch.npu.synchronize()
    assert seen == ["at once"]
    graph.replay()
    graph.replay()
    torch.npu.synchronize()
    assert seen == ["at once", "captured", "captured"]
    assert x.item() == 2


def test_exceptions_of_host_functions_go_to_the_hook_for_them(monkeypatch):
    def fail(argument):
        raise KeyError(argument)

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: seen.append(repr(hook.exc_value)))
    torch.npu._launch_host_func(torch.npu.current_stream(), fail, "broken")
    torch.npu.synchronize()
    assert seen == ["KeyError('broken')"]


@pytest.mark.parametrize("shape", [(2, 3), (0, 4), ()])
def test_tensors_described_by_tuples(shape):
    tensor = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    described = graphs._make_npugraph_tensor_ptr_spec(tensor)
    assert described == ("host_tensor_ptr", tensor.data_ptr(), tensor.nbytes, shape, torch.int32)
    buffer = (graphs._NPUGRAPH_TENSOR_BUFFER_SPEC_MARKER, bytearray(tensor.numpy().tobytes()), shape, torch.int32)
    found, other = graphs._materialize_npugraph_tensor_arg([buffer, "a word"])
    assert torch.equal(found, tensor)
    assert other == "a word"
