// Flags of overflow. Here an overflow is inf or nan in the result, as with flags that are never raised.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

void no_flags(const Arguments& a) { a.set(0, at::zeros(a.sizes(0), a.dtype(0))); }

}  // namespace

Table overflow_operators() {
  const auto nothing = [](const Arguments&) {};
  return {
      {"NPUAllocFloatStatus", no_flags},     {"NPUGetFloatStatus", no_flags},
      {"NPUGetFloatStatusV2", no_flags},     {"NPUGetFloatDebugStatus", no_flags},
      {"NPUClearFloatStatus", no_flags},     {"NPUClearFloatStatusV2", nothing},
      {"NPUClearFloatDebugStatus", nothing},
  };
}

}  // namespace cann_host::legacy
