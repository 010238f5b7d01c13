#include "torch_npu/csrc/ops/nn_sizes.h"

#include <ATen/native/Pool.h>

#include <cmath>

#include "torch_npu/csrc/dispatch/outputs.h"

namespace torch_npu {

at::DimVector pad_sizes(const at::Tensor& self, at::IntArrayRef padding) {
  at::DimVector sizes(self.sizes());
  TORCH_CHECK(padding.size() % 2 == 0 && padding.size() / 2 <= sizes.size(), "padding has ", padding.size(),
              " numbers; a tensor of ", self.dim(), " dimensions takes an even number of at most ",
              2 * self.dim());
  for (size_t i = 0; i < padding.size() / 2; ++i) {
    sizes[sizes.size() - 1 - i] += padding[2 * i] + padding[2 * i + 1];
  }
  return sizes;
}

at::DimVector max_pool3d_sizes(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                               at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const auto at = [](at::IntArrayRef values, size_t i) { return values[values.size() == 1 ? 0 : i]; };
  for (const auto& [name, values] : {std::pair("kernel_size", kernel_size), std::pair("stride", stride),
                                     std::pair("padding", padding), std::pair("dilation", dilation)}) {
    TORCH_CHECK(values.size() == 1 || values.size() == 3, "max_pool3d: ", name,
                " must either be a single int, or a tuple of three ints");
  }
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5, "max_pool3d: Expected 4D or 5D tensor for input, got ",
              self.sizes());
  at::DimVector sizes(self.sizes());
  for (size_t i = 0; i < 3; ++i) {
    int64_t& size = sizes[sizes.size() - 3 + i];
    size = at::native::pooling_output_shape<int64_t>(size, at(kernel_size, i), at(padding, i), at(stride, i),
                                                     at(dilation, i), ceil_mode);
  }
  return sizes;
}

std::vector<at::Tensor> new_outputs_like(at::TensorList tensors) {
  std::vector<at::Tensor> outputs;
  outputs.reserve(tensors.size());
  for (const auto& tensor : tensors) outputs.push_back(new_output_like(tensor, tensor.scalar_type()));
  return outputs;
}

int64_t windows_of(at::IntArrayRef plane, at::IntArrayRef kernel, at::IntArrayRef dilation,
                   at::IntArrayRef padding, at::IntArrayRef stride) {
  int64_t windows = 1;
  for (const auto& sizes : {plane, kernel, dilation, padding, stride}) {
    if (sizes.size() != 2) return 0;
  }
  for (size_t i = 0; i < 2; ++i) {
    if (kernel[i] <= 0 || dilation[i] <= 0 || padding[i] < 0 || stride[i] <= 0) return 0;
    const int64_t places = plane[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
    if (places < 0) return 0;
    windows *= places / stride[i] + 1;
  }
  return windows;
}

at::DimVector im2col_sizes(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation,
                           at::IntArrayRef padding, at::IntArrayRef stride) {
  at::DimVector sizes(self.sizes());
  const int64_t windows = windows_of(self.sizes().slice(self.dim() - 2), kernel, dilation, padding, stride);
  sizes.pop_back();
  sizes.end()[-2] *= kernel[0] * kernel[1];
  sizes.back() = windows;
  return sizes;
}

at::DimVector col2im_sizes(const at::Tensor& self, at::IntArrayRef output_size, at::IntArrayRef kernel) {
  at::DimVector sizes(self.sizes());
  sizes.end()[-2] /= kernel[0] * kernel[1];
  sizes.back() = output_size[0];
  sizes.push_back(output_size[1]);
  return sizes;
}

bool is_nearest_in_float32(int64_t size, int64_t output_size, const std::optional<double>& scale) {
  if (!scale.has_value() || size == output_size) return true;
  const auto exact = static_cast<float>(1.0 / *scale);
  const auto rounded = static_cast<float>(1.0 / static_cast<float>(*scale));
  if (exact == rounded) return true;
  for (int64_t i = 0; i < output_size; ++i) {
    if (std::floor(i * exact) != std::floor(i * rounded)) return false;
  }
  return true;
}

}  // namespace torch_npu
