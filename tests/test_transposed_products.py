"""Products whose first operand lies column by column, as the gradient of a weight has it."""

from __future__ import annotations

import pytest
import torch

from tests.tolerance import tolerance

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(300, 394, 70), (257, 301, 33), (3, 5, 2)])
def test_products_of_a_transpose(rows: int, inner: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(inner, rows).to(dtype), torch.randn(inner, columns).to(dtype)
    wide, bias = torch.randn(inner, rows + 3).to(dtype), torch.randn(columns).to(dtype)
    limits = tolerance(dtype, terms=inner)
    scale = inner**0.5
    there = [t.npu() for t in (a, b, wide, bias)]
    for ours, exact in (
        (there[0].t() @ there[1], a.double().t() @ b.double()),
        (there[2][:, :rows].t() @ there[1], wide[:, :rows].double().t() @ b.double()),
        (torch.addmm(there[3], there[0].t(), there[1]), bias.double() + a.double().t() @ b.double()),
    ):
        torch.testing.assert_close(
            ours.cpu().double(), exact, rtol=limits.relative, atol=limits.absolute + limits.relative * scale
        )
