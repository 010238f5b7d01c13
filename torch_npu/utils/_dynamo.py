"""What ``torch.compile`` asks a device: streams, devices and their properties, for code that it traces or generates."""

from typing import Any

from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from torch_npu import _C, npu

__all__ = ["NPUInterface"]


class NPUInterface(DeviceInterface):
    """``torch.npu`` as Dynamo's device interface."""

    device: Any = npu.device
    Event: Any = npu.Event
    Stream: Any = npu.Stream

    class Worker:
        """For processes that compile, which must not use the device: properties are asked for beforehand."""

        @staticmethod
        def set_device(device: int) -> None:
            npu.set_device(device)

        @staticmethod
        def current_device() -> int:
            return _C._current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return npu.get_device_properties(device)

    current_device = staticmethod(npu.current_device)
    set_device = staticmethod(npu.set_device)
    device_count = staticmethod(npu.device_count)
    is_available = staticmethod(npu.is_available)
    stream = staticmethod(npu.stream)
    current_stream = staticmethod(npu.current_stream)
    set_stream = staticmethod(npu.set_stream)
    synchronize = staticmethod(npu.synchronize)
    is_bf16_supported = staticmethod(npu.is_bf16_supported)
    memory_allocated = staticmethod(npu.memory_allocated)
    get_raw_stream = staticmethod(_C._npu_getCurrentRawStream)
    exchange_device = maybe_exchange_device = staticmethod(_C._exchange_device)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        npu.set_stream(npu.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        """The SoC's name: what code generated for one device may not share with another."""
        return npu.get_device_name(device)


def _dynamo_register_interface_for_device() -> None:
    """Registers the interface. Inductor does not need it here: it generates code for the CPU, see _inductor.py."""
    register_interface_for_device("npu", NPUInterface)
    for index in range(npu.device_count()):
        register_interface_for_device(f"npu:{index}", NPUInterface)
