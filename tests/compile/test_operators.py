"""Every elementwise operator and reduction that has a lowering, against the CPU, by OpInfo's samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tolerance import tolerance
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map

from torchtitan_npu.compile import fallbacks

NAMES = {
    "abs", "acos", "acosh", "add", "addcdiv", "addcmul", "all", "amax", "amin", "any", "asin", "asinh", "atan",
    "atan2", "atanh", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "copysign", "cos", "cosh", "div", "eq",
    "erf", "erfc", "exp", "exp2", "expm1", "floor", "floor_divide", "fmax", "fmin", "fmod", "full_like", "ge",
    "gt", "hypot", "isinf", "isnan", "le", "lerp", "lgamma", "log", "log10", "log1p", "log2", "logical_and",
    "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "mean", "minimum", "mul", "ne",
    "neg", "nextafter", "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.leaky_relu",
    "nn.functional.relu", "nn.functional.silu", "nn.functional.softplus", "nn.functional.hardswish",
    "ones_like", "pow", "prod", "reciprocal", "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign",
    "signbit", "sin", "sinh", "softmax", "log_softmax", "sqrt", "square", "std", "sub", "sum", "tan", "tanh",
    "true_divide", "trunc", "var", "var_mean", "where", "zeros_like",
}  # fmt: skip
OPERATORS = [op for op in op_db if op.name in NAMES]
SAMPLES = 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_operator(op: OpInfo, dtype: torch.dtype) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip(f"PyTorch has no {op.name} for {dtype}")
    for sample in list(op.sample_inputs("cpu", dtype))[:SAMPLES]:
        expected = op(sample.input, *sample.args, **sample.kwargs)
        arguments = tree_map(_on_npu, (sample.input, sample.args, sample.kwargs))
        torch._dynamo.reset()
        actual = torch.compile(_call(op), backend="npu")(*arguments)
        tree_map(_compare, actual, expected)
    assert not fallbacks()


def _call(op: OpInfo) -> Any:
    return lambda x, args, kwargs: op(x, *args, **kwargs)


def _on_npu(value: Any) -> Any:
    return value.npu() if isinstance(value, torch.Tensor) else value


def _compare(actual: Any, expected: Any) -> None:
    if not isinstance(expected, torch.Tensor):
        return
    assert actual.dtype == expected.dtype
    allowed = tolerance(actual.dtype, terms=256)
    torch.testing.assert_close(actual.cpu(), expected, rtol=allowed.relative, atol=allowed.absolute, equal_nan=True)
