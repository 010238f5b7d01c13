"""Random numbers: seeds and states of the devices' default generators.

A generator is (seed, offset): see ``torch.Generator("npu")``. None of these functions needs an initialised device, so a
seed that is set before the first use holds.
"""

from collections.abc import Iterable
from typing import Any

import torch

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import DeviceLike, device_count, is_available


def _default_generator(device: DeviceLike = None) -> torch.Generator:
    return _C._default_generator(_get_device_index(device, optional=True))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator. Does nothing where no device is available."""
    if is_available():
        _default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all devices. ``torch.manual_seed`` calls it."""
    _C._seed_default_generators(int(seed) % 2**64)


def seed() -> None:
    """Seeds the current device's generator with a random number."""
    if is_available():
        _default_generator().seed()


def seed_all() -> None:
    """Seeds the generators of all devices with one random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _default_generator().initial_seed()


def get_rng_state(device: DeviceLike = "npu") -> torch.Tensor:
    """The state of the device's generator: a CPU tensor uint8[16], the seed and the offset."""
    return _default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "npu") -> None:
    """Puts the device's generator into a state that get_rng_state() gave."""
    _default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts the generators of devices 0, 1, … into the given states."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _get_rng_state_offset(device: DeviceLike = "npu") -> int:
    return _default_generator(device).get_offset()


def _set_rng_state_offset(offset: int, device: DeviceLike = "npu") -> None:
    _default_generator(device).set_offset(offset)


def _default_generators() -> tuple[torch.Generator, ...]:
    return tuple(_C._default_generator(index) for index in range(device_count()))


def __getattr__(name: str) -> Any:
    # Not a constant: counting the devices looks for CANN, which an import must not.
    if name == "default_generators":
        return _default_generators()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
