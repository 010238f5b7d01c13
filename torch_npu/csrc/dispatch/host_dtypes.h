// Dtypes that ATen's CPU kernels refuse, or sum in, other than the device: 32-bit indices, and 16-bit numbers
// of a few operators. The call is made again with 64-bit indices and in float32, and its results are rounded
// once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace torch_npu {

/// What one operator's CPU kernel lacks.
struct HostDtypes {
  std::string_view op;     // without the overload
  std::string_view index;  // the argument that must be int64; empty if there is none
  bool widens_halves;      // float16 and bfloat16 are computed in float32
};

/// The operator's line of the table; null for most.
const HostDtypes* host_dtypes(const c10::OperatorHandle& op);

/// If an argument has such a dtype: makes the call with others, leaves its results on the stack and returns
/// true. Conversions run on the device, like any other operator.
bool call_converted(const HostDtypes& dtypes, const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_npu
