"""The process groups that operators which communicate are given by name, and what they send over them.

The name is HCCL's, ``group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torch_npu.composed.registry import refuse

__all__ = ["all_gather", "all_reduce", "all_to_all", "exchange", "group_named", "reduce_scatter"]


def group_named(operator: str, name: str, size: int | None = None) -> dist.ProcessGroup:
    """The group of this process that HCCL knows by ``name``; ``size``: how many ranks the caller says it has."""
    from torch_npu.distributed import ProcessGroupHCCL

    if not dist.is_initialized():
        refuse(operator, "a call after torch.distributed.init_process_group", f"group {name!r}")
    for group in list(dist.distributed_c10d._world.pg_map):
        if torch.device("npu") not in group._device_types:
            continue
        backend = group._get_backend(torch.device("npu"))
        # A group that has not met its other ranks has no name yet, and asking must not make it wait for them.
        if (
            not isinstance(backend, ProcessGroupHCCL)
            or backend.get_hccl_comm_name(group.rank(), init_comm=False) != name
        ):
            continue
        if size is not None and size != group.size():
            refuse(operator, f"the size of group {name!r}, {group.size()}", size)
        return group
    refuse(operator, "the name that get_hccl_comm_name of a group of back end hccl gives", repr(name))


def all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of the tensors of all ranks."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The rows of all ranks, one after the other."""
    rows = x.new_empty(group.size() * x.shape[0], *x.shape[1:])
    group._allgather_base(rows, x.contiguous()).wait()
    return rows


def reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's rows of the sum of the tensors of all ranks."""
    rows = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
    group._reduce_scatter_base(rows, x.contiguous(), dist.ReduceScatterOptions()).wait()
    return rows


def all_to_all(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """As many rows from each rank: the part of its tensor that is this rank's."""
    rows = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(rows, x.contiguous(), group=group)
    return rows


def exchange(x: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
    """``received[i]`` rows from rank i, which are sent ``sent[i]`` rows of x."""
    rows = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(rows, x.contiguous(), received, sent, group=group)
    return rows
