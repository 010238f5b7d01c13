// CANN's options, limits and versions, and the adapter's switches that go with them.
#include <map>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/dispatch/sync_debug.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

/// Options of CANN's operator compiler, under the names that torch_npu gives them.
const std::map<std::string, aclCompileOpt>& compile_options() {
  static const std::map<std::string, aclCompileOpt> table{
      {"ACL_PRECISION_MODE", ACL_PRECISION_MODE},
      {"ACL_AICORE_NUM", ACL_AICORE_NUM},
      {"ACL_OP_SELECT_IMPL_MODE", ACL_OP_SELECT_IMPL_MODE},
      {"ACL_OPTYPELIST_FOR_IMPLMODE", ACL_OPTYPELIST_FOR_IMPLMODE},
      {"ACL_OP_DEBUG_LEVEL", ACL_OP_DEBUG_LEVEL},
      {"ACL_DEBUG_DIR", ACL_DEBUG_DIR},
      {"ACL_OP_COMPILER_CACHE_MODE", ACL_OP_COMPILER_CACHE_MODE},
      {"ACL_OP_COMPILER_CACHE_DIR", ACL_OP_COMPILER_CACHE_DIR},
      {"ACL_OP_DEBUG_OPTION", ACL_OP_DEBUG_OPTION},
      {"jitCompile", ACL_OP_JIT_COMPILE},
  };
  return table;
}

void bind_options(py::module_& m) {
  m.def("_compile_options", [] {
    std::vector<std::string> names;
    for (const auto& [name, option] : compile_options()) names.push_back(name);
    return names;
  });
  m.def("_set_compile_option", [](const std::string& name, const std::string& value) {
    device::activate(device::current_device());
    cann::api().aclSetCompileopt.checked(compile_options().at(name), value.c_str());
  });
  m.def("_compile_option", [](const std::string& name) {
    device::activate(device::current_device());
    const aclCompileOpt option = compile_options().at(name);
    std::string value(cann::api().aclGetCompileoptSize(option), '\0');
    cann::api().aclGetCompileopt.checked(option, value.data(), value.size());
    value.resize(value.find('\0'));
    return value;
  });
  m.def("_set_matmul_math", [](int8_t type) { CubeMath::matmul = type; });
  m.def("_set_convolution_math", [](int8_t type) { CubeMath::convolution = type; });
  m.def("_matmul_math", &matmul_math);
  m.def("_convolution_math", &convolution_math);
  m.def("_sync_debug_mode", [] { return static_cast<int>(detail::sync_debug.load()); });
  m.def("_set_sync_debug_mode", [](int mode) { detail::sync_debug = static_cast<SyncDebug>(mode); });
}

/// How many cores work may use. `type` is an aclrtDevResLimitType.
void bind_limits(py::module_& m) {
  m.def("_device_limit", [](int32_t index, int type) {
    device::activate(static_cast<c10::DeviceIndex>(index));
    uint32_t value = 0;
    cann::api().aclrtGetDeviceResLimit.checked(index, static_cast<aclrtDevResLimitType>(type), &value);
    return value;
  });
  m.def("_set_device_limit", [](int32_t index, int type, uint32_t value) {
    device::activate(static_cast<c10::DeviceIndex>(index));
    cann::api().aclrtSetDeviceResLimit.checked(index, static_cast<aclrtDevResLimitType>(type), value);
  });
  m.def("_stream_limit", [](uintptr_t stream, int type) {
    uint32_t value = 0;
    cann::api().aclrtGetStreamResLimit.checked(reinterpret_cast<aclrtStream>(stream),
                                               static_cast<aclrtDevResLimitType>(type), &value);
    return value;
  });
  m.def("_set_stream_limit", [](uintptr_t stream, int type, uint32_t value) {
    cann::api().aclrtSetStreamResLimit.checked(reinterpret_cast<aclrtStream>(stream),
                                               static_cast<aclrtDevResLimitType>(type), value);
  });
  m.def("_reset_stream_limit", [](uintptr_t stream) {
    cann::api().aclrtResetStreamResLimit.checked(reinterpret_cast<aclrtStream>(stream));
  });
  m.def("_set_op_timeout", [](uint64_t microseconds) {
    device::activate(device::current_device());
    uint64_t actual = 0;
    cann::api().aclrtSetOpExecuteTimeOutV2.checked(microseconds, &actual);
    return actual;
  });
}

}  // namespace

void bind_controls(py::module_& m) {
  bind_options(m);
  bind_limits(m);
  m.def("_cann_version", [](int package) {
    aclCANNPackageVersion version{};
    cann::api().aclsysGetCANNVersion.checked(static_cast<aclCANNPackageName>(package), &version);
    return std::string(version.version);
  });
}

}  // namespace torch_npu::python
