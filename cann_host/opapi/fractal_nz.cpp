#include "cann_host/opapi/fractal_nz.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "cann/format_cast.h"
#include "cann_host/kernels/fractal_nz.h"
#include "cann_host/opapi/arguments.h"
#include "cann_host/opapi/fast_types.h"
#include "cann_host/opapi/host.h"
#include "cann_host/runtime/task.h"

namespace cann_host {
namespace {

bool is_transposed(const aclTensor& tensor) { return !tensor.is_contiguous(); }

/// The matrix as it was packed: of a transposed descriptor the transpose.
kernels::FractalNz layout_of(const aclTensor& tensor) {
  const size_t rank = tensor.sizes.size();
  const int64_t last = tensor.sizes[rank - 1], before = tensor.sizes[rank - 2];
  kernels::FractalNz layout{static_cast<int64_t>(element_size(tensor.dtype)), 1, before, last};
  for (size_t i = 0; i + 2 < rank; ++i) layout.batches *= tensor.sizes[i];
  if (is_transposed(tensor)) std::swap(layout.rows, layout.columns);
  return layout;
}

}  // namespace

bool describes_fractal_nz(const aclTensor& tensor) {
  const size_t rank = tensor.sizes.size();
  if (rank < 2 || tensor.offset != 0) return false;
  if (tensor.is_contiguous()) return true;
  return rank == 2 && tensor.strides[0] == 1 && tensor.strides[1] == tensor.sizes[0];
}

std::vector<int64_t> fractal_nz_storage(at::IntArrayRef sizes, size_t element_bytes) {
  const size_t rank = sizes.size();
  const kernels::FractalNz layout{static_cast<int64_t>(element_bytes), 1, sizes[rank - 2], sizes[rank - 1]};
  std::vector<int64_t> storage(sizes.begin(), sizes.end() - 2);
  storage.insert(storage.end(), {layout.column_blocks(), layout.row_blocks(), kernels::FractalNz::block_rows,
                                 kernels::FractalNz::block_columns(layout.element_bytes)});
  return storage;
}

at::Tensor unpacked(const aclTensor& tensor) {
  const auto layout = layout_of(tensor);
  std::vector<int64_t> sizes(tensor.sizes.begin(), tensor.sizes.end());
  if (is_transposed(tensor)) std::swap(sizes[0], sizes[1]);
  at::Tensor plain = at::empty(sizes, to_aten(tensor.dtype));
  kernels::unpack(layout, tensor.data(), plain.mutable_data_ptr());
  return is_transposed(tensor) ? plain.t() : plain;
}

namespace fast {

namespace {

/// Columns [first, first + columns) of a packed matrix, plain, in `memory`: a part that stays in the cache
/// while it is multiplied, where the whole would be written to memory and read again.
at::Tensor unpacked_columns(const aclTensor& mat2, int64_t first, int64_t columns, const at::Tensor& memory) {
  kernels::FractalNz layout = layout_of(mat2);
  const auto* packed = static_cast<const char*>(mat2.data());
  if (is_transposed(mat2)) {
    const at::Tensor plain = memory.narrow(0, 0, columns * layout.columns).view({columns, layout.columns});
    kernels::unpack_rows(layout, packed, first, columns, plain.mutable_data_ptr());
    return plain.t();
  }
  const at::Tensor plain = memory.narrow(0, 0, layout.rows * columns).view({layout.rows, columns});
  const int64_t before = first * layout.row_blocks() * kernels::FractalNz::block_rows;
  layout.columns = columns;
  kernels::unpack(layout, packed + before * layout.element_bytes, plain.mutable_data_ptr());
  return plain;
}

/// Of the processor; null if it has none.
const kernels::NzTiles* tiles() {
#if defined(__x86_64__)
  static const kernels::NzTiles by_brgemm{
      .multiply_add =
          [](int64_t rows, int64_t depth, const void* x, const void* panel, float* sums) {
            constexpr int64_t columns = 32;
            at::native::cpublas::brgemm(rows, columns, depth, depth, columns, columns, /*add_C=*/true,
                                        static_cast<const at::BFloat16*>(x),
                                        static_cast<const at::BFloat16*>(panel), sums, /*is_vnni=*/true);
          },
      .release = [] { at::native::cpublas::brgemm_release(true); },
  };
  if (__builtin_cpu_supports("amx-bf16")) return &by_brgemm;
#endif
  return nullptr;
}

void multiply_by_columns(const at::Tensor& self, const aclTensor& mat2, const aclTensor* bias,
                         const at::Tensor& out) {
  constexpr int64_t together = 256;
  const at::Tensor x = exact(self);
  const at::Tensor memory = at::empty({together * x.size(1)}, self.options());
  for (int64_t n = 0; n < out.size(1); n += together) {
    const int64_t columns = std::min(together, out.size(1) - n);
    const at::Tensor weight = exact(unpacked_columns(mat2, n, columns, memory));
    at::Tensor part = out.narrow(1, n, columns);
    const at::Tensor added = bias == nullptr ? at::Tensor() : exact(to_aten(*bias).narrow(0, n, columns));
    if (out.scalar_type() == at::kHalf) {
      part.copy_(bias == nullptr ? at::mm(x, weight) : at::addmm(added, x, weight));
    } else {
      bias == nullptr ? at::mm_out(part, x, weight) : at::addmm_out(part, added, x, weight);
    }
  }
}

}  // namespace

bool matmul_fractal_nz(const aclTensor& self, const aclTensor& mat2, const aclTensor* bias,
                       const aclTensor& out) {
  const auto type = kernel_type(self.dtype);
  const bool is_bias = bias == nullptr || (bias->dtype == out.dtype && bias->sizes.size() == 1 &&
                                           bias->sizes[0] == out.sizes[1] && bias->is_contiguous());
  if (!type || self.dtype != mat2.dtype || self.dtype != out.dtype || out.numel() == 0 || self.numel() == 0 ||
      !is_bias) {
    return false;
  }
  const kernels::NzMatmul product{.type = *type,
                                  .x = self.data(),
                                  .weight = mat2.data(),
                                  .bias = bias == nullptr ? nullptr : bias->data(),
                                  .y = out.data(),
                                  .rows = self.sizes[0],
                                  .columns = out.sizes[1],
                                  .inner = self.sizes[1],
                                  .transposed = is_transposed(mat2),
                                  .tiles = tiles()};
  if (self.is_contiguous() && out.is_contiguous() && kernels::nz_matmul(product)) return true;
  multiply_by_columns(to_aten(self), mat2, bias, to_aten(out));
  return true;
}

bool cast_format(const aclTensor* from, aclTensor* to) {
  if (is_fractal_nz(*from) == is_fractal_nz(*to)) return false;
  if (from->numel() == 0) return true;
  if (is_fractal_nz(*to)) {
    kernels::pack(layout_of(*to), from->data(), to->data());
  } else {
    kernels::unpack(layout_of(*from), from->data(), to->data());
  }
  return true;
}

}  // namespace fast
}  // namespace cann_host

