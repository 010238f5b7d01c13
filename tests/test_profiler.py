"""torch.profiler with device npu, and torch_npu.profiler."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity

import torch_npu
from torch_npu import profiler

SIZE = 600  # so large that the software CANN computes the product with ATen, which must not be seen


def work() -> torch.Tensor:
    x = torch.ones(SIZE, SIZE, device="npu")
    with torch.profiler.record_function("block"):
        return (x @ x).relu()


@pytest.mark.parametrize("profile", [torch.profiler.profile, profiler.profile])
def test_operators_of_the_device(profile):
    work()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]) as p:
        work()
    kernels = [e for e in p.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1]
    assert {"aclnnMm", "aclnnRelu"} <= {e.name for e in kernels}
    assert all(e.device_time_total > 0 or e.name not in ("aclnnMm", "aclnnRelu") for e in kernels)
    by_name = {e.key: e for e in p.key_averages()}
    assert by_name["aten::mm"].device_time_total > 0
    assert by_name["aten::mm"].device_time_total <= by_name["aten::mm"].cpu_time_total
    assert by_name["block"].cpu_time_total >= by_name["aten::relu"].cpu_time_total
    assert by_name["aten::mm"].count == 1
    assert "NPU total" in p.key_averages().table()


def test_nothing_of_the_device_without_its_activity():
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as p:
        work()
    assert not any(e.name.startswith("aclnn") for e in p.events())


def test_memory():
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.NPU], profile_memory=True) as p:
        kept = work()
    assert sum(e.self_device_memory_usage for e in p.key_averages()) >= kept.nbytes


def test_replays_of_graphs():
    x, graph = torch.ones(8, device="npu"), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 2
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]) as p:
        graph.replay()
        graph.replay()
    assert [e.name for e in p.events() if e.name.startswith("acl")] == ["aclmdlRIExecuteAsync"] * 2
    assert y.tolist() == [2.0] * 8


def test_recording_a_graph_is_no_work_of_the_device():
    x, graph = torch.ones(8, device="npu"), torch.npu.NPUGraph()
    with (
        torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.NPU]) as p,
        torch.npu.graph(graph),
    ):
        x.mul(2)
    assert not any(e.name == "aclnnMuls" for e in p.events())


def test_schedule_and_trace_files(tmp_path):
    handler = profiler.tensorboard_trace_handler(str(tmp_path), worker_name="worker", analyse_flag=True)
    with profiler.profile(
        activities=[ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        schedule=profiler.schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=handler,
        record_shapes=True,
        experimental_config=profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1),
    ) as p:
        for _ in range(5):
            work()
            p.step()
    [path] = tmp_path.glob("worker.*.pt.trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e["name"] == "aclnnMm"]
    assert len(kernels) == 2, "the two active steps"
    operators = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    assert {operators[k["args"]["External id"]] for k in kernels} == {"aten::mm"}
    assert p.npu_config.profiler_level is profiler.ProfilerLevel.Level1


@pytest.mark.parametrize(
    "options", [{"profiler_level": "Level9"}, {"aic_metrics": "x"}, {"export_type": ["csv"]}, {"host_sys": ["gpu"]}]
)
def test_what_the_collector_does_not_know_is_refused(options):
    with pytest.raises(ValueError, match=r"is not a valid (ProfilerLevel|AiCMetrics|ExportType|HostSystem)"):
        profiler._ExperimentalConfig(**options)


def test_what_the_collector_knows():
    config = profiler._ExperimentalConfig(
        export_type=profiler.ExportType.Db, aic_metrics=profiler.AiCMetrics.Memory, host_sys=["cpu"]
    )
    assert config.export_type == [profiler.ExportType.Db]
    assert config.host_sys == [profiler.HostSystem.CPU]
    assert profiler.ProfilerLevel.Level2 in profiler.supported_profiler_level()
    assert profiler.AiCMetrics.MemoryUB in profiler.supported_ai_core_metrics()
    assert profiler.supported_export_type() == {"db", "text"}
    assert profiler.ProfilerActivity.NPU in profiler.supported_activities()
    assert torch_npu.profiler is profiler


def test_marks_of_the_autograd_profiler():
    graph = torch.npu.NPUGraph()
    work()
    with torch.autograd.profiler.profile(use_device="npu") as p:
        work()
        with torch.npu.graph(graph):
            work()
    ran, recorded = (e for e in p.function_events if e.name == "aten::mm")
    assert ran.device_time_total > 0
    assert recorded.device_time_total == 0
    assert "NPU total" in p.key_averages().table()
