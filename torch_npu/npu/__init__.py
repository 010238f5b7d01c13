"""``torch.npu``: devices, streams, random numbers, mixed precision and memory of the device ``npu``.

Private names that PyTorch or DTensor look up here are imported ``as`` themselves.
"""

from typing import Any

from torch_npu.npu import _c_names as _c_names
from torch_npu.npu import _exit as _exit
from torch_npu.npu import _utils as _utils
from torch_npu.npu import amp, random, utils
from torch_npu.npu import environment as environment
from torch_npu.npu._npugraph_handlers.npugraph_handler import NpuGraphOpHandler, register_npu_graph_handler
from torch_npu.npu._utils import _get_device_index as _get_device_index
from torch_npu.npu.autocast import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torch_npu.npu.devices import (
    _is_in_bad_fork as _is_in_bad_fork,
)
from torch_npu.npu.devices import (
    _lazy_init as _lazy_init,
)
from torch_npu.npu.devices import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_soc_version,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    mem_get_info,
    npurt,
    set_device,
    synchronize,
    utilization,
)
from torch_npu.npu.functional import linear
from torch_npu.npu.graphs import (
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
    make_graphed_callables,
)
from torch_npu.npu.legacy import TYPES as _TYPES
from torch_npu.npu.limits import (
    get_device_limit,
    get_stream_limit,
    reset_stream_limit,
    set_device_limit,
    set_op_timeout_ms,
    set_stream_limit,
)
from torch_npu.npu.memory import (
    MemPool,
    NPUPluggableAllocator,
    caching_allocator_alloc,
    caching_allocator_delete,
    change_current_allocator,
    empty_cache,
    empty_virt_addr_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_empty_cache,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_npu.npu.options import (
    CubeMathType,
    aclnn,
    are_compatible_impl_enabled,
    config,
    conv,
    get_mm_bmm_format_nd,
    is_jit_compile_false,
    matmul,
    set_aoe,
    set_compile_mode,
    set_mm_bmm_format_nd,
    set_option,
    use_compatible_impl,
)
from torch_npu.npu.random import (
    _get_rng_state_offset as _get_rng_state_offset,
)
from torch_npu.npu.random import (
    _set_rng_state_offset as _set_rng_state_offset,
)
from torch_npu.npu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_npu.npu.streams import (
    Event,
    ExternalEvent,
    ExternalStream,
    Stream,
    StreamContext,
    SyncLaunchStream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from torch_npu.npu.streams import (
    _launch_host_func as _launch_host_func,
)
from torch_npu.npu.streams import (
    _subscribe_report as _subscribe_report,
)
from torch_npu.npu.streams import (
    _unsubscribe_report as _unsubscribe_report,
)
from torch_npu.npu.utils import current_blas_handle, get_sync_debug_mode, set_sync_debug_mode

__all__ = [
    "CubeMathType",
    "Event",
    "ExternalEvent",
    "ExternalStream",
    "MemPool",
    "NPUGraph",
    "NPUPluggableAllocator",
    "NpuGraphOpHandler",
    "Stream",
    "StreamContext",
    "SyncLaunchStream",
    "aclnn",
    "amp",
    "are_compatible_impl_enabled",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "can_device_access_peer",
    "change_current_allocator",
    "config",
    "conv",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "empty_virt_addr_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_limit",
    "get_device_name",
    "get_device_properties",
    "get_mm_bmm_format_nd",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_soc_version",
    "get_stream_limit",
    "get_sync_debug_mode",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_jit_compile_false",
    "linear",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "matmul",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "npurt",
    "random",
    "register_npu_graph_handler",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "reset_stream_limit",
    "seed",
    "seed_all",
    "set_aoe",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_compile_mode",
    "set_device",
    "set_device_limit",
    "set_mm_bmm_format_nd",
    "set_op_timeout_ms",
    "set_option",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_stream_limit",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "use_compatible_impl",
    "use_mem_pool",
    "utilization",
    "utils",
]

globals().update(_TYPES)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return random._default_generators()
    if name == "_initialized":  # torch.utils.checkpoint asks, to know whether there is random state to bring back
        return is_initialized()
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")
