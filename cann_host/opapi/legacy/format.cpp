#include "cann_host/opapi/legacy/format.h"

#include <ATen/ATen.h>

#include <vector>

namespace cann_host::legacy {
namespace {

using Sizes = std::vector<int64_t>;

/// Every format cuts some dimensions into blocks and changes the order: dimension i becomes axis 2 i, which
/// counts blocks, and axis 2 i + 1 inside of a block (of 1 where it is not cut).
struct Layout {
  Sizes dims;   // with the dimensions that the format requires
  Sizes block;  // of each dimension
  Sizes order;  // of the axes in memory

  int64_t blocks(size_t i) const { return (dims[i] + block[i] - 1) / block[i]; }
  Sizes axes() const {
    Sizes sizes;
    for (size_t i = 0; i < dims.size(); ++i) sizes.insert(sizes.end(), {blocks(i), block[i]});
    return sizes;
  }
  Sizes axes_in_memory() const {
    const Sizes sizes = axes();
    Sizes result;
    for (int64_t axis : order) result.push_back(sizes[axis]);
    return result;
  }
};

/// Fewer than four dimensions are C, CH or CHW of one image.
Sizes image(at::IntArrayRef dims) {
  TORCH_CHECK(dims.size() <= 4, "a tensor with ", dims.size(), " dimensions is not an image");
  if (dims.size() == 4) return dims.vec();
  Sizes result{1, 1, 1, 1};
  std::copy(dims.begin(), dims.end(), result.begin() + 1);
  return result;
}

Sizes volume(at::IntArrayRef dims) {
  TORCH_CHECK(dims.size() == 5, "a volume has five dimensions, not ", dims.size());
  return dims.vec();
}

/// Matrices in the last two dimensions: columns of blocks, in each of them rows.
Layout fractal_nz(at::IntArrayRef dims, int64_t column) {
  Sizes matrix = dims.vec();
  while (matrix.size() < 2) matrix.push_back(1);
  const auto rank = static_cast<int64_t>(matrix.size());
  Sizes block(rank, 1), order;
  block[rank - 2] = 16;
  block[rank - 1] = column;
  for (int64_t axis = 0; axis < 2 * (rank - 2); ++axis) order.push_back(axis);
  const int64_t rows = 2 * (rank - 2), columns = 2 * (rank - 1);
  order.insert(order.end(), {columns, rows, rows + 1, columns + 1});
  return {matrix, block, order};
}

Layout layout(aclFormat format, at::IntArrayRef dims, at::IntArrayRef storage_dims) {
  TORCH_CHECK(!storage_dims.empty(), "internal format ", int(format), " for a storage without dimensions");
  const int64_t last = storage_dims.back();
  // Axes of N, C, (D,) H, W: n = blocks of N, n + 1 = inside of them …
  switch (static_cast<int>(format)) {
    case ACL_FORMAT_FRACTAL_NZ:
    case ACL_FORMAT_FRACTAL_NZ_C0_16:
    case ACL_FORMAT_FRACTAL_NZ_C0_32:
    case ACL_FORMAT_FRACTAL_NZ_C0_2:
    case ACL_FORMAT_FRACTAL_NZ_C0_4:
    case ACL_FORMAT_FRACTAL_NZ_C0_8:
      return fractal_nz(dims, last);
    case ACL_FORMAT_NC1HWC0:
      return {image(dims), {1, last, 1, 1}, {0, 1, 2, 4, 5, 6, 7, 3}};
    case ACL_FORMAT_FRACTAL_Z:
      return {image(dims), {16, last, 1, 1}, {2, 4, 5, 6, 7, 0, 1, 3}};
    case ACL_FORMAT_NDC1HWC0:
      return {volume(dims), {1, last, 1, 1, 1}, {0, 1, 4, 5, 2, 6, 7, 8, 9, 3}};
    case ACL_FRACTAL_Z_3D:
      return {volume(dims), {16, last, 1, 1, 1}, {4, 5, 2, 6, 7, 8, 9, 0, 1, 3}};
    default:
      TORCH_CHECK(false, "format ", int(format), " is not known");
  }
}

}  // namespace

bool is_internal(aclFormat format) {
  switch (static_cast<int>(format)) {
    case ACL_FORMAT_NCHW:
    case ACL_FORMAT_NHWC:
    case ACL_FORMAT_ND:
    case ACL_FORMAT_HWCN:
    case ACL_FORMAT_NDHWC:
    case ACL_FORMAT_NCDHW:
    case ACL_FORMAT_NC:
    case ACL_FORMAT_NCL:
    case ACL_FORMAT_UNDEFINED:
      return false;
    default:
      return true;
  }
}

at::Tensor unpacked(const at::Tensor& storage, aclFormat format, at::IntArrayRef dims) {
  const Layout l = layout(format, dims, storage.sizes());
  Sizes back(l.order.size()), padded;
  for (size_t i = 0; i < l.order.size(); ++i) back[l.order[i]] = static_cast<int64_t>(i);
  for (size_t i = 0; i < l.dims.size(); ++i) padded.push_back(l.blocks(i) * l.block[i]);
  auto plain = storage.reshape(l.axes_in_memory()).permute(back).reshape(padded);
  for (size_t i = 0; i < l.dims.size(); ++i) plain = plain.narrow(static_cast<int64_t>(i), 0, l.dims[i]);
  return plain.reshape(dims);
}

at::Tensor packed(const at::Tensor& plain, aclFormat format, at::IntArrayRef storage_dims) {
  const Layout l = layout(format, plain.sizes(), storage_dims);
  Sizes padding;
  for (size_t i = l.dims.size(); i-- > 0;) {
    padding.insert(padding.end(), {0, l.blocks(i) * l.block[i] - l.dims[i]});
  }
  return at::constant_pad_nd(plain.reshape(l.dims), padding)
      .reshape(l.axes())
      .permute(l.order)
      .reshape(storage_dims);
}

}  // namespace cann_host::legacy
