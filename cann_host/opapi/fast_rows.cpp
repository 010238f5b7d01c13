// Direct routes of operators that move rows or fold them.

#include <algorithm>
#include <cstring>

#include "cann_host/kernels/fused.h"
#include "cann_host/opapi/fast.h"
#include "cann_host/opapi/fast_types.h"

namespace cann_host::fast {
namespace {

/// Elements up to which one thread is fastest, and a plain sum is as exact as ATen's in pieces.
constexpr int64_t most_folded = 32768;

int64_t bytes_of(const aclTensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(element_size(tensor.dtype));
}

/// The number of elements of a tensor before, in and behind some neighbouring dimensions.
struct Section {
  int64_t before = 1, inside = 1, behind = 1;
};

/// Empty `dims`: all dimensions. Nothing if they are not neighbours.
std::optional<Section> section(const aclTensor& tensor, const aclIntArray& dims) {
  const auto rank = static_cast<int64_t>(tensor.sizes.size());
  uint64_t chosen = dims.values.empty() ? ~uint64_t{0} : 0;
  for (int64_t dim : dims.values) chosen |= uint64_t{1} << (dim < 0 ? dim + rank : dim);
  Section result;
  bool began = false, ended = false;
  for (int64_t d = 0; d < rank; ++d) {
    const bool is_chosen = chosen >> d & 1;
    if (is_chosen && ended) return std::nullopt;
    ended = ended || (began && !is_chosen);
    began = began || is_chosen;
    (is_chosen ? result.inside : began ? result.behind : result.before) *= tensor.sizes[d];
  }
  return result;
}

/// Contiguous rows of a dtype, not too many; their results lie elsewhere.
std::optional<Section> foldable(const aclTensor& self, const aclIntArray& dims, const aclTensor& out) {
  const auto type = kernel_type(self.dtype);
  if (!type || !kernels::is_fused_type(*type) || self.dtype != out.dtype || self.numel() == 0 ||
      self.numel() > most_folded || !self.is_contiguous() || !out.is_contiguous() ||
      self.storage == out.storage) {
    return std::nullopt;
  }
  return section(self, dims);
}

/// Over the last dimensions.
bool fold(kernels::Fold how, const aclTensor& self, const Section& s, aclTensor& out, float scale) {
  if (s.behind != 1) return false;
  kernels::fold_rows({.type = *kernel_type(self.dtype),
                      .fold = how,
                      .x = self.data(),
                      .y = out.data(),
                      .rows = s.before,
                      .columns = s.inside,
                      .scale = scale});
  return true;
}

/// The sum of a few float32 rows, as a bias gets for its gradient.
bool add_rows(const aclTensor& self, const Section& s, aclTensor& out) {
  constexpr int64_t most_rows = 64;
  if (self.dtype != ACL_FLOAT || s.before != 1 || s.inside > most_rows) return false;
  const auto* row = static_cast<const float*>(self.data());
  auto* sum = static_cast<float*>(out.data());
  std::memcpy(sum, row, s.behind * sizeof(float));
  for (int64_t r = 1; r < s.inside; ++r) {
    row += s.behind;
    kernels::binary(kernels::BinaryOp::add, kernels::DataType::float32, sum, row, sum, s.behind,
                    kernels::Scalar(1));
  }
  return true;
}

}  // namespace

bool sum(const aclTensor* self, const aclIntArray* dims, aclDataType dtype, aclTensor* out) {
  const auto found = foldable(*self, *dims, *out);
  if (!found || dtype != out->dtype) return false;
  return fold(kernels::Fold::sum, *self, *found, *out, 1) || add_rows(*self, *found, *out);
}

bool mean(const aclTensor* self, const aclIntArray* dims, aclDataType dtype, aclTensor* out) {
  const auto found = foldable(*self, *dims, *out);
  if (!found || dtype != out->dtype) return false;
  return fold(kernels::Fold::sum, *self, *found, *out, 1.0f / static_cast<float>(found->inside));
}

bool maximum(const aclTensor* self, const aclIntArray* dims, aclTensor* out) {
  const auto found = foldable(*self, *dims, *out);
  return found && fold(kernels::Fold::maximum, *self, *found, *out, 1);
}

bool softmax(const aclTensor* self, int64_t dim, aclTensor* out) {
  const auto type = kernel_type(self->dtype);
  const auto rank = static_cast<int64_t>(self->sizes.size());
  if (!type || !kernels::is_fused_type(*type) || rank == 0 || (dim != -1 && dim != rank - 1) ||
      self->dtype != out->dtype || !aligned(*self, *out) || self->numel() == 0) {
    return false;
  }
  kernels::MaskedSoftmax call{};
  call.type = *type;
  call.x = self->data();
  call.y = out->data();
  call.columns = self->sizes[rank - 1];
  call.sizes[0] = call.sizes[1] = 1;
  call.sizes[2] = self->numel() / call.columns;
  call.scale = 1;
  kernels::masked_softmax(call);
  return true;
}

bool index_copy(aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source) {
  const auto rank = static_cast<int64_t>(self->sizes.size());
  if (dim < 0) dim += rank;
  if (rank == 0 || source->sizes.size() != self->sizes.size() || self->dtype != source->dtype ||
      index->dtype != ACL_INT64 || index->sizes.size() != 1 || source->sizes[dim] != index->sizes[0] ||
      !self->is_contiguous() || !source->is_contiguous() || !index->is_contiguous()) {
    return false;
  }
  int64_t outer = 1, inner = static_cast<int64_t>(element_size(self->dtype));
  for (int64_t d = 0; d < rank; ++d) {
    if (d != dim && self->sizes[d] != source->sizes[d]) return false;
    if (d < dim) outer *= self->sizes[d];
    if (d > dim) inner *= self->sizes[d];
  }
  const int64_t rows = self->sizes[dim], count = index->sizes[0];
  const auto* places = static_cast<const int64_t*>(index->data());
  for (int64_t i = 0; i < count; ++i) {
    if (places[i] < 0 || places[i] >= rows) return false;
  }
  const auto* from = static_cast<const char*>(source->data());
  auto* to = static_cast<char*>(self->data());
  for (int64_t n = 0; n < outer; ++n) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + (n * rows + places[i]) * inner, from + (n * count + i) * inner, inner);
    }
  }
  return true;
}

