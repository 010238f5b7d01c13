"""What each of two ranks runs: the cases named on the command line, whose outcomes it prints as one line of JSON.

Every rank knows the inputs of all ranks, so that what is expected is computed without communication.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from tolerance import assert_close

CASES: dict[str, Callable[[int, int], None]] = {}
N = 2


def case(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """A case gets its rank and the number of ranks."""
    CASES[function.__name__] = function
    return function


def of(rank: int, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The input of a rank, on the CPU."""
    values = torch.randn(sizes, generator=torch.Generator().manual_seed(rank + 1), dtype=torch.float64) * 8
    if dtype == torch.bool:
        return values > 0
    return values.to(dtype)


def raises(kind: type[Exception], words: str, function: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        function()


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


@case
def all_reduce_adds_in_every_dtype(rank: int, n: int) -> None:
    for dtype in DTYPES:
        x = of(rank, 7, 5, dtype=dtype).npu()
        dist.all_reduce(x)
        assert_close(x, sum(of(i, 7, 5, dtype=dtype).to(torch.float64) for i in range(n)).to(dtype), terms=n)
    x = torch.complex(of(rank, 3), of(rank, 3) + 1).npu()
    dist.all_reduce(x)
    assert_close(x, sum(torch.complex(of(i, 3), of(i, 3) + 1) for i in range(n)), terms=n)


@case
def all_reduce_by_every_operation(rank: int, n: int) -> None:
    stacked = torch.stack([of(i, 6) for i in range(n)])
    for op, expected in [
        (dist.ReduceOp.PRODUCT, stacked.prod(0)),
        (dist.ReduceOp.MIN, stacked.amin(0)),
        (dist.ReduceOp.MAX, stacked.amax(0)),
        (dist.ReduceOp.AVG, stacked.mean(0)),
    ]:
        x = of(rank, 6).npu()
        dist.all_reduce(x, op)
        assert_close(x, expected, terms=n)
    whole = torch.stack([of(i, 6, dtype=torch.int32) for i in range(n)])
    x = of(rank, 6, dtype=torch.int32).npu()
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert torch.equal(x.cpu(), whole.sum(0).div(n, rounding_mode="trunc").int())
    truths = torch.stack([of(i, 9, dtype=torch.bool) for i in range(n)])
    for op, expected in [
        (dist.ReduceOp.SUM, truths.any(0)),
        (dist.ReduceOp.BOR, truths.any(0)),
        (dist.ReduceOp.PRODUCT, truths.all(0)),
        (dist.ReduceOp.BAND, truths.all(0)),
    ]:
        x = of(rank, 9, dtype=torch.bool).npu()
        dist.all_reduce(x, op)
        assert torch.equal(x.cpu(), expected)


@case
def what_cannot_be_reduced_is_refused(rank: int, n: int) -> None:
    x = torch.ones(3, device="npu")
    raises(TypeError, "ReduceOp.BXOR", lambda: dist.all_reduce(x.int(), dist.ReduceOp.BXOR))
    raises(TypeError, "cannot reduce", lambda: dist.all_reduce(x.to(torch.float8_e4m3fn)))
    raises(ValueError, "contiguous", lambda: dist.all_reduce(torch.ones(3, 4, device="npu")[:, ::2]))
    raises(ValueError, "contiguous", lambda: dist.all_gather_into_tensor(x.new_empty(6, 2), x.new_ones(2, 3).T))
    raises(ValueError, "does not hold", lambda: dist.all_gather_into_tensor(x.new_empty(7), x))
    raises(ValueError, "root is rank", lambda: dist.broadcast(x, group_src=5))


@case
def numbers_that_are_not_finite_stay(rank: int, n: int) -> None:
    x = torch.tensor([float("nan"), float("inf"), 1.0, -0.0]).npu() if rank == 0 else torch.zeros(4).npu()
    dist.all_reduce(x)
    assert x.isnan().tolist() == [True, False, False, False]
    assert x[1:].tolist() == [float("inf"), 1.0, 0.0]


@case
def empty_tensors(rank: int, n: int) -> None:
    x = torch.empty(0, 3, device="npu")
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather_into_tensor(x.new_empty(0, 3), x)
    parts = [x.new_empty(0, 3) for _ in range(n)]
    dist.all_gather(parts, x)


@case
def tensors_without_gaps_in_another_order_of_dimensions(rank: int, n: int) -> None:
    x = of(rank, 2, 3, 4, 5).npu().contiguous(memory_format=torch.channels_last)
    dist.all_reduce(x)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert_close(x, sum(of(i, 2, 3, 4, 5) for i in range(n)), terms=n)


@case
def broadcast_and_reduce(rank: int, n: int) -> None:
    for dtype in [*DTYPES, torch.bool, torch.float8_e5m2, torch.complex64]:
        real = torch.float32 if dtype.is_complex else dtype
        x = of(rank, 3, 7, dtype=real).to(dtype).npu()
        dist.broadcast(x, 1)
        expected = of(1, 3, 7, dtype=real).to(dtype)
        assert torch.equal(x.cpu().view(torch.uint8), expected.view(torch.uint8)), dtype
    for root in range(n):
        x = of(rank, 11).npu()
        dist.reduce(x, root, dist.ReduceOp.AVG)
        if rank == root:
            assert_close(x, torch.stack([of(i, 11) for i in range(n)]).mean(0), terms=n)


@case
def gathering(rank: int, n: int) -> None:
    expected = [of(i, 3, 2) for i in range(n)]
    parts = [torch.empty(3, 2, device="npu") for _ in range(n)]
    dist.all_gather(parts, of(rank, 3, 2).npu())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(parts, expected, strict=True))
    whole = torch.empty(3 * n, 2, device="npu")
    dist.all_gather_into_tensor(whole, of(rank, 3, 2).npu())
    assert torch.equal(whole.cpu(), torch.cat(expected))
    uneven = [torch.empty(2 + i, device="npu") for i in range(n)]
    dist.all_gather(uneven, of(rank, 2 + rank).npu())
    assert all(torch.equal(a.cpu(), of(i, 2 + i)) for i, a in enumerate(uneven))
    strided = [torch.empty(2, 3, device="npu").T for _ in range(n)]
    dist.all_gather(strided, of(rank, 3, 2).npu())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(strided, expected, strict=True))
    parts = [torch.empty(3, 2, device="npu") for _ in range(n)] if rank == 1 else None
    dist.gather(of(rank, 3, 2).npu(), parts, dst=1)
    if parts is not None:
        assert all(torch.equal(a.cpu(), b) for a, b in zip(parts, expected, strict=True))


