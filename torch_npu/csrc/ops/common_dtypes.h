// Dtypes of CANN's operators on data of any kind, as masks of at::ScalarType, for kernels that are written by
// hand: generated ones read the op table (opspec/dtypes.yaml, group `all`).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>

namespace torch_npu::ops {

constexpr uint64_t dtype_mask(std::initializer_list<at::ScalarType> dtypes) {
  uint64_t mask = 0;
  for (const at::ScalarType dtype : dtypes) mask |= uint64_t{1} << static_cast<int>(dtype);
  return mask;
}

inline constexpr uint64_t kRealDtypes =
    dtype_mask({at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kByte, at::kChar, at::kShort, at::kInt,
                at::kLong, at::kBool});
inline constexpr uint64_t kCommonDtypes = kRealDtypes | dtype_mask({at::kComplexFloat, at::kComplexDouble});

}  // namespace torch_npu::ops
