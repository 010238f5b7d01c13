"""Trains one model with several processes, each with its own share of the data.

python -m torch.distributed.run --nproc-per-node 2 examples/data_parallel.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()  # back end hccl, as tensors are on npu
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same model and the same data everywhere
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1)).npu())
    data = torch.randn(512, 16, device="npu")
    mine = data[rank::ranks]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    for _ in range(50):
        optimizer.zero_grad()
        loss = (model(mine) - mine.sum(1, keepdim=True)).square().mean()
        loss.backward()  # gradients are averaged over the processes meanwhile
        optimizer.step()

    dist.all_reduce(loss, dist.ReduceOp.AVG)
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = [torch.empty_like(parameters) for _ in range(ranks)]
    dist.all_gather(everyone, parameters)
    if rank == 0:
        same = all(torch.equal(parameters, other) for other in everyone)
        print(f"{ranks} processes on {torch.npu.get_device_name()}: loss {loss.item():.2f}, same parameters: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