@case
def scattering(rank: int, n: int) -> None:
    x = torch.empty(4, device="npu")
    dist.scatter(x, [of(10 + i, 4).npu() for i in range(n)] if rank == 0 else None, src=0)
    assert torch.equal(x.cpu(), of(10 + rank, 4))
    inputs = [[of(10 * i + j, 4) for j in range(n)] for i in range(n)]  # of rank i for rank j
    dist.reduce_scatter(x, [t.npu() for t in inputs[rank]])
    assert_close(x, sum(inputs[i][rank] for i in range(n)), terms=n)
    dist.reduce_scatter_tensor(x, torch.cat(inputs[rank]).npu(), dist.ReduceOp.AVG)
    assert_close(x, sum(inputs[i][rank] for i in range(n)) / n, terms=n)
    mine = torch.empty(2 + rank, device="npu")
    dist.reduce_scatter(mine, [of(i, 2 + i).npu() for i in range(n)], dist.ReduceOp.MAX)
    assert torch.equal(mine.cpu(), of(rank, 2 + rank))


@case
def all_to_all(rank: int, n: int) -> None:
    inputs = [of(i, 2 * n, 3) for i in range(n)]
    x = torch.empty(2 * n, 3, device="npu")
    dist.all_to_all_single(x, inputs[rank].npu())
    assert torch.equal(x.cpu(), torch.cat([t[2 * rank : 2 * rank + 2] for t in inputs]))
    # Rank i gives 1 + i rows to rank 0 and the rest to rank 1.
    split = [1 + rank, 2 * n - 1 - rank]
    received = [1 + i if rank == 0 else 2 * n - 1 - i for i in range(n)]
    x = torch.empty(sum(received), 3, device="npu")
    dist.all_to_all_single(x, inputs[rank].npu(), received, split)
    expected = [t[: 1 + i] if rank == 0 else t[1 + i :] for i, t in enumerate(inputs)]
    assert torch.equal(x.cpu(), torch.cat(expected))
    outputs = [torch.empty(r, 3, device="npu") for r in received]
    dist.all_to_all(outputs, list(inputs[rank].npu().split(split)))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(outputs, expected, strict=True))
    raises(ValueError, "with the sum", lambda: dist.all_to_all_single(x, inputs[rank].npu(), received, [1, 1]))


