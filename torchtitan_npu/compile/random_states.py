"""Random operators that activation checkpointing runs again in the backward, with the generator's state of the forward.

AOTAutograd wraps each in one of :data:`RANDOM_STATES`, which a plan calls like an operator. The state is on the CPU.
"""

from __future__ import annotations

import operator

from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx import GraphModule

RANDOM_STATES = (run_and_save_rng_state, run_with_rng_state)
STATE_BYTES = 16
"""Seed and offset. AOTAutograd takes the size of the CPU generator's state for it, as a symbol."""


def note_sizes_of_states(module: GraphModule) -> None:
    """Gives states the size that they have."""
    for node in module.graph.nodes:
        states = list(node.args[:1]) if node.target is run_with_rng_state else []
        if node.target is run_and_save_rng_state:
            states = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        for state in states:
            state.meta["val"] = state.meta["val"].new_empty(STATE_BYTES)
