// Sizes, layouts and conditions of neural-network operators that are not structured in PyTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/ForeachUtils.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

namespace torch_npu {

/// The dtypes that most of CANN's operators on neural networks take, as a mask of at::ScalarType.
inline constexpr uint64_t kHalfAndFloat = 1 << static_cast<int>(at::kHalf) |
                                          1 << static_cast<int>(at::kFloat) |
                                          1 << static_cast<int>(at::kBFloat16);

/// 1 mean, 2 sum: a number; 0 none: the size of self.
inline at::DimVector loss_sizes(const at::Tensor& self, int64_t reduction) {
  return reduction == 0 ? at::DimVector(self.sizes()) : at::DimVector();
}

/// The sizes of self with the last ones replaced.
inline at::DimVector with_spatial(const at::Tensor& self, at::IntArrayRef spatial) {
  at::DimVector sizes(self.sizes());
  std::copy(spatial.begin(), spatial.end(), sizes.end() - std::min(sizes.size(), spatial.size()));
  return sizes;
}

/// Sizes after padding the last dimensions by (left, right) pairs, the last dimension first.
at::DimVector pad_sizes(const at::Tensor& self, at::IntArrayRef padding);

/// Sizes of max_pool3d; checks the arguments as PyTorch does.
at::DimVector max_pool3d_sizes(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                               at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode);

/// The window moves by its own size where no stride is given.
inline at::IntArrayRef stride_or_kernel(at::IntArrayRef stride, at::IntArrayRef kernel_size) {
  return stride.empty() ? kernel_size : stride;
}

/// A scale that is not given is 0 for CANN (-1 for operators whose documentation says so).
inline double scale_or(const std::optional<double>& scale, double missing) { return scale.value_or(missing); }

/// How many windows of two dimensions fit into a plane; 0 where PyTorch refuses the arguments, or none fits.
int64_t windows_of(at::IntArrayRef plane, at::IntArrayRef kernel, at::IntArrayRef dilation,
                   at::IntArrayRef padding, at::IntArrayRef stride);

/// A column of numbers for each window: [(N,) channels * kernel elements, windows].
at::DimVector im2col_sizes(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef dilation,
                           at::IntArrayRef padding, at::IntArrayRef stride);

/// The plane that such columns are added up in: [(N,) channels, height, width].
at::DimVector col2im_sizes(const at::Tensor& self, at::IntArrayRef output_size, at::IntArrayRef kernel);

/// Whether the nearest elements of a dimension are the same by a scale in float32, as CANN takes it: by 1.7
/// they are not.
bool is_nearest_in_float32(int64_t size, int64_t output_size, const std::optional<double>& scale);

inline bool same_dtype(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type();
}

/// Whether lists of tensors (and numbers) can be one operator: no promotion, the same shapes and layouts.
inline bool fits_foreach(at::ArrayRef<at::TensorList> lists, at::ArrayRef<at::Scalar> scalars = {}) {
  for (const auto& list : lists) {
    if (list.empty() || list.size() != lists[0].size()) return false;
  }
  if (!scalars.empty() && scalars.size() != 1 && scalars.size() != lists[0].size()) return false;
  return lists[0][0].is_privateuseone() && at::native::can_use_fast_route(lists, scalars);
}

std::vector<at::Tensor> new_outputs_like(at::TensorList tensors);

/// CANN's list operators take 48 tensors in all: runs call(start, count) over slices of the lists.
template <class Call>
void for_slices(size_t size, size_t lists, const Call& call) {
  constexpr size_t kMaxTensors = 48;
  const size_t step = kMaxTensors / lists;
  for (size_t start = 0; start < size; start += step) call(start, std::min(step, size - start));
}

}  // namespace torch_npu