@case
def messages(rank: int, n: int) -> None:
    other = 1 - rank
    x = torch.empty(4, device="npu")
    if rank == 0:
        dist.send(of(0, 4).npu(), 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(of(1, 4).npu(), 0)
    assert torch.equal(x.cpu(), of(other, 4))
    y = torch.empty(5, device="npu")
    operations = [dist.P2POp(dist.isend, of(rank, 5).npu(), other), dist.P2POp(dist.irecv, y, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(y.cpu(), of(other, 5))
    raises(ValueError, "cannot send to", lambda: dist.distributed_c10d._get_default_group().send([x], rank, 0))


@case
def coalesced(rank: int, n: int) -> None:
    tensors = [of(rank, size).npu() for size in (3, 8)]
    with dist._coalescing_manager(device=torch.device("npu", rank)):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, size in zip(tensors, (3, 8), strict=True):
        assert_close(tensor, sum(of(i, size) for i in range(n)), terms=n)
    outputs = [torch.empty(n * size, device="npu") for size in (3, 8)]
    with dist._coalescing_manager(device=torch.device("npu", rank), async_ops=True) as manager:
        for output, size in zip(outputs, (3, 8), strict=True):
            dist.all_gather_into_tensor(output, of(rank, size).npu())
    manager.wait()
    for output, size in zip(outputs, (3, 8), strict=True):
        assert torch.equal(output.cpu(), torch.cat([of(i, size) for i in range(n)]))


@case
def work_and_futures(rank: int, n: int) -> None:
    x = of(rank, 1000).npu()
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda f: f.value()[0] * 2)
    doubled = future.wait()
    expected = sum(of(i, 1000) for i in range(n))
    assert_close(doubled, 2 * expected, terms=n)
    assert work.wait()
    assert work.is_completed()
    assert work.result()[0].data_ptr() == x.data_ptr()
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        y = of(rank, 1000).npu()
        dist.all_reduce(y)
        z = y + 1
    stream.synchronize()
    assert_close(z, expected + 1, terms=n)
    for _ in range(50):  # dropped without a wait: their memory must not be given to others meanwhile
        dist.all_reduce(of(rank, 1000).npu(), async_op=True)
        torch.full((1000,), 7.0, device="npu")
    torch.npu.synchronize()


@case
def objects(rank: int, n: int) -> None:
    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": rank, "list": [1, 2, rank]})
    assert gathered == [{"rank": i, "list": [1, 2, i]} for i in range(n)]
    shared = ["hello", 3] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, 0)
    assert shared == ["hello", 3]
    dist.barrier()
    dist.barrier(device_ids=[rank])


@case
def groups(rank: int, n: int) -> None:
    both, only_first = dist.new_group([0, 1]), dist.new_group([0])
    x = of(rank, 3).npu()
    dist.all_reduce(x, group=both)
    assert_close(x, sum(of(i, 3) for i in range(n)), terms=n)
    if rank == 0:
        y = of(0, 3).npu()
        dist.all_reduce(y, group=only_first)
        assert torch.equal(y.cpu(), of(0, 3))
    name = both._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    names = [None] * n
    dist.all_gather_object(names, name)
    assert name
    assert names == [name] * n
    assert both._get_backend(torch.device("npu")).get_hccl_comm_name(rank, init_comm=False) == name
    if not os.environ.get("BOUND"):  # groups that are bound to a device meet when they are made
        unmet = dist.new_group([0, 1])
        assert unmet._get_backend(torch.device("npu")).get_hccl_comm_name(rank, init_comm=False) == ""
    dist.destroy_process_group(both)


@case
def options(rank: int, n: int) -> None:
    from torch_npu.distributed import ProcessGroupHCCL

    asked = ProcessGroupHCCL.Options()
    asked.is_high_priority_stream = True
    asked.hccl_config = {"hccl_buffer_size": 32}
    group = dist.new_group([0, 1], pg_options=asked)
    x = of(rank, 3).npu()
    dist.all_reduce(x, group=group)
    assert_close(x, sum(of(i, 3) for i in range(n)), terms=n)
    asked = ProcessGroupHCCL.Options()
    asked.hccl_config = {"hccl_size": 32}
    group = dist.new_group([0, 1], pg_options=asked)
    raises(ValueError, "hccl_buffer_size", lambda: dist.all_reduce(x, group=group))


def recorded(function: Callable[[], object]) -> None:
    with torch.npu.graph(torch.npu.NPUGraph()):
        function()


@case
def collectives_in_graphs(rank: int, n: int) -> None:
    x, y = torch.zeros(6, device="npu"), torch.empty(6, device="npu")
    fresh = dist.new_group([0, 1])
    raises(RuntimeError, "ranks have yet to meet", lambda: recorded(lambda: dist.all_reduce(y, group=fresh)))
    dist.all_reduce(y)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        z = x * 2
        dist.all_reduce(z)
        y.copy_(z + 1)
    for turn in range(3):
        x.copy_(of(rank + turn, 6))
        graph.replay()
        assert_close(y, 2 * sum(of(i + turn, 6) for i in range(n)) + 1, terms=2 * n)


@case
def functional_collectives_under_compile(rank: int, n: int) -> None:
    from torch.distributed import _functional_collectives as collectives

    def function(x: Tensor) -> Tensor:
        return collectives.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    x = of(rank, 16).npu()
    expected = 2 * sum(of(i, 16) for i in range(n)) + 1
    assert_close(function(x), expected, terms=2 * n)
    assert_close(torch.compile(function, backend="npu")(x), expected, terms=2 * n)


@case
def groups_split_off_another(rank: int, n: int) -> None:
    if dist.group.WORLD.bound_device_id is None:
        return  # PyTorch splits groups that are bound to a device
    dist.split_group(split_ranks=[[0]])  # the other rank is in none
    both, only_first = dist.split_group(split_ranks=[[0, 1]]), dist.split_group(split_ranks=[[0], [1]])
    x, y = of(rank, 3).npu(), of(rank, 3).npu()
    dist.all_reduce(x, group=both)
    assert_close(x, sum(of(i, 3) for i in range(n)), terms=n)
    dist.all_reduce(y, group=only_first)
    assert torch.equal(y.cpu(), of(rank, 3))
    mesh = dist.init_device_mesh("npu", (n, 1), mesh_dim_names=("data", "model"))
    for name, expected in (("data", sum(of(i, 3) for i in range(n))), ("model", of(rank, 3))):
        z = of(rank, 3).npu()
        dist.all_reduce(z, group=mesh[name].get_group())
        assert_close(z, expected, terms=n)


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )


