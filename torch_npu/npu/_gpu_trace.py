"""What happens to events, streams and memory of the devices, for whoever registers a callback.

PyTorch's core calls the registries by these names once ``torch._C._activate_gpu_trace()`` was called. Handles and
addresses are integers; the default stream is 0.
"""

from torch._utils import CallbackRegistry

EventCreationCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu event creation")
EventDeletionCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu event deletion")
EventRecordCallbacks: "CallbackRegistry[int, int]" = CallbackRegistry("npu event record")
EventWaitCallbacks: "CallbackRegistry[int, int]" = CallbackRegistry("npu event wait")
MemoryAllocationCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu memory allocation")
MemoryDeallocationCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu memory deallocation")
StreamCreationCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu stream creation")
DeviceSynchronizationCallbacks: "CallbackRegistry[[]]" = CallbackRegistry("npu device synchronization")
StreamSynchronizationCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu stream synchronization")
EventSynchronizationCallbacks: "CallbackRegistry[int]" = CallbackRegistry("npu event synchronization")
