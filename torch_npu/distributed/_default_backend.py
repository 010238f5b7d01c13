"""Which back end stands for a group that has several, or whose back end was not named.

PyTorch 2.13 asks such a group for GLOO where its back end comes from a plug-in: it compares the plug-in's name in
capitals with one in small letters, and with no name at all does not look. ``DistributedDataParallel`` then ends with
"Could not find backend type". There is no hook, so the function that makes groups is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist


def _npu_backend_is_hccl(group: dist.ProcessGroup) -> bool:
    return any(device.type == "npu" and group._get_backend(device).name() == "hccl" for device in group._device_types)


def _with_default(make_group: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make_group)
    def make(*args: Any, **kwargs: Any) -> Any:
        group, store = make_group(*args, **kwargs)
        if isinstance(group, dist.ProcessGroup) and _npu_backend_is_hccl(group):
            group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        return group, store

    return make


def install() -> None:
    """From now on a group that communicates on npu by hccl has hccl as its default back end."""
    module = dist.distributed_c10d
    module._new_process_group_helper = _with_default(module._new_process_group_helper)
