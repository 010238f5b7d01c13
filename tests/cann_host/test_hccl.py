"""Collectives between processes, against numpy."""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
from hccl_ranks import BF16, INT32, MAX, MIN, PARAMETER, PROD, REMOTE, SUM, TYPES, HcclError, Rank, on_ranks, root_info

import cann_host

pytestmark = pytest.mark.slow  # processes of their own

# Nothing, one element, and more than one round of an exchange (1 MiB) with a tail.
COUNTS = (0, 1, 5, 700_001)
u32 = ctypes.c_uint32
DTYPES = (np.float16, np.float32, np.int32, np.int64)


def data(rank: int, count: int, dtype: type) -> np.ndarray:
    return (np.arange(count) % 7 + rank + 1).astype(dtype)


def equal(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual, expected)


def each_case(r: Rank):
    for dtype in DTYPES:
        for count in COUNTS:
            yield count, TYPES[np.dtype(dtype)], [data(rank, count, dtype) for rank in range(r.ranks)]


@on_ranks(3)
def test_all_reduce_and_reduce(r: Rank) -> None:
    for count, dtype, all_data in each_case(r):
        for op, expected in (
            (SUM, sum(all_data)),
            (PROD, np.prod(np.stack(all_data), axis=0, dtype=all_data[0].dtype)),
            (MAX, np.stack(all_data).max(axis=0)),
            (MIN, np.stack(all_data).min(axis=0)),
        ):
            out = np.empty_like(all_data[0])
            r.collective("HcclAllReduce", all_data[r.rank], out, count, dtype, op)
            equal(out, expected)
        in_place = all_data[r.rank].copy()
        r.collective("HcclAllReduce", in_place, in_place, count, dtype, SUM)
        equal(in_place, sum(all_data))
        out = np.zeros_like(in_place)
        r.collective("HcclReduce", all_data[r.rank], out, count, dtype, SUM, 1)
        equal(out, sum(all_data) if r.rank == 1 else np.zeros_like(out))


@on_ranks(2)
def test_sixteen_bit_floats_are_rounded_once(r: Rank) -> None:
    """Against float32, with denormals, the largest numbers, infinities and NaN."""
    special = np.array([6e-8, -6e-8, 6.1e-5, 65504, 65519, np.inf, -np.inf, np.nan, 0.0, 1 / 3], np.float32)
    mine = np.concatenate([special, np.linspace(-3, 3, 1000, dtype=np.float32)]).astype(np.float16)
    out = np.empty_like(mine)
    r.collective("HcclAllReduce", mine, out, mine.size, TYPES[np.dtype(np.float16)], SUM)
    with np.errstate(over="ignore"):
        equal(out, (mine.astype(np.float32) * 2).astype(np.float16))
    bits = (np.arange(0, 2**16, 37, dtype=np.uint32) << 16).view(np.float32)  # every bfloat16 but one in 37
    mine16 = (bits.view(np.uint32) >> 16).astype(np.uint16)
    out16 = np.empty_like(mine16)
    r.collective("HcclAllReduce", mine16, out16, mine16.size, BF16, MAX)
    same = (out16.astype(np.uint32) << 16).view(np.float32)
    equal(same, bits)


@on_ranks(3)
def test_gather_scatter_broadcast(r: Rank) -> None:
    for count, dtype, all_data in each_case(r):
        mine, everything = all_data[r.rank], np.concatenate(all_data)
        out = np.empty_like(everything)
        r.collective("HcclAllGather", mine, out, count, dtype)
        equal(out, everything)
        part = np.empty_like(mine)
        r.collective("HcclReduceScatter", everything, part, count, dtype, SUM)
        equal(part, mine * r.ranks)
        r.collective("HcclScatter", everything, part, count, dtype, 2)
        equal(part, mine)
        r.collective("HcclBroadcast", mine, count, dtype, 1)
        equal(mine, all_data[1])


@on_ranks(2)
def test_pieces_of_unequal_length(r: Rank) -> None:
    sizes = np.array([300_000, 2], np.uint64)
    begins = np.array([0, 300_000], np.uint64)
    mine = data(r.rank, int(sizes[r.rank]), np.int32)
    whole = np.concatenate([data(0, 300_000, np.int32), data(1, 2, np.int32)])
    out = np.empty_like(whole)
    r.collective("HcclAllGatherV", mine, mine.size, out, sizes, begins, INT32)
    equal(out, whole)
    part = np.empty_like(mine)
    r.collective("HcclReduceScatterV", whole, sizes, begins, part, part.size, INT32, SUM)
    equal(part, mine * 2)
    send = np.array([[1, 400_000], [3, 2]], np.uint64)  # from row to column
    receive = send[:, r.rank].copy()
    before = lambda n: np.array([0, n[0]], np.uint64)  # noqa: E731
    source = np.arange(send[r.rank].sum(), dtype=np.int32) + 1_000_000 * r.rank
    out = np.empty(int(receive.sum()), np.int32)
    counts = send[r.rank].copy()
    r.collective("HcclAlltoAllV", source, counts, before(counts), INT32, out, receive, before(receive), INT32)
    first = np.arange(send[0].sum(), dtype=np.int32)
    second = np.arange(send[1].sum(), dtype=np.int32) + 1_000_000
    expected = (first[:1], second[:3]) if r.rank == 0 else (first[1:], second[3:])
    equal(out, np.concatenate(expected))


