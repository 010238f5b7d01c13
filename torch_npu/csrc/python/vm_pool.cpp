#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/mempool.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

using c10::DeviceIndex;
using c10::MempoolId_t;

memory::DevicePool& pool(DeviceIndex index) { return memory::caching_allocator().device_pool(index); }

py::dict usage(DeviceIndex index, MempoolId_t id) {
  const memory::PoolUsage usage = pool(index).reserved_pool_usage(id);
  py::dict result;
  result["size"] = usage.size;
  result["in_use"] = usage.in_use;
  result["peak_in_use"] = usage.peak_in_use;
  result["mapped"] = usage.mapped;
  result["peak_mapped"] = usage.peak_mapped;
  result["free_mapped"] = usage.free_mapped;
  result["largest_free"] = usage.largest_free;
  result["live"] = usage.live;
  result["allocations"] = usage.allocations;
  result["hits"] = usage.hits;
  return result;
}

}  // namespace

/// What torch_npu.VMMemoryPool is made of.
void bind_vm_pool(py::module_& m) {
  m.def(
      "_vm_open",
      [](DeviceIndex index, size_t size, bool map_all) {
        device::ensure_initialized();
        const MempoolId_t id = memory::new_pool_id();
        pool(index).open_reserved_pool(id, size, map_all);
        return id;
      },
      without_gil());
  m.def(
      "_vm_close", [](DeviceIndex index, MempoolId_t id) { pool(index).close_reserved_pool(id); },
      without_gil());
  m.def("_vm_set_default", [](DeviceIndex index, MempoolId_t id, bool is_default) {
    pool(index).set_default_pool(id, is_default);
  });
  m.def("_vm_usage", &usage);
  m.def("_vm_base", [](DeviceIndex index, MempoolId_t id) {
    return reinterpret_cast<uintptr_t>(pool(index).reserved_pool_base(id));
  });
}

}  // namespace torch_npu::python
