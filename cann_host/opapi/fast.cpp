#include "cann_host/opapi/fast.h"

#include <optional>

#include "cann_host/kernels/matvec.h"

namespace cann_host::fast {
namespace {

/// The kernels' name of a dtype, if they have it.
std::optional<kernels::DataType> kernel_type(aclDataType dtype) {
  using enum kernels::DataType;
  switch (dtype) {
    case ACL_FLOAT:
      return float32;
    case ACL_FLOAT16:
      return float16;
    case ACL_BF16:
      return bfloat16;
    case ACL_DOUBLE:
      return float64;
    case ACL_INT32:
      return int32;
    case ACL_INT64:
      return int64;
    case ACL_UINT8:
      return uint8;
    case ACL_BOOL:
      return boolean;
    default:
      return std::nullopt;
  }
}

/// Contiguous and of one shape, whatever the dtypes. The memory may be the same, but must not overlap
/// otherwise.
bool aligned(const aclTensor& a, const aclTensor& b) {
  if (!(a.sizes == b.sizes) || !a.is_contiguous() || !b.is_contiguous()) return false;
  const auto *first = static_cast<const char*>(a.data()), *second = static_cast<const char*>(b.data());
  if (first == second) return element_size(a.dtype) == element_size(b.dtype);
  const auto bytes = [](const aclTensor& t) {
    return t.numel() * static_cast<int64_t>(element_size(t.dtype));
  };
  return first + bytes(a) <= second || second + bytes(b) <= first;
}

/// A real number as the kernels take it; nothing for a complex one.
std::optional<kernels::Scalar> kernel_scalar(const aclScalar& scalar) {
  if (scalar.is_complex()) return std::nullopt;
  if (scalar.is_integral() || scalar.is_bool()) return kernels::Scalar(scalar.integer);
  return kernels::Scalar(scalar.complex.real());
}

/// A factor; a missing one is 1.
std::optional<kernels::Scalar> factor(const aclScalar* alpha) {
  return alpha == nullptr ? std::optional(kernels::Scalar(1)) : kernel_scalar(*alpha);
}

/// Whether tensor op number stays in the tensor's dtype and the number surely fits into it.
bool keeps_type(const aclTensor& self, const aclScalar& other) {
  const bool floating = self.dtype == ACL_FLOAT || self.dtype == ACL_FLOAT16 || self.dtype == ACL_BF16 ||
                        self.dtype == ACL_DOUBLE;
  return floating || (self.dtype == ACL_INT64 && other.is_integral());
}

}  // namespace

bool binary(BinaryOp op, const aclTensor* self, const aclTensor* other, aclTensor* out,
            const aclScalar* alpha) {
  const auto type = kernel_type(self->dtype);
  const auto scale = factor(alpha);
  if (!type || !scale || self->dtype != other->dtype || self->dtype != out->dtype || !aligned(*self, *out) ||
      !aligned(*other, *out)) {
    return false;
  }
  return kernels::binary(op, *type, self->data(), other->data(), out->data(), out->numel(), *scale);
}

bool binary(BinaryOp op, const aclTensor* self, const aclScalar* other, aclTensor* out,
            const aclScalar* alpha) {
  const auto type = kernel_type(self->dtype);
  const auto number = kernel_scalar(*other);
  const auto scale = factor(alpha);
  if (!type || !number || !scale || self->dtype != out->dtype || !keeps_type(*self, *other) ||
      !aligned(*self, *out)) {
    return false;
  }
  return kernels::binary_scalar(op, *type, self->data(), *number, out->data(), out->numel(), *scale);
}

bool compare(CompareOp op, const aclTensor* self, const aclTensor* other, aclTensor* out) {
  const auto type = kernel_type(self->dtype);
  if (!type || self->dtype != other->dtype || out->dtype != ACL_BOOL || !aligned(*self, *out) ||
      !aligned(*other, *out)) {
    return false;
  }
  return kernels::compare(op, *type, self->data(), other->data(), static_cast<bool*>(out->data()),
                          out->numel());
}

bool compare(CompareOp op, const aclTensor* self, const aclScalar* other, aclTensor* out) {
  const auto type = kernel_type(self->dtype);
  const auto number = kernel_scalar(*other);
  if (!type || !number || out->dtype != ACL_BOOL || !keeps_type(*self, *other) || !aligned(*self, *out))
    return false;
  return kernels::compare_scalar(op, *type, self->data(), *number, static_cast<bool*>(out->data()),
                                 out->numel());
}

bool unary(UnaryOp op, const aclTensor* self, aclTensor* out) {
  const auto type = kernel_type(self->dtype);
  if (!type || self->dtype != out->dtype || !aligned(*self, *out)) return false;
  return kernels::unary(op, *type, self->data(), out->data(), out->numel());
}

bool copy(const aclTensor* self, aclTensor* out) {
  const auto from = kernel_type(self->dtype), to = kernel_type(out->dtype);
  if (!from || !to || !aligned(*self, *out)) return false;
  return kernels::cast(*from, self->data(), *to, out->data(), out->numel());
}

bool fill(const aclScalar* value, aclTensor* out) {
  const auto type = kernel_type(out->dtype);
  const auto number = kernel_scalar(*value);
  if (!type || !number || !out->is_contiguous()) return false;
  return kernels::fill(*type, *number, out->data(), out->numel());
}

bool is_one(const aclScalar* factor) {
  const auto number = kernel_scalar(*factor);
  return number && number->real == 1;
}

bool matvec(const aclTensor* self, const aclTensor* mat2, const aclTensor* bias, aclTensor* out) {
  const auto type = kernel_type(self->dtype);
  if (!type || self->sizes.size() != 2 || mat2->sizes.size() != 2 || self->dtype != mat2->dtype ||
      self->dtype != out->dtype || !self->is_contiguous() || !out->is_contiguous()) {
    return false;
  }
  const int64_t rows = self->sizes[0], inner = self->sizes[1], columns = mat2->sizes[1];
  if (rows == 0 || rows > kernels::most_matvec_rows || inner < 2 || columns < 2 || mat2->strides[0] != 1 ||
      mat2->strides[1] < inner) {
    return false;
  }
  if (bias != nullptr && (bias->dtype != self->dtype || bias->sizes.size() != 1 ||
                          bias->sizes[0] != columns || !bias->is_contiguous())) {
    return false;
  }
  return kernels::matvec({*type, *type, self->data(), mat2->data(), bias == nullptr ? nullptr : bias->data(),
                          nullptr, nullptr, out->data(), rows, columns, inner, mat2->strides[1]});
}

}  // namespace cann_host::fast
