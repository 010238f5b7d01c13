#include "torch_npu/csrc/device/device.h"

#include <ATen/Context.h>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/init_config.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

py::dict cann_info() {
  const cann::Info& info = cann::info();
  py::list refused;
  for (const auto& r : info.refused)
    refused.append(py::dict(py::arg("root") = r.root, py::arg("reason") = r.reason));
  using namespace pybind11::literals;
  return py::dict("root"_a = info.root, "chosen_by"_a = info.chosen_by, "is_host"_a = info.is_host,
                  "device_count"_a = info.device_count, "soc"_a = info.soc, "libraries"_a = info.libraries,
                  "refused"_a = refused, "error"_a = info.error);
}

std::string repr(const device::Properties& p) {
  constexpr size_t kMegabyte = 1024 * 1024;
  return "_NPUDeviceProperties(name='" + p.name +
         "', total_memory=" + std::to_string(p.total_memory / kMegabyte) +
         "MB, cube_core_num=" + std::to_string(p.cube_core_num) +
         ", vector_core_num=" + std::to_string(p.vector_core_num) + ", uuid=" + p.uuid +
         ", L2_cache_size=" + std::to_string(p.L2_cache_size / kMegabyte) + "MB)";
}

void bind_properties(py::module_& m) {
  using device::Properties;
  py::class_<Properties> properties(m, "_NPUDeviceProperties");
  properties.def_readonly("name", &Properties::name)
      .def_readonly("total_memory", &Properties::total_memory)
      .def_readonly("cube_core_num", &Properties::cube_core_num)
      .def_readonly("vector_core_num", &Properties::vector_core_num)
      .def_readonly("multi_processor_count", &Properties::vector_core_num)
      .def_readonly("L2_cache_size", &Properties::L2_cache_size)
      .def_property_readonly(
          "uuid", [](const Properties& p) { return py::module_::import("uuid").attr("UUID")(p.uuid); })
      .def("__repr__", &repr);
  // CUDA's fields that say nothing about an NPU: code written for both devices may read them.
  for (const char* name :
       {"major", "minor", "is_multi_gpu_board", "is_integrated", "max_threads_per_multi_processor",
        "warp_size", "regs_per_multiprocessor", "gcnArchName"}) {
    properties.attr(name) = py::none();
  }
}

/// A few of CANN's functions as they are: addresses as integers in, CANN's error code out.
void bind_npurt(py::module_& m) {
  py::module_ rt = m.def_submodule("_npurt", "CANN's runtime functions for code that manages raw handles");
  rt.def("npuHostRegister", [](uintptr_t pointer, uint64_t bytes, uint32_t flags) {
    device::activate_any();
    return cann::api().aclrtHostRegisterV2(reinterpret_cast<void*>(pointer), bytes, flags);
  });
  rt.def("npuHostUnregister", [](uintptr_t pointer) {
    device::activate_any();
    return cann::api().aclrtHostUnregister(reinterpret_cast<void*>(pointer));
  });
  rt.def("npuStreamCreate", [](uintptr_t where) {
    device::activate(device::current_device());
    return cann::api().aclrtCreateStreamWithConfig(reinterpret_cast<aclrtStream*>(where), 0,
                                                   ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC);
  });
  rt.def("npuStreamDestroy", [](uintptr_t stream) {
    device::activate_any();
    return cann::api().aclrtDestroyStream(reinterpret_cast<aclrtStream>(stream));
  });
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("_cann_info", &cann_info);
  m.def("_set_init_config", [](std::string path, std::string problem) {
    device::set_init_config({std::move(path), std::move(problem)});
  });
  m.def("_init", [] {
    device::ensure_initialized();
    // ATen asks about pinned memory only after it has initialised the device itself.
    at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1);
  });
  m.def("_is_initialized", &device::is_initialized);
  m.def("_in_bad_fork", &device::in_bad_fork);
  m.def("_device_count", &device::device_count);
  m.def("_current_device", &device::current_device);
  m.def("_set_device", [](c10::DeviceIndex index) {
    device::check_index(index);  // set_device() does not where nothing changes
    device::set_device(index);
  });
  m.def("_exchange_device", &device::exchange_device);
  m.def("_synchronize", &device::synchronize, without_gil());
  m.def("_synchronize_all", &device::synchronize_all, without_gil());
  m.def("_can_access_peer", &device::can_access_peer);
  m.def("_memory_info", &device::memory_info);
  m.def("_utilization", &device::utilization);
  bind_properties(m);
  bind_npurt(m);
  m.def("_properties", &device::properties, py::return_value_policy::reference);
}

}  // namespace torch_npu::python