@on_ranks(3)
def test_messages(r: Rank) -> None:
    """Every rank sends to the next before it receives, more than any buffer holds, and then around in a batch."""
    after, before = (r.rank + 1) % 3, (r.rank - 1) % 3
    for count, dtype, all_data in each_case(r):
        out = np.empty_like(all_data[r.rank])
        for _ in range(3):
            r.collective("HcclSend", all_data[r.rank], count, dtype, after)
        for _ in range(3):
            r.collective("HcclRecv", out, count, dtype, before)
            equal(out, all_data[before])
        r.call("HcclGroupStart")
        r.collective("HcclRecv", out, count, dtype, after)
        r.collective("HcclSend", all_data[r.rank], count, dtype, before)
        r.call("HcclGroupEnd")
        equal(out, all_data[after])


@on_ranks(2)
def test_a_message_outlives_its_sender_until_it_is_received(r: Rank) -> None:
    value = np.array([41], np.int32)
    if r.rank == 0:
        r.collective("HcclSend", value, 1, INT32, 1)
        value[0] = 0
        r.destroy()
    else:
        r.collective("HcclRecv", value, 1, INT32, 0)
        assert value[0] == 41


@on_ranks(2, CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="2000")
def test_collectives_are_tasks_of_a_stream(r: Rank) -> None:
    mine, out = data(r.rank, 1000, np.float32), np.zeros(1000, np.float32)
    r.collective("HcclAllReduce", mine, out, 1000, TYPES[out.dtype], SUM)
    assert ctypes.CDLL(str(cann_host.library())).aclrtSynchronizeDevice() == 0
    equal(out, data(0, 1000, np.float32) + data(1, 1000, np.float32))


@on_ranks(2)
def test_ranks_that_disagree_are_told_both_calls(r: Rank) -> None:
    value = np.zeros(4, np.int32)
    mine = ("HcclAllReduce", value, value, 4, INT32, SUM) if r.rank == 0 else ("HcclBroadcast", value, 3, INT32, 0)
    message = (
        "called it with 16 bytes, rank 1 called HcclBroadcast with 12 bytes|another rank failed",
        "called it with 12 bytes, rank 0 called HcclAllReduce with 16 bytes|another rank failed",
    )
    with pytest.raises(HcclError, match=message[r.rank]):
        r.collective(*mine)


@on_ranks(2)
def test_a_rank_that_ended_is_an_error_and_no_hang(r: Rank) -> None:
    if r.rank == 1:
        os._exit(0)
    value = np.zeros(4, np.int32)
    with pytest.raises(HcclError, match=r"rank 1 \(process \d+\) has ended") as raised:
        r.collective("HcclAllReduce", value, value, 4, INT32, SUM)
    assert raised.value.code == REMOTE
    error = ctypes.c_int32()
    r.call("HcclGetCommAsyncError", r.comm, ctypes.byref(error))
    assert error.value == REMOTE


@on_ranks(1)
def test_wrong_arguments_are_refused(r: Rank) -> None:
    value = np.zeros(4, np.int32)
    for name, arguments, message in (
        ("HcclAllReduce", (0, value, 4, INT32, SUM), "sendBuf is a null pointer"),
        ("HcclAllReduce", (value, value, 4, 99, SUM), "dataType=99 is not a type"),
        ("HcclAllReduce", (value, value, 4, 15, SUM), "dataType=15 cannot be reduced"),
        ("HcclAllReduce", (value, value, 4, INT32, 7), "op=7 is not a reduction"),
        ("HcclAllReduce", (value, value, 2**60, INT32, SUM), "is too large"),
        ("HcclBroadcast", (value, 4, INT32, 3), "root=3: there are 1 ranks"),
        ("HcclSend", (value, 4, INT32, 1), "remoteRank=1: there are 1 ranks"),
        ("HcclAlltoAllV", (value, 0, 0, INT32, value, 0, 0, INT32), "counts is a null pointer"),
    ):
        with pytest.raises(HcclError, match=f"{name}: .*{message}"):
            r.collective(name, *arguments)
    with pytest.raises(HcclError, match="no HcclGroupStart"):
        r.call("HcclGroupEnd")
    comm = ctypes.c_void_p()
    for ranks, rank, message in ((0, 0, "nRanks=0"), (2, 2, "rank=2: there are 2 ranks"), (10**6, 0, "nRanks=1000000")):
        with pytest.raises(HcclError, match=message) as raised:
            r.call(
                "HcclCommInitRootInfo", ctypes.c_uint32(ranks), root_info(), ctypes.c_uint32(rank), ctypes.byref(comm)
            )
        assert raised.value.code == PARAMETER
    with pytest.raises(HcclError, match="was not made by HcclGetRootInfo"):
        r.call("HcclCommInitRootInfo", u32(1), bytes(4108), u32(0), ctypes.byref(comm))
    r.destroy()
    with pytest.raises(HcclError, match="was destroyed"):
        r.collective("HcclBarrier")


@on_ranks(1, HCCL_CONNECT_TIMEOUT="1")
def test_ranks_that_do_not_come_are_waited_for_so_long(r: Rank) -> None:
    comm = ctypes.c_void_p()
    with pytest.raises(HcclError, match="waited 1 s for the other ranks to join"):
        r.call("HcclCommInitRootInfo", u32(2), root_info(), u32(0), ctypes.byref(comm))


@on_ranks(1)
def test_names_and_sizes(r: Rank) -> None:
    number, name = ctypes.c_uint32(9), ctypes.create_string_buffer(128)
    r.call("HcclGetRankSize", r.comm, ctypes.byref(number))
    assert number.value == 1
    r.call("HcclGetRankId", r.comm, ctypes.byref(number))
    assert number.value == 0
    r.call("HcclGetCommName", r.comm, name)
    assert name.value.startswith(b"hccl_")
