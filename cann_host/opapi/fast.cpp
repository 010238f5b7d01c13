#include "cann_host/opapi/fast.h"

#include <algorithm>
#include <optional>

#include "cann_host/kernels/fused.h"
#include "cann_host/kernels/matmul.h"
#include "cann_host/kernels/matvec.h"
#include "cann_host/opapi/fast_types.h"
#include "cann_host/opapi/fractal_nz.h"
#include "cann_host/opapi/transposed_copy.h"

namespace cann_host::fast {
namespace {

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

/// Whether `part` is contiguous and has the last dimensions of `whole`, as a bias has.
bool is_row_of(const aclTensor& part, const aclTensor& whole) {
  const size_t skipped = whole.sizes.size() - std::min(part.sizes.size(), whole.sizes.size());
  return part.numel() > 0 && part.sizes.size() <= whole.sizes.size() && part.is_contiguous() &&
         std::equal(part.sizes.begin(), part.sizes.end(), whole.sizes.begin() + skipped);
}

/// out = self op alpha * other where `other` is the same for each row, and there is little to do.
bool binary_by_rows(BinaryOp op, kernels::DataType type, const aclTensor& self, const aclTensor& other,
                    aclTensor& out, kernels::Scalar alpha) {
  constexpr int64_t most_elements = 32768;  // larger ones are for several threads
  if (out.numel() > most_elements || !is_row_of(other, out) || other.storage == out.storage) return false;
  const int64_t columns = other.numel();
  const auto row_bytes = columns * static_cast<int64_t>(element_size(out.dtype));
  for (int64_t row = 0; row < out.numel() / columns; ++row) {
    const auto* from = static_cast<const char*>(self.data()) + row * row_bytes;
    auto* to = static_cast<char*>(out.data()) + row * row_bytes;
    if (!kernels::binary(op, type, from, other.data(), to, columns, alpha)) return false;
  }
  return true;
}

/// The distance of neighbours in memory, in elements, if it is the same for all; else 0.
int64_t even_stride(const aclTensor& tensor) {
  int64_t stride = 0, extent = 1;
  for (size_t d = tensor.sizes.size(); d-- > 0;) {
    if (tensor.sizes[d] == 1) continue;
    if (stride == 0) stride = tensor.strides[d];
    if (tensor.strides[d] != stride * extent) return 0;
    extent *= tensor.sizes[d];
  }
  return stride;
}

/// Elements up to which a tensor with gaps is gathered before its operator.
constexpr int64_t most_gathered = 1024;

/// Whether the tensor has few elements, evenly spaced, and none of them in the memory of `out`.
bool is_gatherable(const aclTensor& tensor, const aclTensor& out) {
  return tensor.sizes == out.sizes && out.is_contiguous() && tensor.numel() <= most_gathered &&
         tensor.storage != out.storage && even_stride(tensor) > 0;
}

template <class Word>
void gather_words(const aclTensor& tensor, void* to) {
  const int64_t stride = even_stride(tensor), count = tensor.numel();
  const auto* from = static_cast<const Word*>(tensor.data());
  for (int64_t i = 0; i < count; ++i) static_cast<Word*>(to)[i] = from[i * stride];
}

void gather(const aclTensor& tensor, void* to) {
  switch (element_size(tensor.dtype)) {
    case 1:
      return gather_words<uint8_t>(tensor, to);
    case 2:
      return gather_words<uint16_t>(tensor, to);
    case 4:
      return gather_words<uint32_t>(tensor, to);
    default:
      return gather_words<uint64_t>(tensor, to);
  }
}

}  // namespace

bool binary(BinaryOp op, const aclTensor* self, const aclTensor* other, aclTensor* out,
            const aclScalar* alpha) {
  const auto type = kernel_type(self->dtype);
  const auto scale = factor(alpha);
  if (!type || !scale || self->dtype != other->dtype || self->dtype != out->dtype || !aligned(*self, *out)) {
    return false;
  }
  if (!aligned(*other, *out)) {
    if (!is_gatherable(*other, *out)) return binary_by_rows(op, *type, *self, *other, *out, *scale);
    uint64_t gathered[most_gathered];
    gather(*other, gathered);
    return kernels::binary(op, *type, self->data(), gathered, out->data(), out->numel(), *scale);
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
  if (!type || self->dtype != out->dtype) return false;
  if (aligned(*self, *out)) return kernels::unary(op, *type, self->data(), out->data(), out->numel());
  if (!is_gatherable(*self, *out)) return false;
  gather(*self, out->data());
  return kernels::unary(op, *type, out->data(), out->data(), out->numel());
}

bool copy(const aclTensor* self, aclTensor* out) {
  const auto from = kernel_type(self->dtype), to = kernel_type(out->dtype);
  if (!from || !to) return false;
  if (!aligned(*self, *out)) return copy_transposed(*self, *out);
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

namespace {

bool is_bias(const aclTensor& bias, const aclTensor& out) {
  return bias.dtype == out.dtype && bias.sizes.size() == 1 &&
         bias.sizes[0] == out.sizes[out.sizes.size() - 1] && bias.is_contiguous();
}

/// Matrices, or batches of them, as strides.
kernels::SmallMatmul small_product(kernels::DataType type, const aclTensor& a, const aclTensor& b,
                                   const aclTensor* bias, aclTensor& c) {
  const size_t rank = c.sizes.size(), row = rank - 2, column = rank - 1;
  // A batch of one matrix is read for each of the other's.
  const auto batch_stride = [&](const aclTensor& t) {
    return rank == 3 && t.sizes[0] > 1 ? t.strides[0] : 0;
  };
  return {.type = type,
          .a = a.data(),
          .b = b.data(),
          .bias = bias == nullptr ? nullptr : bias->data(),
          .c = c.data(),
          .batches = rank == 3 ? c.sizes[0] : 1,
          .rows = a.sizes[row],
          .inner = a.sizes[column],
          .columns = b.sizes[column],
          .a_batch = batch_stride(a),
          .a_row = a.strides[row],
          .a_inner = a.strides[column],
          .b_batch = batch_stride(b),
          .b_inner = b.strides[row],
          .b_column = b.strides[column]};
}

}  // namespace

bool matmul(const aclTensor* self, const aclTensor* mat2, const aclTensor* bias, aclTensor* out) {
  if (is_fractal_nz(*mat2)) return matmul_fractal_nz(*self, *mat2, bias, *out);
  const auto type = kernel_type(self->dtype);
  const size_t rank = out->sizes.size();
  if (!type || rank < 2 || rank > 3 || self->sizes.size() != rank || mat2->sizes.size() != rank ||
      self->dtype != mat2->dtype || self->dtype != out->dtype || !out->is_contiguous() || out->numel() == 0 ||
      self->numel() == 0 || (bias != nullptr && !is_bias(*bias, *out))) {
    return false;
  }
  const kernels::SmallMatmul product = small_product(*type, *self, *mat2, bias, *out);
  const bool reads_most = rank == 2 && product.rows <= kernels::most_matvec_rows && self->is_contiguous() &&
                          product.b_inner == 1 && product.b_column >= product.inner;
  const int64_t most = reads_most ? kernels::most_small_weight : kernels::most_small_multiplications;
  if (product.batches * product.rows * product.inner * product.columns <= most &&
      kernels::small_matmul(product)) {
    return true;
  }
  if (!reads_most) return false;
  return kernels::matvec({*type, *type, product.a, product.b, product.bias, nullptr, nullptr, product.c,
                          product.rows, product.columns, product.inner, product.b_column});
}

bool layer_norm(const aclTensor* input, const aclIntArray* normalizedShape, const aclTensor* weight,
                const aclTensor* bias, double epsilon, aclTensor* out, const aclTensor* mean,
                const aclTensor* rstd) {
  const auto type = kernel_type(input->dtype);
  int64_t columns = 1;
  for (int64_t size : normalizedShape->values) columns *= size;
  const auto is_parameter = [&](const aclTensor* t) {
    return t == nullptr || (t->dtype == input->dtype && t->is_contiguous() && t->numel() == columns);
  };
  const auto is_statistic = [&](const aclTensor* t) {
    return t != nullptr && t->dtype == ACL_FLOAT && t->is_contiguous() &&
           t->numel() * columns == input->numel();
  };
  if (!type || !kernels::is_fused_type(*type) || input->dtype != out->dtype || !aligned(*input, *out) ||
      columns == 0 || !is_parameter(weight) || !is_parameter(bias) || !is_statistic(mean) ||
      !is_statistic(rstd)) {
    return false;
  }
  kernels::Norm call{};
  call.type = call.parameter_type = *type;
  call.x = input->data();
  call.gamma = weight == nullptr ? nullptr : weight->data();
  call.beta = bias == nullptr ? nullptr : bias->data();
  call.y = out->data();
  call.mean = static_cast<float*>(mean->data());
  call.rstd = static_cast<float*>(rstd->data());
  call.rows = input->numel() / columns;
  call.columns = columns;
  call.epsilon = static_cast<float>(epsilon);
  call.centered = true;
  kernels::norm(call);
  return true;
}

}  // namespace cann_host::fast
