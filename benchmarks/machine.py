"""What the machine can do at most, measured in the same run as the cases."""

import platform
from dataclasses import dataclass

import torch

import torch_npu
from benchmarks.timing import interleaved


@dataclass(frozen=True)
class Machine:
    processor: str
    threads: int
    torch: str
    cann: str
    read_gb_per_second: float  # of a tensor larger than the caches
    gemm_float32_gflops: float
    gemm_bfloat16_gflops: float

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.threads} threads, torch {self.torch}, {self.cann}; reads "
            f"{self.read_gb_per_second:.1f} GB/s, GEMM {self.gemm_float32_gflops:.0f} GFLOP/s in float32 and "
            f"{self.gemm_bfloat16_gflops:.0f} in bfloat16"
        )


def measure_machine() -> Machine:
    size = 1024
    big = torch.ones(64 << 20)
    matrices = {dtype: torch.randn(size, size).to(dtype) for dtype in (torch.float32, torch.bfloat16)}
    rows, ones = big.view(-1, 4096), torch.ones(4096)
    # One stream of memory and several: on some machines the latter get twice as much.
    reads = {"sum": lambda: big.sum(), "product": lambda: rows.mv(ones)}
    works = {**reads, **{str(d): lambda m=m: m @ m for d, m in matrices.items()}}
    seconds = interleaved(works, rounds=8)
    flops = 2 * size**3
    cann = torch_npu.cann_info()
    return Machine(
        processor=_processor(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        cann="software CANN" if cann["is_host"] else f"CANN {cann['root']}",
        read_gb_per_second=big.nbytes / min(seconds[name] for name in reads) / 1e9,
        gemm_float32_gflops=flops / seconds["torch.float32"] / 1e9,
        gemm_bfloat16_gflops=flops / seconds["torch.bfloat16"] / 1e9,
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
