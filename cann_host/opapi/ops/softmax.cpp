#include "opapi/host_functions.h"

namespace cann_host::host {

// The gradient of a softmax that widened its input has the input's narrower dtype.

void SoftmaxBackward(const at::Tensor& gradOutput, const at::Tensor& output, int64_t dim,
                     at::Tensor& gradInput) {
  if (gradInput.scalar_type() == output.scalar_type()) {
    at::_softmax_backward_data_out(gradInput, gradOutput, output, dim, output.scalar_type());
  } else {
    gradInput.copy_(at::_softmax_backward_data(gradOutput, output, dim, output.scalar_type()));
  }
}

void LogSoftmaxBackward(const at::Tensor& gradOutput, const at::Tensor& output, int64_t dim,
                        at::Tensor& gradInput) {
  if (gradInput.scalar_type() == output.scalar_type()) {
    at::_log_softmax_backward_data_out(gradInput, gradOutput, output, dim, output.scalar_type());
  } else {
    gradInput.copy_(at::_log_softmax_backward_data(gradOutput, output, dim, output.scalar_type()));
  }
}

}  // namespace cann_host::host
