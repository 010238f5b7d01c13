"""Steps between the tokens that a language model makes."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse


@composed(
    "npu_advance_step_flashattn(Tensor(a!) input_tokens, Tensor sampled_token_ids, Tensor(b!) input_positions, "
    "Tensor(c!) seq_lens, Tensor(d!) slot_mapping, Tensor block_tables, int num_seqs, int num_queries, "
    "int block_size, *, Tensor? spec_token=None, Tensor? accepted_num=None) -> ()"
)
def advance_step_flashattn(
    input_tokens: Tensor,
    sampled_token_ids: Tensor,
    input_positions: Tensor,
    seq_lens: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    num_seqs: int,
    num_queries: int,
    block_size: int,
    *,
    spec_token: Tensor | None = None,
    accepted_num: Tensor | None = None,
) -> None:
    """Writes the inputs of the next step after sampled_token_ids [num_queries, 1]: tokens, positions, lengths, slots.

    The slot of a position is block_tables[sequence, position // block_size] * block_size + position % block_size, as
    vLLM's function of this name has it; of sequences behind num_queries tokens and positions become 0, slots -1.

    With spec_token [num_seqs, S], guesses, and accepted_num [num_seqs], a sequence has 1 + S tokens: the last one of
    sampled_token_ids [num_seqs, 1 + S] before a -1, and the guesses. Positions grow by accepted_num + 1.
    """
    name = "npu_advance_step_flashattn"
    if (spec_token is None) != (accepted_num is None) or block_size < 1 or not 0 < num_queries <= num_seqs:
        refuse(name, "spec_token with accepted_num, num_queries up to num_seqs", [num_queries, num_seqs, block_size])
    each = 1 if spec_token is None else 1 + spec_token.shape[1]
    shapes = [tuple(t.shape) for t in (input_tokens, input_positions, seq_lens, slot_mapping)]
    if shapes != [(num_seqs * each,)] * 4 or block_tables.dim() != 2 or block_tables.shape[0] != num_seqs:
        refuse(name, f"vectors of {num_seqs * each} and block_tables [{num_seqs}, blocks]", shapes)
    if sampled_token_ids.shape != (num_queries, each):
        refuse(name, f"sampled_token_ids {[num_queries, each]}", list(sampled_token_ids.shape))
    sequence = torch.arange(num_queries, device=input_tokens.device)
    rows = num_queries * each
    if spec_token is None or accepted_num is None:
        positions, tokens = seq_lens[:rows].long().clone(), sampled_token_ids
    else:
        ends = torch.cat((sampled_token_ids, sampled_token_ids.new_full((num_queries, 1), -1)), 1).argmin(1)
        last = sampled_token_ids.gather(1, (ends - 1).clamp_min(0).unsqueeze(1))
        tokens = torch.cat((last, spec_token[:num_queries].to(last.dtype)), 1)
        sequence = sequence.repeat_interleave(each)
        positions = input_positions[:rows] + accepted_num[:num_queries].repeat_interleave(each) + 1
    block = block_tables.long()[sequence, positions // block_size]
    input_tokens[:rows] = tokens.flatten().to(input_tokens.dtype)
    input_positions[:rows] = positions.to(input_positions.dtype)
    seq_lens[:rows] = (positions + 1).to(seq_lens.dtype)
    slot_mapping[:rows] = (block * block_size + positions % block_size).to(slot_mapping.dtype)
    for vector, value in ((input_tokens, 0), (input_positions, 0), (slot_mapping, -1)):
        vector[rows:] = value
