"""Every operator of ``torch.ops.npu`` on its sample: fake tensors and captured graphs agree with eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from samples import SAMPLES, sample
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_npu
from opspec.npu import npu_ops

# The host chooses between values that the device computes.
READS_THE_DEVICE = {"npu_nms_v4"}
DRAWS = {"_npu_dropout_state"}  # tests/fused/test_recorded_dropout.py


def operator(op: str) -> Any:
    name, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.npu, name), overload or "default")


def on_npu(call: Any) -> Any:
    return tree_map(lambda x: x.npu() if isinstance(x, Tensor) else x, call)


def tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def test_every_operator_has_a_sample() -> None:
    """Those composed of ATen operators may do without."""
    assert {op.full_name for op in npu_ops() if op.is_plain} <= set(SAMPLES)


@pytest.mark.parametrize("op", SAMPLES)
def test_fake_tensors_promise_what_comes(op: str) -> None:
    args, kwargs = on_npu(sample(op, seed=0))
    with FakeTensorMode() as mode:
        fake_args, fake_kwargs = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, (args, kwargs))
        promised = tree_leaves(operator(op)(*fake_args, **fake_kwargs))
    with torch_npu.fallback_policy("error"):
        actual = tree_leaves(operator(op)(*args, **kwargs))
    assert len(promised) == len(actual)
    for a, b in zip(actual, promised, strict=True):
        assert type(a) is not Tensor or (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


@pytest.mark.parametrize("op", sorted(set(SAMPLES) - READS_THE_DEVICE - DRAWS))
def test_a_replay_with_other_values_is_what_eager_gives(op: str) -> None:
    """Results and arguments that the operator writes are equal bit by bit."""
    static = on_npu(sample(op, seed=0))
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = operator(op)(*static[0], **static[1])
    for seed in (1, 2):
        fresh = on_npu(sample(op, seed))
        for old, new in zip(tensors(static), tensors(fresh), strict=True):
            old.copy_(new)
        graph.replay()
        expected = operator(op)(*fresh[0], **fresh[1])
        for a, e in zip(tensors([results, static]), tensors([expected, fresh]), strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", sorted(READS_THE_DEVICE))
def test_what_reads_the_device_is_refused_in_a_capture(op: str) -> None:
    args, kwargs = on_npu(sample(op, seed=0))
    with pytest.raises(RuntimeError, match="captur"), torch.npu.graph(torch.npu.NPUGraph()):
        operator(op)(*args, **kwargs)
