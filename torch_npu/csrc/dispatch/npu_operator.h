// What generated operators of torch.ops.npu use (opspec/npu.py): shapes that are numbers or symbols, and
// checks that kernels and meta functions share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "torch_npu/csrc/dispatch/outputs.h"

namespace torch_npu {

inline const at::Tensor& tensor_or_none(const at::Tensor& tensor) { return tensor; }
inline at::Tensor tensor_or_none(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

inline bool given(const at::Tensor& tensor) { return tensor.defined(); }
inline bool given(const std::optional<at::Tensor>& tensor) { return tensor.has_value() && tensor->defined(); }
inline bool given(at::OptionalIntArrayRef list) { return list.has_value(); }
template <class T>
bool given(const std::optional<T>& value) {
  return value.has_value();
}

/// The list, empty where none is given.
inline at::IntArrayRef list_or_empty(at::OptionalIntArrayRef list) {
  return list.has_value() ? *list : at::IntArrayRef();
}

/// A short list of sizes; Int is int64_t or c10::SymInt.
template <class Int>
class SizeList {
 public:
  SizeList() = default;
  SizeList(at::ArrayRef<Int> values) : values_(values.begin(), values.end()) {}
  template <class T>
    requires(!std::is_same_v<T, Int>)
  explicit SizeList(at::ArrayRef<T> values) : values_(values.begin(), values.end()) {}

  SizeList&& append(Int value) && {
    values_.push_back(std::move(value));
    return std::move(*this);
  }
  SizeList&& extend(const SizeList& more) && {
    values_.append(more.values_.begin(), more.values_.end());
    return std::move(*this);
  }
  operator at::ArrayRef<Int>() const { return values_; }

 private:
  c10::SmallVector<Int, 6> values_;
};

template <class Int>
at::ArrayRef<Int> shape_of(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, c10::SymInt>) {
    return tensor.sym_sizes();
  } else {
    return tensor.sizes();
  }
}
/// Empty for a tensor that is not given.
template <class Int>
at::ArrayRef<Int> shape_of(const std::optional<at::Tensor>& tensor) {
  return given(tensor) ? shape_of<Int>(*tensor) : at::ArrayRef<Int>();
}

template <class Int>
Int count_of(const at::Tensor& tensor) {
  if constexpr (std::is_same_v<Int, c10::SymInt>) {
    return tensor.sym_numel();
  } else {
    return tensor.numel();
  }
}

/// 0 for a tensor that is not given.
template <class Int>
Int count_of(const std::optional<at::Tensor>& tensor) {
  return given(tensor) ? count_of<Int>(*tensor) : Int(0);
}

inline int64_t rank_of(const at::Tensor& tensor) { return tensor.dim(); }
inline int64_t rank_of(const std::optional<at::Tensor>& tensor) { return given(tensor) ? tensor->dim() : 0; }

inline at::ScalarType dtype_of(const at::Tensor& tensor) { return tensor.scalar_type(); }
inline at::ScalarType dtype_of(const std::optional<at::Tensor>& tensor) {
  return given(tensor) ? tensor->scalar_type() : at::ScalarType::Undefined;
}

/// The dtype that an `int dtype` argument names, as torch.dtype arrives there.
at::ScalarType dtype_named(const char* op, int64_t number);
inline at::ScalarType dtype_named(const char* op, std::optional<int64_t> number, at::ScalarType otherwise) {
  return number.has_value() ? dtype_named(op, *number) : otherwise;
}

inline constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

/// list[index], as in Python.
template <class Int>
Int entry(at::ArrayRef<std::type_identity_t<Int>> list, int64_t index) {
  const auto size = static_cast<int64_t>(list.size());
  TORCH_CHECK_VALUE(-size <= index && index < size, "there is no dimension ", index, " in ", list);
  return list[index < 0 ? index + size : index];
}

/// list[start:end], as in Python.
template <class Int>
SizeList<Int> part(at::ArrayRef<std::type_identity_t<Int>> list, int64_t start, int64_t end) {
  const auto size = static_cast<int64_t>(list.size());
  const auto place = [size](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t first = place(start), last = std::max(first, place(end));
  return SizeList<Int>(list.slice(first, last - first));
}

template <class Int>
bool equal(at::ArrayRef<std::type_identity_t<Int>> a, at::ArrayRef<std::type_identity_t<Int>> b) {
  return a.equals(b);
}

/// count times the number.
template <class Int>
SizeList<Int> repeat(int64_t number, int64_t count) {
  SizeList<Int> list;
  for (int64_t i = 0; i < count; ++i) list = std::move(list).append(Int(number));
  return list;
}

/// The list with another entry at index, as in Python.
template <class Int>
SizeList<Int> with(at::ArrayRef<std::type_identity_t<Int>> list, int64_t index, Int value) {
  const auto size = static_cast<int64_t>(list.size());
  const int64_t place = index < 0 ? index + size : index;
  return part<Int>(list, 0, place).append(std::move(value)).extend(part<Int>(list, place + 1, kEnd));
}

/// A new contiguous tensor beside `like`: on the device, or without memory for symbolic sizes.
template <class Int>
at::Tensor new_result(const SizeList<Int>& sizes, at::ScalarType dtype, const at::Tensor& like) {
  if constexpr (std::is_same_v<Int, c10::SymInt>) {
    return at::empty_symint(c10::SymIntArrayRef(at::ArrayRef<Int>(sizes)),
                            at::TensorOptions().dtype(dtype).device(like.device()));
  } else {
    return new_output(sizes, dtype, like);
  }
}

/// "self float32[2, 3], gamma none": the arguments as errors show them.
std::string describe(std::initializer_list<std::pair<const char*, at::Tensor>> tensors);

/// Raises TypeError unless the tensor (if given) has one of the dtypes; bit i stands for at::ScalarType i.
void check_dtype(const char* op, const char* name, const at::Tensor& tensor, uint64_t allowed);
void check_dtype(const char* op, const char* name, const std::optional<at::Tensor>& tensor, uint64_t allowed);
void check_dtype(const char* op, const char* name, at::TensorList tensors, uint64_t allowed);
void check_dtype(const char* op, const char* name, const std::optional<at::TensorList>& tensors,
                 uint64_t allowed);

}  // namespace torch_npu
