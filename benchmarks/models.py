"""Whole models of transformers against CPU eager and Inductor, each way in a process of its own.

So no way meets what another left in allocators, code caches and oneDNN. The processes are there at the same time and
are measured in turn. On npu a model is compiled with frozen weights, or goes through ``torchtitan_npu.optimize`` and
runs in ``torch_npu.enable_graph()``. Weights are random; configurations are the models' own.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn
from torch._inductor import config as inductor_config

from benchmarks.result import Result
from benchmarks.timing import LONGEST_CASE_SECONDS, Work, announce, interleaved

CPU, INDUCTOR, FROZEN = "cpu eager", "inductor", "inductor, frozen"
COMPILED, GRAPH = "npu compiled", "npu optimized, graph"
WAYS = (CPU, INDUCTOR, FROZEN, COMPILED, GRAPH)
ROUND_SECONDS = 1.0
Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


@dataclass(frozen=True)
class ModelCase:
    """``make()`` gives the model in inference mode and its arguments, on the CPU; processes load it by name."""

    name: str
    make: Make
    aims: dict[str, float] = field(default_factory=dict)
    bytes_moved: int = 0  # of the weights, where they are read once a call
    group: str = "models"

    def measure(self, rounds: int) -> Result:
        """Best of ``rounds`` measurements of a second each, fewer where that would take very long."""
        announce(self.name)
        workers = {way: _Worker(self.make, way) for way in WAYS}
        try:
            seconds = dict.fromkeys(workers, float("inf"))
            deadline = time.perf_counter() + LONGEST_CASE_SECONDS * len(WAYS)
            for done in range(rounds):
                if done >= 3 and time.perf_counter() > deadline:
                    break
                for way, worker in workers.items():
                    seconds[way] = min(seconds[way], worker.measure())
        finally:
            for worker in workers.values():
                worker.stop()
        return Result(self.name, self.group, seconds, self.aims, {}, self.bytes_moved)


class _Worker:
    """A process that has one way ready, and measures a round of it when asked."""

    def __init__(self, make: Make, way: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, way, torch.get_num_threads()), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is the end of what can be received
        self._connection.recv()

    def measure(self) -> float:
        self._connection.send(True)
        return float(self._connection.recv())

    def stop(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, make: Make, way: str, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with torch.no_grad():
        work = _prepare(way, *make())
        for _ in range(3):  # the second call is recorded, the third replays
            work()
        connection.send(True)
        while True:
            try:
                connection.recv()
            except EOFError:
                return
            connection.send(_best_of_a_round(work))


def _best_of_a_round(work: Work) -> float:
    end = time.perf_counter() + ROUND_SECONDS
    best = interleaved({"": work}, 1)[""]
    while time.perf_counter() < end:
        best = min(best, interleaved({"": work}, 1)[""])
    return best


def _prepare(way: str, model: nn.Module, arguments: tuple[Tensor, ...]) -> Work:
    if way == CPU:
        return lambda: model(*arguments)
    if way in (INDUCTOR, FROZEN):
        inductor_config.freezing = way == FROZEN
        compiled = torch.compile(model, dynamic=False)
        return lambda: compiled(*arguments)

    import torch_npu
    import torchtitan_npu

    model, there = model.npu(), tuple(a.npu() for a in arguments)
    if way == COMPILED:
        compiled = torch.compile(model, backend="npu", dynamic=False, options={"freezing": True})
        return lambda: compiled(*there)
    torchtitan_npu.optimize(model)

    def graph() -> object:
        with torch_npu.enable_graph(strict=True):
            return model(*there)

    return graph


# ---- models


def resnet50(images: int, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return model.eval().to(dtype), (torch.randn(images, 3, 224, 224, dtype=dtype),)


def vit_base(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    return model.eval().to(dtype), (torch.randn(1, 3, 224, 224, dtype=dtype),)


def bert_base(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """With a mask: without one the model reads on the host whether there is padding, and is no graph."""
    model = transformers.BertModel(transformers.BertConfig())
    return model.eval().to(dtype), (torch.randint(0, 30522, (1, 128)), torch.ones(1, 128, dtype=torch.int64))


class Decoder(nn.Module):
    """A causal language model that reads one token behind others in a static cache."""

    def __init__(self, model: transformers.PreTrainedModel, tokens: int) -> None:
        super().__init__()
        self.model = model
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=tokens)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        return self.model(token, past_key_values=self.cache, cache_position=position, use_cache=True)[0]


def llama_2_7b(layers: int = 4) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Some of its 32 layers, which are all alike, and the head, in bfloat16; the 65th token."""
    config = transformers.LlamaConfig(num_hidden_layers=layers)  # its other numbers are Llama-2-7B's
    model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    return Decoder(model.eval(), 128), (torch.tensor([[1]]), torch.tensor([64]))


LLAMA_BYTES = 2 * (4 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000)


def cases() -> list[ModelCase]:
    plain, half = torch.float32, torch.bfloat16
    return [
        ModelCase("ResNet-50, 1 image, float32", partial(resnet50, 1, plain), {CPU: 1.35, FROZEN: 1.0}),
        ModelCase("ResNet-50, 8 images, float32", partial(resnet50, 8, plain), {FROZEN: 1.0}),
        ModelCase("ResNet-50, 1 image, bfloat16", partial(resnet50, 1, half), {CPU: 1.35}),
        ModelCase("Llama-2-7B, 4 layers, one token, bfloat16", llama_2_7b, {CPU: 1.9, FROZEN: 1.4}, LLAMA_BYTES),
        ModelCase("ViT-Base, 1 image, float32", partial(vit_base, plain)),
        ModelCase("ViT-Base, 1 image, bfloat16", partial(vit_base, half)),
        ModelCase("BERT-Base, 128 tokens, float32", partial(bert_base, plain)),
        ModelCase("BERT-Base, 128 tokens, bfloat16", partial(bert_base, half)),
    ]
