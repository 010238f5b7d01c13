"""What is checked of one operator and dtype: npu against CPU, sample by sample.

An aspect is a function of (OpInfo, dtype) that raises AssertionError (or whatever the operator raised on npu) for the
first difference.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from compare import BELOW_FLOAT64, assert_same, sharing, tensors, to_npu
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

# How many samples of an OpInfo are tried; the first ones are the plain ones.
SAMPLES = 6
FEWER_SAMPLES = 2  # for aspects that repeat what `forward` has covered

# PyTorch wants these arguments on the CPU, whatever the device of the others.
STAYS_ON_CPU = {"tensor_split": 0}  # operator: position in the arguments after the first

# Their results are whatever was in memory.
UNINITIALISED = ("empty", "new_empty", "resize_", "resize_as_")

Call = Callable[..., Any]


@dataclass
class Outcome:
    """Of a call on the CPU."""

    value: Any
    error: Exception | None


class RandomNumbers(TorchDispatchMode):
    """Notices operators that draw random numbers."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drawn |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def samples(op: OpInfo, dtype: torch.dtype, count: int, requires_grad: bool = False) -> Iterator[SampleInput]:
    """The first samples, made on the CPU; the same ones each time."""
    torch.manual_seed(0)
    return itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), count)


def arguments(sample: SampleInput) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return sample.input, sample.args, sample.kwargs


def on_npu(op: OpInfo, sample: SampleInput) -> SampleInput:
    input, args, kwargs = to_npu(arguments(sample))
    if (kept := STAYS_ON_CPU.get(op.name)) is not None and kept < len(args):
        args = (*args[:kept], sample.args[kept], *args[kept + 1 :])
    return SampleInput(
        input,
        args=args,
        kwargs=kwargs,
        output_process_fn_grad=sample.output_process_fn_grad,
        broadcasts_input=sample.broadcasts_input,
    )


def on_cpu(call: Call, sample: SampleInput, **extra: Any) -> Outcome:
    try:
        return Outcome(call(sample.input, *sample.args, **sample.kwargs, **extra), None)
    except Exception as raised:  # what the CPU refuses, npu may refuse
        return Outcome(None, raised)


def _value(call: Call, sample: SampleInput) -> Any:
    return call(sample.input, *sample.args, **sample.kwargs)


