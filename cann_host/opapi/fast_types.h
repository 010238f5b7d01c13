// What the direct routes ask of descriptors.
#pragma once

#include <optional>

#include "cann_host/kernels/data_type.h"
#include "cann_host/opapi/descriptor.h"

namespace cann_host::fast {

/// The kernels' name of a dtype, if they have it.
inline std::optional<kernels::DataType> kernel_type(aclDataType dtype) {
  using enum kernels::DataType;
  switch (dtype) {
    case ACL_FLOAT:
      return float32;
    case ACL_FLOAT16:
      return float16;
    case ACL_BF16:
      return bfloat16;
    case ACL_DOUBLE:
      return float64;
    case ACL_INT32:
      return int32;
    case ACL_INT64:
      return int64;
    case ACL_UINT8:
      return uint8;
    case ACL_BOOL:
      return boolean;
    default:
      return std::nullopt;
  }
}

/// Contiguous and of one shape, whatever the dtypes. The memory may be the same, but must not overlap
/// otherwise.
inline bool aligned(const aclTensor& a, const aclTensor& b) {
  if (!(a.sizes == b.sizes) || !a.is_contiguous() || !b.is_contiguous()) return false;
  const auto *first = static_cast<const char*>(a.data()), *second = static_cast<const char*>(b.data());
  if (first == second) return element_size(a.dtype) == element_size(b.dtype);
  const auto bytes = [](const aclTensor& t) {
    return t.numel() * static_cast<int64_t>(element_size(t.dtype));
  };
  return first + bytes(a) <= second || second + bytes(b) <= first;
}

}  // namespace cann_host::fast
