"""Kernels of these tests are compiled into a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """An empty cache, so that tests compile what they say they compile."""
    with pytest.MonkeyPatch.context() as patch:
        folder: Path = tmp_path_factory.mktemp("kernels")
        patch.setenv("GRAPH_AUTOFUSION_CACHE", str(folder))
        yield folder
