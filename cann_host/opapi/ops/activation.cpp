#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// The slope of each channel, with dimensions of size 1 wherever `self` has others than channels.
at::Tensor slope_like(const at::Tensor& weight, const at::Tensor& self) {
  std::vector<int64_t> sizes(self.dim(), 1);
  if (self.dim() > 0) sizes[self.dim() > 1 ? 1 : 0] = weight.numel();
  return weight.reshape(sizes);
}

}  // namespace

void Prelu(const at::Tensor& self, const at::Tensor& weight, at::Tensor& out) {
  const Placement placement({out});
  assign(out, at::_prelu_kernel(self, slope_like(weight, self)));
}

void PreluBackward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor& weight,
                   at::Tensor& gradInput, at::Tensor& gradWeight) {
  const Placement placement({gradInput});
  const auto slope = slope_like(weight, self);
  const auto [grad_input, grad_slope] = at::_prelu_kernel_backward(gradOutput, self, slope);
  assign(gradInput, grad_input);
  gradWeight.copy_(grad_slope.sum_to_size(slope.sizes()).view(gradWeight.sizes()));
}

}  // namespace cann_host::host
