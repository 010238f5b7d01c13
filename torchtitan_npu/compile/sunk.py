"""Runs of a plan as one launch: after a first run the plan is captured, and replays stand for its calls.

A recording is made for addresses. Inputs that stay where they are (parameters, what another recording leaves) are read
there; inputs that move are copied to where the recording reads them. Results are the recording's memory, handed out
without a copy: it is replayed again only when nobody holds them any more, and while somebody does another recording
runs, or the plan itself.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtitan_npu.compile.report import Sinking
from torchtitan_npu.driver import Addresses, RecordedPlan, current_stream_handle, npu
from torchtitan_npu.sinking.capture import capture
from torchtitan_npu.sinking.handed_out import HandedOut
from torchtitan_npu.sinking.reasons import CannotSink

Run = Callable[[list[Any], int], tuple[Any, ...]]

MOST_RECORDINGS = 4
"""Of one plan at a time: each holds the results of one call."""
MOST_CAPTURES = 12
"""Of one plan ever: a capture costs as much as a run, and a plan whose inputs never stay is not worth more."""
SMALL = 1 << 16
"""Bytes up to which an input that moved once is copied from then on; a larger one (weights) has to move twice."""

_results: Counter[int] = Counter()  # addresses of the memory of results, of all recordings


class SunkPlan:
    """The recordings of one plan of fixed sizes, and when to make one."""

    def __init__(self, run: Run, changed: Sequence[int], noted: Sinking) -> None:
        """``changed``: which inputs the plan writes to; ``noted``: where to tell what happens."""
        self._noted = noted
        self._run = run
        self._changed = changed
        self._recordings: list[_Recording] = []
        self._last: list[int] | None = None
        self._moves: Counter[int] = Counter()
        self._places: dict[int, Tensor] = {}  # where recordings read the inputs that move
        self._latest: Any = None  # RecordedPlan of the recording that ran last, while all is as it was
        self._stream: int | None = None

    def again(self, arguments: list[Any]) -> tuple[Any, ...] | None:
        """The results of the recording that ran last, without Python's ways to it; None: to be called in full."""
        if self._latest is None or (results := self._latest.replay(arguments, self._stream)) is None:
            return None
        self._noted.replays += 1
        arguments.clear()
        return results

    def __call__(self, arguments: list[Any]) -> tuple[Any, ...] | None:
        """The results, and no arguments are left; or None: the plan itself has to run."""
        self._latest = None
        if self._noted.reason:
            return None
        try:
            recording = self._find(arguments)
        except CannotSink as why:
            self._noted.reason = str(why)
            self._recordings.clear()
            return None
        if recording is None:
            return None
        self._noted.replays += 1
        results = recording.replay(arguments)
        arguments.clear()
        self._latest, self._stream = recording.native, current_stream_handle()
        return results

    def _find(self, arguments: list[Any]) -> _Recording | None:
        fitting = 0
        for recording in self._recordings:
            if not recording.lies_at.are_those_of(arguments):
                continue
            fitting += 1
            if not recording.handed_out.is_free():
                continue
            if not recording.handed_out.is_spent():
                return recording
            self._recordings.remove(recording)
            fitting -= 1
            break
        return self._record(arguments, fitting)

    def _record(self, arguments: list[Any], fitting: int) -> _Recording | None:
        """A new recording, if it is time for one; ``fitting``: how many there are, whose results are held."""
        if self._last is None:
            _require_npu_tensors(arguments)
        addresses = [0 if i in self._places else a.data_ptr() for i, a in enumerate(arguments)]
        last, self._last = self._last, addresses
        if last is None or fitting == MOST_RECORDINGS:
            return None
        self._note_moves(last, addresses, arguments)
        if self._noted.captures == MOST_CAPTURES:
            raise CannotSink(f"its inputs lay at different addresses in most of {MOST_CAPTURES} captures")
        self._noted.captures += 1
        if len(self._recordings) == MOST_RECORDINGS:
            self._recordings.remove(next(r for r in self._recordings if not r.lies_at.are_those_of(arguments)))
        recording = _Recording(self._run, arguments, addresses, self._places, self._changed)
        self._recordings.append(recording)
        return recording

    def _note_moves(self, last: Sequence[int], addresses: list[int], arguments: Sequence[Tensor]) -> None:
        """Gives inputs that move a place of their own, for which all recordings are made anew."""
        for number, (before, address) in enumerate(zip(last, addresses, strict=True)):
            if before == address or _results[address]:
                continue
            self._moves[number] += 1
            argument = arguments[number]
            if torch._debug_has_internal_overlap(argument):
                raise CannotSink(
                    f"input {number} moves and is expanded, so that nothing can be copied into a place for it"
                )
            if argument.nbytes <= SMALL or self._moves[number] > 1:
                self._places[number] = _place_for(argument)
                addresses[number] = 0
                self._recordings.clear()