bool zero(aclTensor* self) {
  // Larger ones are for several threads.
  constexpr int64_t most_bytes = int64_t{1} << 18;
  const int64_t bytes = self->numel() * static_cast<int64_t>(element_size(self->dtype));
  if (!self->is_contiguous() || bytes > most_bytes) return false;
  if (bytes > 0) std::memset(self->data(), 0, bytes);
  return true;
}

bool embedding(const aclTensor* weight, const aclTensor* indices, aclTensor* out) {
  // More of them are for several threads.
  constexpr int64_t most_bytes = int64_t{1} << 18;
  if (indices->dtype != ACL_INT64 || weight->dtype != out->dtype || !weight->is_contiguous() ||
      !indices->is_contiguous() || !out->is_contiguous() || bytes_of(*out) > most_bytes ||
      out->storage == weight->storage) {
    return false;
  }
  const int64_t rows = weight->sizes[0], count = indices->numel();
  const int64_t row_bytes = weight->sizes[1] * static_cast<int64_t>(element_size(weight->dtype));
  const auto* places = static_cast<const int64_t*>(indices->data());
  if (count * row_bytes != bytes_of(*out) ||
      std::any_of(places, places + count, [=](int64_t i) { return i < 0 || i >= rows; })) {
    return false;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<char*>(out->data()) + i * row_bytes,
                static_cast<const char*>(weight->data()) + places[i] * row_bytes, row_bytes);
  }
  return true;
}

bool cat(const aclTensorList* tensors, int64_t dim, aclTensor* out) {
  constexpr int64_t most_bytes = int64_t{1} << 18;
  const auto rank = static_cast<int64_t>(out->sizes.size());
  if (dim < 0) dim += rank;
  if (!out->is_contiguous() || bytes_of(*out) > most_bytes) return false;
  int64_t outer = 1, behind = static_cast<int64_t>(element_size(out->dtype)), joined = 0;
  for (int64_t d = 0; d < rank; ++d) (d < dim ? outer : behind) *= d == dim ? 1 : out->sizes[d];
  for (const auto& tensor : tensors->values) {
    if (tensor.get()->dtype != out->dtype || tensor.get()->sizes.size() != out->sizes.size() ||
        !tensor.get()->is_contiguous() || tensor.get()->storage == out->storage) {
      return false;
    }
    for (int64_t d = 0; d < rank; ++d) {
      if (d != dim && tensor.get()->sizes[d] != out->sizes[d]) return false;
    }
    joined += tensor.get()->sizes[dim];
  }
  if (joined != out->sizes[dim]) return false;
  auto* to = static_cast<char*>(out->data());
  for (const auto& tensor : tensors->values) {
    const int64_t piece = tensor.get()->sizes[dim] * behind;
    const auto* from = static_cast<const char*>(tensor.get()->data());
    for (int64_t n = 0; n < outer && piece > 0; ++n) {
      std::memcpy(to + n * joined * behind, from + n * piece, piece);
    }
    to += piece;
  }
  return true;
}

}  // namespace cann_host::fast
