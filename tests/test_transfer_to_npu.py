"""Programs for CUDA on npu. Each test is a process of its own: the transfer holds for the whole process."""

import re
from pathlib import Path

import pytest

TRANSFER = "from torch_npu.contrib import transfer_to_npu\nimport torch\nfrom torch import nn\n"
ROOT = Path(__file__).parents[1]


def check(run_python, code: str) -> str:
    lines = code.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return run_python(TRANSFER + "\n".join(line[indent:] for line in lines)).stdout


def test_devices_as_arguments(run_python):
    check(
        run_python,
        """
        for device in ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)):
            x = torch.ones(2, 3, device=device)
            assert x.device == torch.device("npu:0")
            assert torch.zeros(2).to(device).is_cuda and torch.zeros(2).to(device=device).is_cuda
            assert x.new_zeros(2, device=device).is_cuda and torch.zeros_like(x.cpu(), device=device).is_cuda
            assert torch.fft.fftfreq(5, device=device).is_cuda
            assert nn.Linear(2, 2, device=device).weight.is_cuda and nn.Linear(2, 2).to(device).weight.is_cuda
            assert torch.cuda.max_memory_allocated(device) > 0
            torch.cuda.set_device(device)
            with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
                assert torch.ones(1).cuda(device).is_cuda
            generator = torch.Generator(device).manual_seed(3)
            assert isinstance(generator, torch.Generator) and generator.device.type == "npu"
            with torch.device(device):
                assert torch.ones(1).is_cuda and nn.Linear(2, 2).bias.is_cuda
            torch.set_default_device(device)
            assert torch.ones(1).is_cuda
            torch.set_default_device(None)
            assert torch.get_device_module(device) is torch.npu
        assert not torch.ones(1).is_cuda and torch.ones(1, device="cpu").device.type == "cpu"
        assert torch.nn.Parameter(torch.ones(1)).cuda().is_cuda
        assert nn.utils.rnn.pack_sequence([torch.ones(2, 1)]).cuda().is_cuda
        """,
    )


def test_text_that_only_contains_the_word_stays(run_python, tmp_path):
    check(
        run_python,
        f"""
        from torch_npu.contrib.redirect import npu
        for text in ("cuda_model.pt", "my cuda:0", "cuda:", "barracuda", "cuda:0:1"):
            assert npu(text) == text
        path = {str(tmp_path / "cuda")!r}
        torch.save(torch.ones(2).cuda(), path)
        assert torch.load(path).is_cuda
        assert torch.load(path, map_location="cuda:0").is_cuda
        assert torch.load(path, map_location={{"npu:0": "cuda:0"}}).is_cuda
        assert torch.load(path, map_location="cpu").device.type == "cpu"
        """,
    )


def test_torch_cuda_is_torch_npu(run_python):
    check(
        run_python,
        """
        assert torch.cuda.is_available() and torch.cuda.device_count() == torch.npu.device_count()
        assert torch.cuda.Stream is torch.npu.Stream and torch.cuda.CUDAGraph is torch.npu.NPUGraph
        assert torch.cuda.amp.GradScaler is torch.npu.amp.GradScaler
        assert isinstance(torch.cuda.FloatTensor([1.0]), torch.cuda.FloatTensor)
        assert torch.ones(2).type("torch.cuda.HalfTensor").dtype == torch.float16
        assert torch.cuda.default_generators[0].device.type == "npu"
        x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        x.fill_(4)
        graph.replay()
        assert y.tolist() == [8.0, 8.0, 8.0]
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(), end.record(), torch.cuda.synchronize()
        assert start.elapsed_time(end) >= 0 and isinstance(torch.Event("cuda"), torch.Event)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (x.reshape(1, 3) @ x.reshape(3, 1)).dtype == torch.bfloat16
        """,
    )


@pytest.mark.slow
def test_compiled_functions(run_python):
    check(
        run_python,
        """
        import torch_npu
        for backend in ("inductor", "npu"):
            def f(v):
                return (v.cuda() + torch.ones(8, device="cuda")).to("cuda").sin()
            x = torch.randn(4, 8, device="cuda")
            result = torch.compile(f, backend=backend)(x)
            torch.testing.assert_close(result.cpu(), (x.cpu() + 1).sin())
        """,
    )


def test_report(run_python):
    printed = check(
        run_python,
        """
        def load():
            return torch.ones(2).cuda()
        for _ in range(3):
            load()
        torch.ones(2, device="cpu"), torch.ones(2, device="npu")
        torch.zeros(2, device="cuda:0")
        first, second = transfer_to_npu.report()
        assert (first.name, first.given, first.used, first.calls) == ("torch.Tensor.cuda", "'cuda'", "'npu'", 3)
        assert first.first_line.endswith(" in load"), first.first_line
        assert (second.name, second.used, second.calls) == ("torch.zeros", "'npu:0'", 1)
        print(transfer_to_npu.report())
        transfer_to_npu.clear_report()
        assert str(transfer_to_npu.report()).strip() == "no call named CUDA"
        """,
    )
    assert "torch.zeros" in printed


def test_process_groups(run_python):
    check(
        run_python,
        """
        import torch
        import torch.distributed as dist
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(3, device="cuda")
        dist.all_reduce(x)
        assert x.is_npu and dist.get_backend() == "hccl"
        dist.destroy_process_group()
        from torch_npu.contrib.redirect import backend
        assert backend("nccl") == "hccl" and backend("cpu:gloo,cuda:nccl") == "cpu:gloo,npu:hccl"
        assert backend("gloo") == "gloo" and backend(None) is None
        """,
    )


def test_by_environment(run_python):
    result = run_python((ROOT / "examples" / "cuda_program.py").read_text(), TORCH_TRANSFER_TO_NPU="1")
    assert re.match(r"Ascend\w+: loss \d\.\d+, \d+\.\d MiB at most", result.stdout), result.stdout


def test_profiles(run_python):
    check(
        run_python,
        """
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
            assert [torch.cuda.nvtx.range_push("outer"), torch.cuda.nvtx.range_push("inner")] == [0, 1]
            torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
            assert [torch.cuda.nvtx.range_pop() for _ in range(3)] == [1, 0, -1]
            with torch.cuda.nvtx.range("step {}", 7):
                torch.cuda.nvtx.mark("here")
            torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("loose"))
        names = [e.name for e in p.events()]
        assert {"aclnnMm", "outer", "inner", "step 7", "here", "loose"} <= set(names), names
        """,
    )