extern "C" aclnnStatus aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* srcTensor, int dstFormat,
                                                                int additionalDtype, int64_t** dstShape,
                                                                uint64_t* dstShapeSize, int* actualFormat) {
  using namespace cann_host;
  if (srcTensor == nullptr || dstShape == nullptr || dstShapeSize == nullptr || actualFormat == nullptr) {
    set_last_error("aclnnNpuFormatCastCalculateSizeAndFormat: an argument is a null pointer");
    return ACLNN_ERR_PARAM_NULLPTR;
  }
  const bool packs = dstFormat == ACL_FORMAT_FRACTAL_NZ;
  const size_t bytes = element_size(srcTensor->dtype);
  const int64_t columns = 32 / std::max<int64_t>(1, element_size(static_cast<aclDataType>(additionalDtype)));
  if ((!packs && dstFormat != ACL_FORMAT_ND) || (packs && srcTensor->sizes.size() < 2) ||
      (packs && columns != kernels::FractalNz::block_columns(static_cast<int64_t>(bytes)))) {
    set_last_error("aclnnNpuFormatCastCalculateSizeAndFormat: a tensor " + srcTensor->describe() +
                   " in format " + std::to_string(dstFormat) + " with additionalDtype " +
                   std::to_string(additionalDtype) +
                   "; cann_host packs matrices into FRACTAL_NZ (29) with blocks of 32 columns for one byte "
                   "an element (an "
                   "additionalDtype of that size) and 16 for more (of two bytes), and casts back to ND (2)");
    return ACLNN_ERR_PARAM_INVALID;
  }
  const at::IntArrayRef sizes(srcTensor->sizes.data(), srcTensor->sizes.size());
  const auto storage = packs ? fractal_nz_storage(sizes, bytes) : sizes.vec();
  *dstShape = new int64_t[storage.size()];  // the caller's, as CANN documents
  std::copy(storage.begin(), storage.end(), *dstShape);
  *dstShapeSize = storage.size();
  *actualFormat = dstFormat;
  return ACL_SUCCESS;
}
