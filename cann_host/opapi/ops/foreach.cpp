#include "opapi/host_functions.h"

namespace cann_host::host {

void ForeachRoundOffNumberV2(const std::vector<at::Tensor>& x, const at::Scalar& roundMode,
                             std::vector<at::Tensor>& out) {
  const int64_t mode = roundMode.toLong();
  for (size_t i = 0; i < out.size(); ++i) {
    switch (mode) {
      case 1:
        at::round_out(out[i], x[i]);
        break;
      case 2:
        at::floor_out(out[i], x[i]);
        break;
      case 3:
        at::ceil_out(out[i], x[i]);
        break;
      case 5:
        at::trunc_out(out[i], x[i]);
        break;
      case 7:
        at::frac_out(out[i], x[i]);
        break;
      default:
        TORCH_CHECK(false, "roundMode is ", mode, "; known: 1 round, 2 floor, 3 ceil, 5 trunc, 7 frac");
    }
  }
}

}  // namespace cann_host::host