def trained(model: torch.nn.Module, inputs: list[Tensor], rate: float = 0.1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x in inputs:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def plain() -> torch.nn.Module:
    """Without batch norm, whose statistics each rank has its own."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


@case
def data_parallel_trains_as_one_process_with_all_data(rank: int, n: int) -> None:
    inputs = [[of(10 * step + i, 4, 8) for i in range(n)] for step in range(4)]
    alone = plain().double()
    trained(alone, [torch.cat(parts).double() for parts in inputs])
    model = torch.nn.parallel.DistributedDataParallel(plain().npu(), bucket_cap_mb=1)
    trained(model, [parts[rank].npu() for parts in inputs])
    if os.environ.get("CANN_HOST_ASYNC") != "1":  # there the times may not be known yet
        assert model._get_ddp_logging_data()["forward_compute_time"] > 0
    for actual, expected in zip(model.module.parameters(), alone.parameters(), strict=True):
        assert_close(actual, expected, terms=256)


@case
def data_parallel_training_in_graphs(rank: int, n: int) -> None:
    import torch_npu

    inputs = [[of(10 * step + i, 4, 8) for i in range(n)] for step in range(5)]
    alone = plain().double()
    trained(alone, [torch.cat(parts).double() for parts in inputs], rate=1e-3)
    ways: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
        "itself": lambda model: model,
        "compiled": lambda model: torch.compile(model, backend="npu"),
        "inside another": torch.nn.Sequential,
    }
    for graphed, way in [(True, "itself"), (False, "compiled"), (True, "compiled"), (True, "inside another")]:
        model = torch.nn.parallel.DistributedDataParallel(plain().npu())
        with torch_npu.enable_graph() if graphed else contextlib.nullcontext():
            trained(ways[way](model), [parts[rank].npu() for parts in inputs], rate=1e-3)
        for actual, expected in zip(model.module.parameters(), alone.parameters(), strict=True):
            assert_close(actual, expected, terms=256)
        if graphed and way == "itself":
            assert [(row.module, row.replays) for row in torch_npu.graph_report()] == [("Sequential", 4)]


@case
def synchronized_batch_norm(rank: int, n: int) -> None:
    inputs = [of(i, 6, 8) for i in range(n)]
    alone = network().double()
    expected = alone(torch.cat(inputs).double())
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network()).npu()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    actual = parallel(inputs[rank].npu())
    assert_close(actual, expected[6 * rank : 6 * rank + 6], terms=256)
    expected.square().mean().backward()
    actual.square().mean().backward()
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(a.grad, b.grad, terms=1024)


@case
def sharded_trains_as_one_process_with_all_data(rank: int, n: int) -> None:
    from torch.distributed.fsdp import fully_shard

    inputs = [[of(10 * step + i, 4, 8) for i in range(n)] for step in range(4)]
    alone = plain().double()
    trained(alone, [torch.cat(parts).double() for parts in inputs])
    model = plain().npu()
    mesh = dist.init_device_mesh("npu", (n,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    trained(model, [parts[rank].npu() for parts in inputs])
    for actual, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert_close(actual.full_tensor(), expected, terms=256)


@case
def tensors_spread_over_a_mesh(rank: int, n: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("npu", (n,))
    a, b = of(0, 6, 8), of(1, 8, 4)
    left, right = distribute_tensor(a.npu(), mesh, [Shard(1)]), distribute_tensor(b.npu(), mesh, [Shard(0)])
    product = (left @ right).redistribute(mesh, [Replicate()])
    assert_close(product.to_local(), a.double() @ b.double(), terms=64)
    assert_close(left.redistribute(mesh, [Shard(0)]).full_tensor(), a)


def main() -> None:
    import torch_npu  # noqa: F401

    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    bound = torch.device("npu", rank) if os.environ.get("BOUND") else None
    dist.init_process_group(os.environ.get("BACKEND"), device_id=bound)
    outcomes = {}
    for name in sys.argv[1:]:
        try:
            CASES[name](rank, dist.get_world_size())
            outcomes[name] = ""
        except Exception:  # a failure of one case is its outcome
            outcomes[name] = traceback.format_exc()
            break  # the other rank may be elsewhere: nothing after this can be trusted
    print("outcomes: " + json.dumps(outcomes), flush=True)
    if all(text == "" for text in outcomes.values()):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
