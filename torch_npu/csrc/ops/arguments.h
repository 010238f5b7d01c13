// What rows of the op table call to turn PyTorch's arguments into CANN's: codes, defaults, output sizes.
#pragma once

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <optional>
#include <string_view>

namespace torch_npu {

/// Sizes of an output, without a heap allocation.
using Sizes = at::DimVector;

inline bool on_npu(const std::optional<at::Tensor>& tensor) {
  return !tensor.has_value() || tensor->is_privateuseone();
}

/// The dtype of a floating-point function of a tensor of `dtype`: integers give the default dtype.
inline at::ScalarType float_dtype(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/true) ? at::typeMetaToScalarType(at::get_default_dtype())
                                                         : dtype;
}

/// The dtype in which a sum or product of `dtype` is kept unless the caller names one.
inline at::ScalarType sum_dtype(const std::optional<at::ScalarType>& wanted, at::ScalarType dtype) {
  return wanted.value_or(at::isIntegralType(dtype, /*includeBool=*/true) ? at::kLong : dtype);
}

/// The largest finite value, which replaces inf in nan_to_num.
double largest(at::ScalarType dtype);

/// `mode` of aclnnDivMod*; raises for an unknown rounding mode.
int32_t division_mode(const std::optional<std::string_view>& rounding_mode);

/// `reduce` of aclnnScatter*: "add", "multiply".
int64_t scatter_mode(std::string_view reduce);

/// `reduction` of aclnnScatterReduce: "sum", "prod", "amax", "amin", "mean".
int64_t reduction_code(std::string_view reduce);

/// Whether a correction (Bessel's: 1 where not given) is what CANN takes, an integer.
inline bool is_whole(const std::optional<at::Scalar>& correction) {
  return !correction.has_value() || correction->isIntegral(/*includeBool=*/false) ||
         correction->toDouble() == static_cast<double>(static_cast<int64_t>(correction->toDouble()));
}
inline int64_t degrees(const std::optional<at::Scalar>& correction) {
  return correction.has_value() ? static_cast<int64_t>(correction->toDouble()) : 1;
}

/// The dimensions, where none (and an empty list) means all, as an array that CANN takes.
inline at::IntArrayRef dims_or_all(at::OptionalIntArrayRef dims) { return dims.value_or(at::IntArrayRef()); }
inline at::IntArrayRef dims_or_all(const std::optional<int64_t>& dim) {
  return dim.has_value() ? at::IntArrayRef(*dim) : at::IntArrayRef();
}

/// Sizes after a reduction over `dims` (none and empty: all). Raises for dimensions that self does not have.
Sizes reduced_sizes(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim);

Sizes index_select_sizes(const at::Tensor& self, int64_t dim, const at::Tensor& index);
Sizes embedding_sizes(const at::Tensor& weight, const at::Tensor& indices);
Sizes stack_sizes(at::TensorList tensors, int64_t dim);
Sizes repeat_sizes(const at::Tensor& self, at::IntArrayRef repeats);
Sizes padded_sizes(const at::Tensor& self, at::IntArrayRef pad);
Sizes cdist_sizes(const at::Tensor& x1, const at::Tensor& x2);

/// Number of bins of bincount: the largest value + 1, at least minlength. Reads from the device.
int64_t bincount_size(const at::Tensor& self, int64_t minlength);

/// Sum of the repeats of repeat_interleave; reads from the device where the caller did not say it.
int64_t repeat_total(const at::Tensor& repeats, const std::optional<int64_t>& output_size);

/// Checks the arguments of searchsorted as PyTorch does and returns whether the right side is meant.
bool searchsorted_right(const at::Tensor& sorted_sequence, const at::Tensor& self, bool out_int32, bool right,
                        const std::optional<std::string_view>& side, const std::optional<at::Tensor>& sorter);

}  // namespace torch_npu
