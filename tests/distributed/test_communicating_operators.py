"""Operators of torch.ops.npu that communicate (torch_npu/composed/collective_*.py, expert_*.py) in two processes."""

from __future__ import annotations

from pathlib import Path

import expert_operators
import operators
import pytest
from test_process_group import check, run_ranks

PROGRAM = Path(__file__).with_name("expert_operators.py")  # imports the others
NAMES = [*operators.OPERATORS, *expert_operators.OPERATORS]


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    return run_ranks(NAMES, PROGRAM)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    check(outcomes, name)


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
def test_three_ranks_and_delayed_streams() -> None:
    names = ["tokens_go_to_experts_and_back", "shared_experts_have_ranks_of_their_own", "products_of_exchanged_rows"]
    found = run_ranks(names, PROGRAM, 3, CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="200")
    for name in names:
        check(found, name)
