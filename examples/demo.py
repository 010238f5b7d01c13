"""Four models on the CPU and on device npu, side by side: same results, how long each takes, and what ran where.

    python examples/demo.py [--repeats 5] [--threads 2]

The models have random weights; nothing is downloaded. On a machine without CANN the device is the software CANN, so
that both columns are the same processor. Exits with 1 if a result is farther from the CPU's than the job's tolerance.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import torch_npu

Run = Callable[[], Tensor]  # one timed run; returns what is compared between the devices, on the CPU


@dataclass(frozen=True)
class Job:
    name: str
    tolerance: float  # largest absolute difference of the results, which are of the order of 1 to 10
    prepare: Callable[[str], Run]  # makes model and inputs on a device, the same ones each time
    trains: bool = False


def resnet50(device: str) -> Run:
    """Four images of 224 x 224 through ResNet-50."""
    model = ResNetForImageClassification(ResNetConfig()).eval().to(device)
    images = torch.randn(4, 3, 224, 224).to(device)
    return lambda: model(images).logits.cpu()


def vit(device: str) -> Run:
    """Two images of 224 x 224 through ViT-Base."""
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).eval().to(device)
    images = torch.randn(2, 3, 224, 224).to(device)
    return lambda: model(images).logits.cpu()


def llama(device: str) -> Run:
    """24 tokens after a prompt of 16, token by token with a key-value cache; the logits of all of them."""
    config = LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=128,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to(device)
    prompt = torch.randint(3, 4096, (1, 16)).to(device)

    def run() -> Tensor:
        step = model(prompt, use_cache=True)
        logits = [step.logits[:, -1]]
        for _ in range(23):
            token = logits[-1].argmax(-1, keepdim=True)
            step = model(token, past_key_values=step.past_key_values, use_cache=True)
            logits.append(step.logits[:, -1])
        return torch.stack(logits).cpu()

    return run


def training(device: str) -> Run:
    """Five training steps of a small GPT-2 with AdamW; the losses."""
    config = GPT2Config(
        vocab_size=2048, n_embd=256, n_layer=4, n_head=8, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(0, 2048, (4, 96)).to(device)

    def run() -> Tensor:
        losses = []
        for _ in range(5):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).cpu()

    return run


JOBS = [
    Job("ResNet-50, inference, 4 images", 1e-3, resnet50),
    Job("ViT-Base, inference, 2 images", 1e-3, vit),
    Job("Llama (6 layers), 24 tokens", 1e-3, llama),
    Job("GPT-2 (4 layers), 5 training steps", 1e-3, training, trains=True),
]


@dataclass
class Result:
    difference: float
    cpu_ms: float
    npu_ms: float
    native_calls: int  # in one run, of CANN's operators
    fallback_calls: int  # in one run, of operators that have no native kernel


def measure(job: Job, repeats: int, advance: Callable[[], None]) -> Result:
    """Runs a job ``repeats`` times on each device in turn and takes the best time of each."""

    def prepare(device: str) -> Run:
        torch.manual_seed(0)
        return job.prepare(device)

    runs = {device: prepare(device) for device in ("cpu", "npu")}
    with torch.set_grad_enabled(job.trains):
        torch_npu.clear_native_calls()
        torch_npu.clear_fallback_report()
        outputs = {}
        for device, run in runs.items():  # also warms up
            outputs[device] = run()
            advance()
        native = sum(torch_npu.native_calls().values())
        fallback = sum(entry.calls for entry in torch_npu.fallback_report())
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(repeats):
            for device, run in runs.items():
                start = time.perf_counter()
                run()
                best[device] = min(best[device], time.perf_counter() - start)
                advance()
    difference = (outputs["cpu"] - outputs["npu"]).abs().max().item()
    return Result(difference, best["cpu"] * 1e3, best["npu"] * 1e3, native, fallback)


def table_of(results: dict[Job, Result]) -> Table:
    table = Table(title="the same models on cpu and on npu", title_style="bold")
    table.add_column("job")
    for name in ("max difference", "tolerance", "ms cpu", "ms npu", "npu / cpu", "native calls", "fallback calls"):
        table.add_column(name, justify="right")
    for job, r in results.items():
        style = "" if r.difference <= job.tolerance else "[red]"
        table.add_row(
            job.name, f"{style}{r.difference:.1e}", f"{job.tolerance:.0e}", f"{r.cpu_ms:.1f}", f"{r.npu_ms:.1f}",
            f"{r.npu_ms / r.cpu_ms:.2f}", str(r.native_calls), str(r.fallback_calls),
        )  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each job on each device; the best counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of both devices")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(width=None if sys.stdout.isatty() else 120)
    cann = torch_npu.cann_info()
    kind = "software CANN" if cann["is_host"] else "CANN"
    console.print(f"torch {torch.__version__}, {arguments.threads} threads, {kind} {cann['root']} as {cann['soc']}")
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = {}
    with Progress(*columns, console=console) as progress:
        for job in JOBS:
            task = progress.add_task(job.name, total=2 * (arguments.repeats + 1))
            results[job] = measure(job, arguments.repeats, lambda task=task: progress.advance(task))
    console.print(table_of(results))
    wrong = [job.name for job, result in results.items() if not result.difference <= job.tolerance]
    if wrong:
        console.print(f"[red]results differ by more than the tolerance: {'; '.join(wrong)}")
        return 1
    console.print("all results agree within the tolerances")
    return 0


if __name__ == "__main__":
    sys.exit(main())
