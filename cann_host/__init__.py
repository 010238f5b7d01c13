"""The software CANN: CANN's C libraries, executing on the CPU.

The native libraries lie in ``root() / "lib64"``, where clients of CANN look for them.
Importing this package loads none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """An environment variable that the libraries read at their first use in a process."""

    name: str
    default: str
    meaning: str
    follows: str = ""  # another variable, which decides where this one is not set

    @property
    def value(self) -> str:
        return os.environ.get(self.name, os.environ.get(self.follows, self.default))


_SETTINGS = (
    Setting("CANN_HOST_SOC", "Ascend910B3", "product that the device says it is"),
    Setting(
        "CANN_HOST_DEVICES",
        "1",
        "number of devices; without it, as many as processes that torchrun starts here (LOCAL_WORLD_SIZE)",
        follows="LOCAL_WORLD_SIZE",
    ),
    Setting("ASCEND_RT_VISIBLE_DEVICES", "all", "which devices, in which order, such as 1,0"),
    Setting("CANN_HOST_MEMORY", "75 % of the RAM, shared by the devices", "bytes of one device, such as 8G"),
    Setting("CANN_HOST_ASYNC", "0", "1: each stream has a thread, as on hardware; finds missing synchronisation"),
    Setting("CANN_HOST_DELAY_US", "0", "microseconds that every task waits before it runs (with CANN_HOST_ASYNC=1)"),
    Setting("CANN_HOST_TRACE", "0", "1: every call, task and error goes to stderr"),
    Setting("CANN_HOST_WINOGRAD", "1", "0: packed convolutions are sums of products, by oneDNN, whatever their size"),
)


def root() -> Path:
    """The folder that is laid out like an installation of CANN."""
    return Path(__file__).resolve().parent


def library(name: str = "ascendcl") -> Path:
    """Where the library lies, whether or not it is built."""
    return root() / "lib64" / f"lib{name}.so"


def settings() -> dict[str, Setting]:
    """All settings by name; ``settings()["CANN_HOST_SOC"].value`` is what holds in this process."""
    return {setting.name: setting for setting in _SETTINGS}


def environment(base: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """What a process needs so that a client of CANN finds this one: changes to `base` (default: ``os.environ``).

    None stands for a variable that must not be set.

    Raises:
        FileNotFoundError: the libraries are not built.
    """
    base = os.environ if base is None else base
    if not library().exists():
        raise FileNotFoundError(f"{library()} does not exist; install the package, or run `make build` in its sources")
    folder = str(library().parent)
    others = [entry for entry in base.get("LD_LIBRARY_PATH", "").split(":") if entry and entry != folder]
    return {
        "LD_LIBRARY_PATH": ":".join([folder, *others]),
        "ASCEND_HOME_PATH": str(root()),
        "ASCEND_OPP_PATH": str(root() / "opp"),
        "ASCEND_TOOLKIT_HOME": None,  # of another installation
    }
