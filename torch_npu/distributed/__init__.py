"""The back end ``hccl`` of ``torch.distributed``: collectives of npu tensors.

``import torch_npu`` registers it as the back end of the device, so that ``torch.distributed.init_process_group()``,
``DistributedDataParallel``, ``fully_shard`` and ``DTensor`` work on npu without a change.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from torch_npu import _C
from torch_npu.distributed import _default_backend

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions

__all__ = ["ProcessGroupHCCL", "is_hccl_available", "register"]


def is_hccl_available() -> bool:
    """Whether this build of PyTorch has ``torch.distributed``, and so the back end."""
    return dist.is_available()


def _create(group: _DistributedBackendOptions, options: Any) -> Backend:
    if options is None:
        options = ProcessGroupHCCL.Options()
    elif not isinstance(options, ProcessGroupHCCL.Options):
        raise TypeError(
            f"pg_options of back end hccl are torch_npu.distributed.ProcessGroupHCCL.Options, got {type(options)}"
        )
    options._timeout = group.timeout
    options.global_ranks_in_group = group.global_ranks_in_group
    options.group_name = group.group_id
    return ProcessGroupHCCL(group.store, group.group_rank, group.group_size, options)


def register() -> None:
    """Makes ``hccl`` the back end of device npu in ``torch.distributed``."""
    if "HCCL" in dist.Backend._plugins:  # somebody else's, such as a test's: it stays
        warnings.warn("torch.distributed has a back end hccl already, which is kept", RuntimeWarning, stacklevel=3)
        return
    dist.Backend.register_backend("hccl", _create, extended_api=True, devices=["npu"])
    _default_backend.install()


if dist.is_available():
    ProcessGroupHCCL = _C._distributed_c10d.ProcessGroupHCCL
