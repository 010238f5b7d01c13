"""Steps between tokens (torch_npu/composed/decoding.py)."""

from __future__ import annotations

import pytest
import torch

import torch_npu

DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@DEVICES
def test_next_inputs(device):
    sequences, queries, block = 5, 3, 4
    tokens, positions, slots = (torch.randint(1, 9, (sequences,)) for _ in range(3))
    lengths = torch.tensor([3, 8, 11, 6, 5])
    tables, sampled = torch.randint(0, 50, (sequences, 4)), torch.randint(5, 50, (queries, 1))
    given = [t.to(device, copy=True) for t in (tokens, sampled, positions, lengths, slots, tables)]
    torch_npu.npu_advance_step_flashattn(*given, sequences, queries, block)
    for number in range(sequences):
        made = [given[i][number].item() for i in (0, 2, 3, 4)]
        position = lengths[number].item()
        if number < queries:
            slot = tables[number, position // block].item() * block + position % block
            assert made == [sampled[number, 0].item(), position, position + 1, slot]
        else:
            assert made == [0, 0, position, -1]


@DEVICES
def test_guesses(device):
    sequences, guesses, block = 3, 2, 4
    each = 1 + guesses
    tokens, lengths, slots = (torch.randint(1, 9, (sequences * each,)) for _ in range(3))
    positions = torch.randint(0, 4, (sequences, 1)) + torch.arange(each)
    sampled = torch.tensor([[7, 8, 9], [5, -1, -1], [6, 4, -1]])
    accepted, spec = torch.tensor([2, 0, 1]), torch.randint(20, 30, (sequences, guesses))
    tables = torch.randint(0, 50, (sequences, 4))
    given = [t.to(device, copy=True) for t in (tokens, sampled, positions.flatten(), lengths, slots, tables)]
    torch_npu.npu_advance_step_flashattn(
        *given, sequences, sequences, block, spec_token=spec.to(device), accepted_num=accepted.to(device)
    )
    assert given[0].view(sequences, each).tolist() == [[t, *s] for t, s in zip([9, 5, 4], spec.tolist(), strict=True)]
    moved = positions + accepted[:, None] + 1
    assert torch.equal(given[2].cpu().view(sequences, each), moved)
    assert torch.equal(given[3].cpu().view(sequences, each), moved + 1)
    assert torch.equal(given[4].cpu().view(sequences, each), tables.gather(1, moved // block) * block + moved % block)


V, S, TABLES = torch.zeros(3).long(), torch.zeros(2, 1).long(), torch.zeros(3, 2).long()
REFUSED = {
    "guesses": (lambda f: f(V, S, V, V, V, TABLES, 3, 2, 4, spec_token=TABLES), "spec_token with"),
    "vectors": (lambda f: f(V[:2], S, V, V, V, TABLES, 3, 2, 4), "vectors of 3"),
    "sampled": (lambda f: f(V, S[:1], V, V, V, TABLES, 3, 2, 4), "sampled_token_ids"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(torch_npu.npu_advance_step_flashattn)
