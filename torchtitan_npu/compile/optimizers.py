"""``torch.compile(optimizer.step)``: counts of steps lie on the npu, like the parameters."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.optimizer import OptimizerVariable

_set_capturable = OptimizerVariable._set_capturable


def _set_capturable_on_npu(self: OptimizerVariable, tx: Any) -> None:
    """Makes new optimizers of parameters on npu ``capturable``, as Dynamo does for CUDA and XPU.

    With the count of steps on the CPU each step would begin there, and could not be one launch.
    """
    for group in self.value.param_groups:
        parameters = group["params"]
        if "capturable" in group and all(p.device.type == "npu" and p not in self.value.state for p in parameters):
            group["capturable"] = True
    _set_capturable(self, tx)


def make_capturable() -> None:
    """Lets Dynamo do so from now on."""
    OptimizerVariable._set_capturable = _set_capturable_on_npu  # type: ignore[method-assign]
