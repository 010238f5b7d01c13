"""Transposes on each instruction set."""

from __future__ import annotations

import ctypes

import kernels_library as kernels
import pytest
import torch

pytestmark = pytest.mark.usefixtures("isa")


class Arguments(ctypes.Structure):
    _fields_ = [
        ("element_bytes", ctypes.c_int64),
        ("source", ctypes.c_void_p), ("source_stride", ctypes.c_int64),
        ("to", ctypes.c_void_p), ("to_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(64, 32), (394, 70), (33, 17), (31, 16), (2, 5), (1, 1), (0, 7), (7, 0)], ids=str)
def test_transpose_writes_the_transpose_and_nothing_else(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, columns = shape
    source = torch.randint(-30000, 30000, (rows, columns + 3), dtype=dtype)
    to = torch.full((columns, rows + 5), 7, dtype=dtype)
    kernels._library.transpose(
        ctypes.byref(
            Arguments(source.element_size(), source.data_ptr(), columns + 3, to.data_ptr(), rows + 5, rows, columns)
        )
    )
    assert torch.equal(to[:, :rows], source[:, :columns].t())
    assert bool((to[:, rows:] == 7).all())