def in_float64(sample: SampleInput) -> SampleInput:
    """The same sample with float64 in place of lower precisions, in tensors and in dtype arguments."""

    def widen(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return torch.float64 if x in BELOW_FLOAT64 else x
        widened = x.detach().double() if x.dtype in BELOW_FLOAT64 else x.detach()
        return widened.requires_grad_(x.requires_grad)

    return sample.transform(widen)


def values_matter(op: OpInfo, sample: SampleInput) -> bool:
    """False for random and for uninitialised results."""
    if op.name.startswith(UNINITIALISED) or op.has_nondeterministic_output:
        return False
    again = sample.transform(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x)
    with RandomNumbers() as mode:
        on_cpu(op.op, again)
    return not mode.drawn


def _compare(op: OpInfo, call: Call, sample: SampleInput) -> None:
    twin, wide = on_npu(op, sample), in_float64(sample)  # before the CPU may write into its arguments
    outcome = on_cpu(call, sample)
    if outcome.error is not None:
        return
    result = call(twin.input, *twin.args, **twin.kwargs)
    values = values_matter(op, sample)
    assert_same(result, outcome.value, values=values, reference=lambda: on_cpu(call, wide).value)
    if op.name not in STAYS_ON_CPU:
        assert_same(tensors(arguments(twin)), tensors(arguments(sample)), values=values, what="argument after the call")
    assert sharing(result, arguments(twin)) == sharing(outcome.value, arguments(sample)), "shares other storages"


def forward(op: OpInfo, dtype: torch.dtype) -> None:
    """Values, dtype, shape, strides, sharing with arguments, and what is written into arguments."""
    for sample in samples(op, dtype, SAMPLES):
        _compare(op, op.op, sample)


def noncontiguous(op: OpInfo, dtype: torch.dtype) -> None:
    """The same from arguments with gaps between their elements."""
    for sample in samples(op, dtype, FEWER_SAMPLES):
        if all(t.layout is torch.strided for t in tensors(arguments(sample))):
            _compare(op, op.op, sample.noncontiguous())


def inplace(op: OpInfo, dtype: torch.dtype) -> None:
    """The in-place variant returns its argument, and refuses what the CPU refuses."""
    call = op.get_inplace()
    if call is None:
        return
    for sample in samples(op, dtype, FEWER_SAMPLES):
        if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            continue
        twin, wide = on_npu(op, sample), in_float64(sample)
        outcome = on_cpu(call, sample)
        if outcome.error is not None:
            _assert_refuses(call, twin, outcome.error)
            continue
        address = twin.input.data_ptr()
        result = call(twin.input, *twin.args, **twin.kwargs)
        assert result is twin.input, "the in-place variant returned another tensor"
        assert result.data_ptr() == address or not op.name.startswith("resize"), "the memory moved"
        reference = functools.partial(_value, call, wide)
        assert_same(
            result, outcome.value, values=values_matter(op, sample), what="in-place result", reference=reference
        )


def _assert_refuses(call: Call, twin: SampleInput, error: Exception, **extra: Any) -> None:
    try:
        call(twin.input, *twin.args, **twin.kwargs, **extra)
    except type(error):
        return
    except NotImplementedError:
        return
    raise AssertionError(f"no error on npu; the CPU raises {type(error).__name__}: {error}")


def out(op: OpInfo, dtype: torch.dtype) -> None:
    """out= of the right shape, empty (to be resized), and with strides of its own (to be kept)."""
    if not op.supports_out:
        return
    for sample in samples(op, dtype, FEWER_SAMPLES):
        expected = on_cpu(op.op, sample)
        if expected.error is not None or not tensors(expected.value):
            continue
        if len(tensors(expected.value)) != (1 if isinstance(expected.value, torch.Tensor) else len(expected.value)):
            continue
        for make in (_out_like, _out_empty, _out_strided):
            given = tree_map(make, expected.value)
            given = given if isinstance(given, torch.Tensor) else tuple(given)
            twin, twin_given = on_npu(op, sample), to_npu(given)
            outcome = on_cpu(op.op, sample, out=given)
            if outcome.error is not None:
                _assert_refuses(op.op, twin, outcome.error, out=twin_given)
                continue
            result = op.op(twin.input, *twin.args, **twin.kwargs, out=twin_given)
            for returned, wanted in zip(tensors(result), tensors(twin_given), strict=outcome.value is not None):
                assert returned is wanted, f"out= ({make.__name__}): another tensor was returned"
            values, reference = values_matter(op, sample), functools.partial(_value, op.op, in_float64(sample))
            assert_same(twin_given, given, values=values, what=f"out ({make.__name__})", reference=reference)


def _out_like(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(t)


def _out_empty(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=t.dtype)


def _out_strided(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(tuple(reversed(t.shape)), dtype=t.dtype).permute(*reversed(range(t.dim()))) if t.dim() else t


def gradients(op: OpInfo, dtype: torch.dtype) -> None:
    """Gradients of all differentiable outputs with respect to all inputs that require one."""
    if not op.supports_autograd or not (dtype.is_floating_point or dtype.is_complex):
        return
    if dtype not in op.supported_backward_dtypes("cpu"):
        return
    for sample in samples(op, dtype, SAMPLES, requires_grad=True):
        twin = on_npu(op, sample)
        try:
            expected = _gradients(op, sample)
        except Exception:
            continue
        if expected is not None:
            actual = _gradients(op, twin)
            values, wide = values_matter(op, sample), in_float64(sample)
            assert_same(actual, expected, values=values, what="gradient", reference=lambda w=wide: _gradients(op, w))


def _gradients(op: OpInfo, sample: SampleInput) -> list[torch.Tensor | None] | None:
    leaves = [t for t in tensors(arguments(sample)) if t.requires_grad]
    result = op.op(sample.input, *sample.args, **sample.kwargs)
    outputs = [t for t in tensors(sample.output_process_fn_grad(result)) if t.requires_grad]
    if not leaves or not outputs:
        return None
    generator = torch.Generator().manual_seed(1)
    directions = [_direction(t, generator) for t in outputs]
    return list(torch.autograd.grad(outputs, leaves, directions, allow_unused=True))


def _direction(output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers that are the same for all precisions, but for rounding."""
    drawn = torch.complex64 if output.is_complex() else torch.float32
    return torch.randn(output.shape, dtype=drawn, generator=generator).to(output.dtype).to(output.device)


ASPECTS: dict[str, Callable[[OpInfo, torch.dtype], None]] = {
    "forward": forward,
    "noncontiguous": noncontiguous,
    "inplace": inplace,
    "out": out,
    "gradients": gradients,
}


def failures(op: OpInfo, dtype: torch.dtype) -> dict[str, str]:
    """Aspect → what went wrong, for each aspect that failed."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, aspect in ASPECTS.items():
            try:
                aspect(op, dtype)
            except Exception as error:  # every kind of error is a finding
                found[name] = f"{type(error).__name__}: {error}"
    return found
