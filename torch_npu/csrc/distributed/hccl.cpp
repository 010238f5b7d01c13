#include "torch_npu/csrc/distributed/hccl.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "torch_npu/csrc/cann/cann.h"

namespace torch_npu::distributed {

Hccl::Hccl() {
  const std::string path = cann::info().root + "/lib64/libhccl.so";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "back end hccl needs HCCL, which does not load: ", dlerror(),
              "; the back end gloo works on CPU tensors");
  std::string missing;
  const auto find = [&](cann::Symbol* symbol) {
    return (symbol->address = dlsym(library, symbol->name)) != nullptr;
  };
  for (cann::Symbol* symbol : required_) {
    if (!find(symbol)) missing += std::string(missing.empty() ? "" : ", ") + symbol->name;
  }
  for (cann::Symbol* symbol : optional_) find(symbol);
  TORCH_CHECK(missing.empty(), path, " lacks ", missing, "; back end hccl needs a newer CANN");
}

const Hccl& hccl() {
  static const auto* instance = new Hccl;  // communicators may outlive static destruction
  return *instance;
}

void check(HcclResult code, const char* call) {
  if (code == HCCL_SUCCESS) return;
  const char* message = cann::api().aclGetRecentErrMsg();
  C10_THROW_ERROR(DistBackendError, c10::str(call, " failed with ", static_cast<int>(code), " (",
                                             hccl().HcclGetErrorString(code), ")",
                                             message && *message ? c10::str(": ", message) : std::string()));
}

std::optional<HcclDataType> data_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kChar:
      return HCCL_DATA_TYPE_INT8;
    case c10::kShort:
      return HCCL_DATA_TYPE_INT16;
    case c10::kInt:
      return HCCL_DATA_TYPE_INT32;
    case c10::kLong:
      return HCCL_DATA_TYPE_INT64;
    case c10::kByte:
    case c10::kBool:
      return HCCL_DATA_TYPE_UINT8;
    case c10::kUInt16:
      return HCCL_DATA_TYPE_UINT16;
    case c10::kUInt32:
      return HCCL_DATA_TYPE_UINT32;
    case c10::kUInt64:
      return HCCL_DATA_TYPE_UINT64;
    case c10::kHalf:
      return HCCL_DATA_TYPE_FP16;
    case c10::kBFloat16:
      return HCCL_DATA_TYPE_BFP16;
    case c10::kFloat:
      return HCCL_DATA_TYPE_FP32;
    case c10::kDouble:
      return HCCL_DATA_TYPE_FP64;
    default:
      return std::nullopt;
  }
}

}  // namespace torch_npu::distributed
