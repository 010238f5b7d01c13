"""Causal convolution along sequences whose last tokens are kept in a cache between calls, as servers run it.

A line of the cache [lines, C, D] has the C last tokens of a sequence, C >= K - 1 for a kernel [K, D]. Nothing here
reads a value on the host, so that captured graphs replay with other sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_ARGUMENTS = (
    "*, Tensor? query_start_loc=None, Tensor? cache_indices=None, Tensor? initial_state_mode=None, Tensor? bias=None, "
    'Tensor? num_accepted_tokens=None, str? activation="None", int? pad_slot_id=-1, int? run_mode=0, '
    "int? residual_connection=0, int? max_query_len=-1, Tensor? num_computed_tokens=None, "
    "Tensor? block_idx_first_scheduled_token=None, Tensor? block_idx_last_scheduled_token=None, "
    'Tensor? initial_state_idx=None, int? block_size=128, str? conv_mode="default"'
)


_BLOCKS = ("block_idx_first_scheduled_token", "block_idx_last_scheduled_token", "initial_state_idx")

Writes = tuple[Tensor, Tensor, Tensor, Tensor]  # lines, slots, rows [n, D] for them, and which of these are real


@dataclass(frozen=True)
class _Sequences:
    """Sequences whose tokens follow one another, and the lines of the cache that they read and write."""

    tokens: Tensor  # [T, D]
    states: Tensor  # [lines, C, D], before the call
    start: Tensor  # [B]
    length: Tensor  # [B]
    read: Tensor  # [B], lines
    write: Tensor  # [B]
    used: Tensor  # [B]: not padding
    fresh: Tensor  # [B]: begin now, so that zeros come before them
    offset: Tensor  # [B]: of a line's tokens, how many are before the K - 1 that come before the sequence
    before: int  # K - 1

    def at(self, batch: Tensor, place: Tensor) -> Tensor:
        """Tokens [.., D] at places counted from the line's first that is read; what is in no sequence is 0."""
        kept = self.offset[batch] + self.before
        line = self.read[batch].clamp(0, self.states.shape[0] - 1)
        old = self.states[line, place.clamp(0, self.states.shape[1] - 1)]
        old = old.where((~self.fresh[batch] & (place >= 0)).unsqueeze(-1), 0)
        new = self.tokens[(self.start[batch] + place - kept).clamp(0, max(self.tokens.shape[0] - 1, 0))]
        return torch.where((place < kept).unsqueeze(-1), old, new)


def _put(states: Tensor, line: Tensor, slot: Tensor, rows: Tensor, real: Tensor) -> None:
    """Writes rows [n, D] to states[line, slot] where real; the others repeat a real one, or what is there already."""
    donor = real.int().argmax(0, keepdim=True)
    none = ~real[donor]
    line, slot = (torch.where(real, t, t[donor]).where(~none, 0) for t in (line, slot))
    rows = torch.where(real.unsqueeze(1), rows, torch.where(none, states[0, 0], rows[donor]))
    states.index_put_((line, slot), rows.to(states.dtype))


def _check(operator: str, x: Tensor, weight: Tensor, states: Tensor, options: dict[str, Any]) -> None:
    shapes = [list(t.shape) for t in (x, weight, states)]
    if x.dim() not in (2, 3) or weight.dim() != 2 or states.dim() != 3 or states.shape[1] < weight.shape[0] - 1:
        refuse(operator, "x [T, D] or [B, S, D], weight [K, D] and conv_states [lines, K - 1 or more, D]", shapes)
    if weight.shape[1] != x.shape[-1] or states.shape[2] != x.shape[-1]:
        refuse(operator, "x, weight and conv_states of one width", shapes)
    if x.dim() == 2 and options.get("query_start_loc") is None:
        refuse(operator, "query_start_loc with x [T, D]", None)
    computed = options.get("num_computed_tokens")
    if options.get("conv_mode") not in (None, "default", "pangu"):
        refuse(operator, "conv_mode default or pangu", repr(options["conv_mode"]))
    if options.get("conv_mode") == "pangu" and computed is None:
        refuse(operator, "num_computed_tokens with conv_mode pangu", None)
    lines = options.get("cache_indices")
    in_blocks = lines is not None and lines.dim() == 2
    given = [options.get(name) is not None for name in _BLOCKS]
    if any(given) != in_blocks or (in_blocks and not (all(given) and computed is not None)):
        refuse(operator, f"with cache_indices [B, blocks] all of {[*_BLOCKS, 'num_computed_tokens']}", given)


def _sequences_of(x: Tensor, before: int, states: Tensor, options: dict[str, Any]) -> _Sequences:
    tokens = x.reshape(-1, x.shape[-1])
    starts = options.get("query_start_loc")
    if starts is None:
        starts = torch.arange(0, tokens.shape[0] + 1, x.shape[1], device=x.device)
    starts = starts.long()
    batch = torch.arange(starts.shape[0] - 1, device=x.device)
    lines = options.get("cache_indices")
    read = write = batch if lines is None else lines.long()
    if read.dim() == 2:
        read, write = (read[batch, options[name].long()] for name in (_BLOCKS[2], _BLOCKS[1]))
    computed, accepted = options.get("num_computed_tokens"), options.get("num_accepted_tokens")
    fresh = torch.zeros_like(batch, dtype=torch.bool) if computed is None else computed == 0
    offset = torch.full_like(batch, states.shape[1] - before) if accepted is None else accepted.long() - 1
    used = read != options.get("pad_slot_id", -1)
    return _Sequences(
        tokens, states, starts[:-1], starts.diff(), read, write, used, fresh, offset.where(~fresh, 0), before
    )


