"""Each test starts without compiled graphs, counts or reasons; kernels go into a cache of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchtitan_npu.compile


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.mktemp("kernels")
        patch.setenv("GRAPH_AUTOFUSION_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torchtitan_npu.compile.reset()
    torch.manual_seed(0)
