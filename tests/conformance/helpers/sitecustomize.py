"""Imported by every Python of a test of the vendor's against this project's torch_npu, also by those that it starts.

The folder of this file is their PYTHONPATH; ASCEND_PYTORCH names the vendor's checkout.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class HelpersOfTheTests(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets ``torch_npu.testing`` and what it needs of ``torch_npu.utils`` come from the vendor's checkout.

    They are part of the vendor's tests (comparison, decorators), as ``torch.testing._internal`` is of torch's, and
    belong to whichever plug-in is tested. Packages stay empty: the vendor's initialisation patches torch's OpInfo.
    """

    packages = ("torch_npu.testing", "torch_npu.testing._internal", "torch_npu._init", "torch_npu._init.common")
    modules = (
        "torch_npu.testing.",
        "torch_npu.utils._path_manager",
        "torch_npu.utils._error_code",
        "torch_npu.utils.utils",
        "torch_npu._init.common.warning_utils",
    )

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        place = self.checkout / name.replace(".", "/")
        if name in self.packages:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        if name.startswith(self.modules) and place.with_suffix(".py").exists():
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        return None

    def exec_module(self, module: ModuleType) -> None:
        """The package itself has no contents."""


sys.meta_path.insert(0, HelpersOfTheTests(Path(os.environ["ASCEND_PYTORCH"])))