def _outputs(sequences: _Sequences, weight: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Rows [T, D] in float32, and which are those of a sequence [T, 1]."""
    token = torch.arange(sequences.tokens.shape[0], device=weight.device)
    ends = sequences.start + sequences.length
    batch = torch.searchsorted(ends, token, right=True).clamp_max(ends.shape[0] - 1)
    row = token - sequences.start[batch]
    y = torch.zeros_like(sequences.tokens, dtype=torch.float32)
    for k in range(sequences.before + 1):
        y = y + sequences.at(batch, sequences.offset[batch] + row + k).float() * weight[k].float()
    if options.get("conv_mode") == "pangu":
        y = y.where((row >= sequences.before - options["num_computed_tokens"].long()[batch]).unsqueeze(1), 0)
    if options.get("residual_connection"):
        y = y + sequences.tokens.float()
    return y, (sequences.used[batch] & (row >= 0) & (token < ends[-1])).unsqueeze(1)


def _last_tokens(sequences: _Sequences) -> Writes:
    """What each sequence leaves in its line: as many of its last tokens as there is room for."""
    room = sequences.states.shape[1]
    batch = torch.arange(sequences.start.shape[0], device=sequences.start.device).repeat_interleave(room)
    slot = torch.arange(room, device=batch.device).repeat(sequences.start.shape[0])
    length = sequences.offset + sequences.before + sequences.length
    place = length[batch] - room + slot
    rows = sequences.at(batch, place)
    return sequences.write[batch], slot, rows, sequences.used[batch] & (place >= 0)


def _full_blocks(sequences: _Sequences, options: dict[str, Any]) -> Writes:
    """The K - 1 tokens before the end of each block that a sequence fills, for those who begin there later."""
    lines, size, before = options["cache_indices"].long(), options.get("block_size", 128), sequences.before
    first, last = (options[name].long() for name in _BLOCKS[:2])
    left = size - options["num_computed_tokens"].long() % size
    over = (sequences.length - left) % size
    end = sequences.length - over - torch.where(over == 0, size, 0)
    shape = (lines.shape[0], lines.shape[1], before)
    batch, number, tap = (t.flatten() for t in torch.meshgrid(
        *(torch.arange(n, device=lines.device) for n in shape), indexing="ij"
    ))  # fmt: skip
    count = (last - first)[batch]
    boundary = end[batch] - (count - number - 1) * size
    rows = sequences.at(batch, sequences.offset[batch] + boundary + tap)
    line = lines[batch, (first[batch] + number).clamp_max(lines.shape[1] - 1)]
    slot = sequences.states.shape[1] - before + tap
    return line, slot, rows, sequences.used[batch] & (number < count)


def _convolved(
    operator: str, x: Tensor, weight: Tensor, states: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The result in float32, and which rows have one; changes the states."""
    _check(operator, x, weight, states, options)
    sequences = _sequences_of(x, weight.shape[0] - 1, states, options)
    y, real = _outputs(sequences, weight, options)
    lines = options.get("cache_indices")
    writes = [_last_tokens(sequences)]
    if lines is not None and lines.dim() == 2:
        writes.append(_full_blocks(sequences, options))
    for line, slot, rows, wanted in writes:
        _put(states, line, slot, rows, wanted)
    return y.view(x.shape), real.view(*x.shape[:-1], 1)


@composed(f"npu_fused_causal_conv1d(Tensor x, Tensor weight, Tensor(a!) conv_states, {_ARGUMENTS}) -> Tensor")
def fused_causal_conv1d(x: Tensor, weight: Tensor, conv_states: Tensor, **options: Any) -> Tensor:
    """Convolution of each sequence of x and what came before it with weight [K, D]; updates conv_states [lines, C, D].

    x is [T, D] with the starts query_start_loc [B + 1], or [B, S, D]. A sequence reads and writes the line of its
    cache_indices [B] (its number without them); that of pad_slot_id is skipped, with results 0. Before it come the
    line's last K - 1 tokens, with num_accepted_tokens [B] those before the accepted ones' last, zeros where
    num_computed_tokens [B] is 0. With cache_indices [B, blocks] it reads the line initial_state_idx names, writes that
    of block_idx_last_scheduled_token, and from block_idx_first_scheduled_token on each block of block_size that gets
    full. residual_connection 1 adds x; conv_mode pangu has 0 for the first K - 1 tokens of all. As on Ascend hardware
    bias, activation, initial_state_mode, run_mode and max_query_len have no effect.
    """
    y, real = _convolved("npu_fused_causal_conv1d", x, weight, conv_states, options)
    return y.where(real, 0).to(x.dtype)


@composed(f"npu_fused_causal_conv1d_v2(Tensor(a!) x, Tensor weight, Tensor(b!) conv_states, {_ARGUMENTS}) -> ()")
def fused_causal_conv1d_v2(x: Tensor, weight: Tensor, conv_states: Tensor, **options: Any) -> None:
    """npu_fused_causal_conv1d that writes its result to x; sequences that are skipped stay."""
    y, real = _convolved("npu_fused_causal_conv1d_v2", x, weight, conv_states, options)
    x.copy_(y.to(x.dtype).where(real, x))
