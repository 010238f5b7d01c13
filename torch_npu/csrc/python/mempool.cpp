#include "torch_npu/csrc/memory/mempool.h"

#include <thread>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {

using c10::DeviceIndex;
using c10::MempoolId_t;
using memory::caching_allocator;
using memory::MemPool;
using memory::PluggableAllocator;
using memory::StreamHandle;

void bind_mempool(py::module_& m) {
  py::class_<PluggableAllocator, std::shared_ptr<PluggableAllocator>>(m, "_PluggableAllocator")
      .def(py::init([](uintptr_t allocate, uintptr_t release) {
             return std::make_shared<PluggableAllocator>(
                 PluggableAllocator{reinterpret_cast<decltype(PluggableAllocator::allocate)>(allocate),
                                    reinterpret_cast<decltype(PluggableAllocator::release)>(release)});
           }),
           py::arg("allocate"), py::arg("release"));
  m.def("_replace_allocator", [](std::shared_ptr<PluggableAllocator> allocator) {
    caching_allocator().replace_source(std::move(allocator));
  });
  m.def("_current_allocator", [] {
    return std::const_pointer_cast<PluggableAllocator>(caching_allocator().source());  // pybind has no const
  });

  py::class_<MemPool>(m, "_MemPool")
      .def(py::init([](std::shared_ptr<PluggableAllocator> allocator, bool is_user_created, bool use_on_oom,
                       bool no_split) {
             device::ensure_initialized();
             return std::make_unique<MemPool>(
                 device::current_device(),
                 MemPool::Options{is_user_created, use_on_oom, no_split, std::move(allocator)});
           }),
           py::arg("allocator").none(true), py::arg("is_user_created"), py::arg("use_on_oom"),
           py::arg("no_split"))
      .def_property_readonly("id", &MemPool::id)
      .def_property_readonly("device", &MemPool::device)
      .def("use_count", &MemPool::use_count);

  m.def("_new_pool_id", &memory::new_pool_id, py::arg("is_user_created") = true);
  m.def("_begin_allocate_current_thread_to_pool", [](DeviceIndex index, MempoolId_t id) {
    const auto thread = std::this_thread::get_id();
    caching_allocator().begin_allocate_to_pool(
        index, id, [thread](StreamHandle) { return std::this_thread::get_id() == thread; });
  });
  m.def("_end_allocate_to_pool",
        [](DeviceIndex index, MempoolId_t id) { caching_allocator().end_allocate_to_pool(index, id); });
  m.def("_release_pool",
        [](DeviceIndex index, MempoolId_t id) { caching_allocator().release_pool(index, id); });
}

}  // namespace torch_npu::python
