#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/pinned.h"
#include "torch_npu/csrc/memory/settings.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

using c10::CachingAllocator::DurationStat;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

py::dict to_dict(const Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict to_dict(const StatArray& stats) {
  py::dict result;
  result["all"] = to_dict(stats[0]);
  result["small_pool"] = to_dict(stats[1]);
  result["large_pool"] = to_dict(stats[2]);
  return result;
}

py::dict to_dict(const DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return result;
}

/// The nested keys of torch.cuda.memory_stats_as_nested_dict.
py::dict to_dict(const DeviceStats& stats) {
  py::dict result;
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["max_split_size"] = stats.max_split_size;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["num_oom_rejections"] = stats.num_oom_rejections;
  result["allocation"] = to_dict(stats.allocation);
  result["segment"] = to_dict(stats.segment);
  result["active"] = to_dict(stats.active);
  result["inactive_split"] = to_dict(stats.inactive_split);
  result["allocated_bytes"] = to_dict(stats.allocated_bytes);
  result["reserved_bytes"] = to_dict(stats.reserved_bytes);
  result["active_bytes"] = to_dict(stats.active_bytes);
  result["inactive_split_bytes"] = to_dict(stats.inactive_split_bytes);
  result["requested_bytes"] = to_dict(stats.requested_bytes);
  result["oversize_allocations"] = to_dict(stats.oversize_allocations);
  result["oversize_segments"] = to_dict(stats.oversize_segments);
  py::dict private_pools;
  for (const auto& [id, reserved] : stats.reserved_bytes_by_private_pools) {
    private_pools[py::make_tuple(id.first, id.second)] = to_dict(reserved);
  }
  result["reserved_bytes_by_private_pools"] = private_pools;
  return result;
}

py::dict to_dict(const at::HostStats& stats) {
  py::dict result;
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  result["allocations"] = to_dict(stats.allocations);
  result["allocated_bytes"] = to_dict(stats.allocated_bytes);
  result["active_requests"] = to_dict(stats.active_requests);
  result["active_bytes"] = to_dict(stats.active_bytes);
  result["host_alloc_time"] = to_dict(stats.host_alloc_time);
  result["host_free_time"] = to_dict(stats.host_free_time);
  return result;
}

}  // namespace

void bind_memory(py::module_& m) {
  using c10::DeviceIndex;
  using memory::caching_allocator;
  using memory::pinned_allocator;

  m.def("_memory_stats",
        [](DeviceIndex index) { return to_dict(caching_allocator().getDeviceStats(index)); });
  m.def("_reset_accumulated_memory_stats",
        [](DeviceIndex index) { caching_allocator().resetAccumulatedStats(index); });
  m.def("_reset_peak_memory_stats", [](DeviceIndex index) { caching_allocator().resetPeakStats(index); });
  m.def("_empty_cache", [] { caching_allocator().emptyCache(); }, without_gil());
  m.def(
      "_raw_alloc",
      [](size_t nbytes, DeviceIndex index, uintptr_t stream) {
        return reinterpret_cast<uintptr_t>(
            caching_allocator().raw_alloc(nbytes, index, reinterpret_cast<memory::StreamHandle>(stream)));
      },
      without_gil());
  m.def(
      "_raw_delete", [](uintptr_t ptr) { caching_allocator().raw_free(reinterpret_cast<void*>(ptr)); },
      without_gil());
  m.def("_set_memory_fraction",
        [](double fraction, DeviceIndex index) { caching_allocator().set_memory_fraction(fraction, index); });
  m.def("_memory_fraction", [](DeviceIndex index) { return caching_allocator().memory_fraction(index); });
  m.def("_set_allocator_settings", &memory::set_settings);

  m.def("_host_memory_stats", [] { return to_dict(pinned_allocator().get_stats()); });
  m.def("_reset_accumulated_host_memory_stats", [] { pinned_allocator().reset_accumulated_stats(); });
  m.def("_reset_peak_host_memory_stats", [] { pinned_allocator().reset_peak_stats(); });
  m.def("_host_empty_cache", [] { pinned_allocator().empty_cache(); }, without_gil());
}

}  // namespace torch_npu::python
