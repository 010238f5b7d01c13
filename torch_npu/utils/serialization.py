"""Saves while the program goes on."""

import io
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import torch

__all__ = ["save_async"]


def save_async(
    obj: object,
    f: str | os.PathLike[str],
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
    model: torch.nn.Module | None = None,
) -> None:
    """:func:`torch.save` that writes the file on another thread.

    The bytes are those of the moment of the call, so that training may go on at once. The file appears under its name
    when it is complete; the process does not end before.

    Args:
        obj, f, pickle_module, pickle_protocol: as for :func:`torch.save`; ``f`` is a path.
        model: accepted; nothing has to be kept from changing.

    Raises:
        RuntimeError: ``_use_new_zipfile_serialization=False``, the format that torch.save gave up.
    """
    if not _use_new_zipfile_serialization:
        raise RuntimeError("save_async: _use_new_zipfile_serialization=False is not supported; leave it at True")
    contents = io.BytesIO()
    torch.save(
        obj,
        contents,
        pickle_module=pickle_module,
        pickle_protocol=pickle_protocol,
        _disable_byteorder_record=_disable_byteorder_record,
    )
    threading.Thread(target=_write, args=(contents, Path(f)), name="torch_npu.save_async").start()


def _write(contents: io.BytesIO, path: Path) -> None:
    incomplete = path.with_name(path.name + ".incomplete")
    incomplete.write_bytes(contents.getbuffer())
    incomplete.replace(path)
