#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// A large volume that ATen takes for a small one, as it leaves the last dimension out where it counts: its
/// own loops take up to five times as long as oneDNN.
bool is_underrated(const at::Tensor& input, const at::Tensor& weight, bool transposed) {
  constexpr int64_t small = 20480;  // elements up to which ATen's loops are faster
  if (transposed || input.dim() != 5 || input.size(0) != 1 || input.scalar_type() != at::kFloat) return false;
  const bool pointwise = weight[0][0].numel() == 1;
  return !pointwise && input.numel() > small && at::globalContext().userEnabledMkldnn() &&
         at::globalContext().hasMKLDNN();
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                    bool transposed, at::IntArrayRef outputPadding, int64_t groups) {
  if (is_underrated(input, weight, transposed)) {
    return at::mkldnn_convolution(input, weight, bias, padding, stride, dilation, groups);
  }
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, outputPadding, groups);
}

}  // namespace

void Convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                 at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                 at::IntArrayRef outputPadding, int64_t groups, at::Tensor& output, int8_t) {
  const Placement placement({output});
  static constexpr std::array<int64_t, 2> unpadded{0, 0};
  auto image = exact(input);
  auto around = padding;
  if (padding.size() == 4 && input.dim() == 4) {  // top, bottom, left, right
    image = at::constant_pad_nd(image, {padding[2], padding[3], padding[0], padding[1]});
    around = unpadded;
  }
  assign(output, convolve(image, exact(weight), bias.has_value() ? std::optional(exact(*bias)) : bias, stride,
                          around, dilation, transposed, outputPadding, groups));
}

void ConvolutionBackward(const at::Tensor& gradOutput, const at::Tensor& input, const at::Tensor& weight,
                         at::OptionalIntArrayRef biasSizes, at::IntArrayRef stride, at::IntArrayRef padding,
                         at::IntArrayRef dilation, bool transposed, at::IntArrayRef outputPadding,
                         int64_t groups, const std::vector<bool>& outputMask, int8_t,
                         const std::optional<at::Tensor>& gradInput,
                         const std::optional<at::Tensor>& gradWeight,
                         const std::optional<at::Tensor>& gradBias) {
  const Placement placement(
      {detail::wanted(gradInput), detail::wanted(gradWeight), detail::wanted(gradBias)});
  assign(std::tie(gradInput, gradWeight, gradBias),
         at::convolution_backward(exact(gradOutput), exact(input), exact(weight), biasSizes, stride, padding,
                                  dilation, transposed, outputPadding, groups,
                                  {outputMask[0], outputMask[1], outputMask[2]}));
}

}  // namespace cann_host::host