def _place_for(argument: Tensor) -> Tensor:
    """Memory for an argument's values, laid out as they are: also lazily conjugated or negated."""
    place = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device)
    place = torch._conj(place) if argument.is_conj() else place
    return torch._neg_view(place) if argument.is_neg() else place


class _Recording:
    """One capture of a plan. Raises CannotSink if there can be none."""

    def __init__(
        self,
        run: Run,
        arguments: Sequence[Tensor],
        addresses: list[int],
        places: dict[int, Tensor],
        changed: Sequence[int],
    ) -> None:
        self.lies_at = Addresses(addresses)
        self._places = dict(places)
        self._changed = changed
        self._graph = npu.NPUGraph()
        given = [places.get(i, a) for i, a in enumerate(arguments)]
        # A pool of its own: results of one recording must not lie where another one has intermediates.
        pool = npu.graph_pool_handle()
        with torch.inference_mode(False), torch.no_grad(), capture(self._graph, pool):
            results = run(list(given), current_stream_handle())
        inputs = {s: i for i, a in enumerate(given) if (s := a.untyped_storage().data_ptr())}
        self._results = [_result(r, given, inputs) for r in results]
        del results
        own = [r.tensor for r in self._results if r.tensor is not None]
        self.handed_out = HandedOut(own)
        self.native = self._without_python(addresses)
        mine = [t.data_ptr() for t in own]
        _results.update(mine)
        weakref.finalize(self, _forget_results, mine)

    def _without_python(self, addresses: Sequence[int]) -> Any:
        """A RecordedPlan; None where inputs are written to or results are views of them."""
        if self._changed or any(r.view is not None for r in self._results):
            return None
        results = [(r.tensor, r.base, r.constant) for r in self._results]
        return RecordedPlan(addresses, list(self._places.items()), self._graph, results, self.handed_out.unused())

    def replay(self, arguments: Sequence[Tensor]) -> tuple[Any, ...]:
        with torch.no_grad():
            for number, place in self._places.items():
                place.copy_(arguments[number])
            self._graph.replay()
            for number in self._changed:
                if number in self._places:
                    arguments[number].copy_(self._places[number])
        if self._changed:
            torch.autograd.graph.increment_version([arguments[i] for i in self._changed])
        return tuple([r.value(arguments) for r in self._results])


def _forget_results(addresses: list[int]) -> None:
    _results.subtract(addresses)
    for address in addresses:
        if not _results[address]:
            del _results[address]


class _Result:
    """One result: memory of the recording, an input or a view of one, or no tensor."""

    def __init__(
        self, tensor: Tensor | None = None, base: int = -1, view: _View | None = None, constant: Any = None
    ) -> None:
        self.tensor = tensor
        self.base = base  # number of the input
        self.view = view  # of the input; None for the input itself
        self.constant = constant

    def value(self, arguments: Sequence[Tensor]) -> Any:
        if self.tensor is not None:
            return self.tensor.data  # a tensor of its own to autograd
        if self.base < 0:
            return self.constant
        base = arguments[self.base]
        return base if self.view is None else self.view.of(base)


class _View:
    """How a result lies in the memory of an input."""

    def __init__(self, result: Tensor, base: Tensor) -> None:
        self._size, self._stride = result.size(), result.stride()
        self._offset = result.storage_offset() - base.storage_offset()
        self._conjugated = result.is_conj() != base.is_conj()
        self._negated = result.is_neg() != base.is_neg()

    def of(self, base: Tensor) -> Tensor:
        view = base.detach().as_strided(self._size, self._stride, base.storage_offset() + self._offset)
        if self._conjugated:
            view = torch._conj(view)
        return torch._neg_view(view) if self._negated else view


def _result(result: Any, inputs: Sequence[Tensor], storages: dict[int, int]) -> _Result:
    if not isinstance(result, Tensor):
        return _Result(constant=result)
    if result.device.type != "npu" or result.layout is not torch.strided:
        raise CannotSink(f"a result is a {result.layout} tensor on {result.device}, expected dense ones on an npu")
    for number, given in enumerate(inputs):
        if result is given:
            return _Result(base=number)
    number = storages.get(result.untyped_storage().data_ptr(), -1)
    if number < 0:
        return _Result(result)
    base = inputs[number]
    if result.dtype != base.dtype:
        raise CannotSink(f"a result is a view of an input as {result.dtype}")
    return _Result(base=number, view=_View(result, base))


def _require_npu_tensors(arguments: Sequence[Any]) -> None:
    for number, argument in enumerate(arguments):
        if not isinstance(argument, Tensor):
            raise CannotSink(f"input {number} is a {type(argument).__name__}, and a replay reads tensors only")
        if argument.device.type != "npu":
            raise CannotSink(f"input {number} is on {argument.device}, and a replay reads memory of the npu only")
