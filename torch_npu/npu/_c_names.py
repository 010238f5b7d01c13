"""Private functions of the vendor's ``torch_npu._C`` that other packages call: Triton's driver, vLLM, test programs.

Each is an alias of a public function of ``torch.npu``; what has no meaning here is missing.
"""

from typing import Any

import torch
from torch import Tensor

from torch_npu import _C
from torch_npu.npu import devices, options
from torch_npu.npu.streams import ExternalEvent, Stream


def _current_raw_stream(device_index: int) -> int:
    """The aclrtStream, as an address, that is current in this thread on the device."""
    return _C._stream_handle(*_C._current_stream(device_index))


def _fused_infer_attention_score_out_graph(
    stream: Stream, handle: int, event: ExternalEvent, *args: Any, **kwargs: Any
) -> list[Tensor]:
    """Gives a captured ``npu_fused_infer_attention_score.out`` other arguments; the replay may go on then."""
    _C._task_update_begin(stream.npu_stream, handle)
    try:
        torch.ops.npu.npu_fused_infer_attention_score.out(*args, **kwargs)
    finally:
        _C._task_update_end(stream.npu_stream)
    event.record(stream)
    return list(kwargs["out"])


def _option(name: str) -> bytes | None:
    """An option as the bytes "enable" or "disable"; None for one that this plug-in does not have."""
    values = {
        "ALLOW_CONV_HF32": options.conv.allow_hf32,
        "ALLOW_INTERNAL_FORMAT": options.config.allow_internal_format,
        "ALLOW_MATMUL_HF32": options.matmul.allow_hf32,
    }
    return {True: b"enable", False: b"disable"}[bool(values[name])] if name in values else None


_NAMES = {
    "_npu_fused_infer_attention_score_out_graph": _fused_infer_attention_score_out_graph,
    "_npu_getCurrentRawStream": _current_raw_stream,
    "_npu_getCurrentRawStreamNoWait": _current_raw_stream,  # no task queue here that the other could wait for
    "_npu_getDevice": devices.current_device,
    "_npu_getDeviceCount": devices.device_count,
    "_npu_getOption": _option,
    "_npu_get_soc_version": devices.get_soc_version,
    "_npu_setDevice": devices.set_device,
    "_npu_synchronize": devices.synchronize,
}


def install() -> None:
    """Puts the names into ``torch_npu._C``."""
    for name, function in _NAMES.items():
        setattr(_C, name, function)
