"""Loss scaling for float16 training on device npu."""

from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("npu", ...)`` for one or several optimizers that step together.

    Where gradients of one optimizer have overflowed, the steps of those that come after it are skipped as well, until
    ``update()``: models that train each other stay at the same step. ``torch.amp.GradScaler`` skips that one alone.

    Args:
        dynamic: whether the scale follows the gradients; False keeps ``init_scale``.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._dynamic = dynamic

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        found = {
            (id(state), device): value
            for state in self._per_optimizer_states.values()
            for device, value in state["found_inf_per_device"].items()
        }
        return super()._maybe_opt_step(optimizer, {"found_inf_per_device": found}, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adapts the scale after a step, or sets it to ``new_scale``. A static scale changes only by the latter."""
        if self._dynamic or not self._enabled or new_scale is not None:
            super().update(new_scale)
            return
        for state in self._per_optimizer_states.values():
            state.clear()
        self._per_optimizer_states.clear()
