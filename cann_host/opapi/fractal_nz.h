// Descriptors of matrices in FRACTAL_NZ, the packed layout that products read (kernels/fractal_nz.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "cann_host/opapi/descriptor.h"

namespace cann_host {

/// With the dtypes of an argument in phase 1 (DtypeMask): it may also be a matrix in FRACTAL_NZ.
constexpr uint64_t may_be_fractal_nz = uint64_t{1} << 63;

inline bool is_fractal_nz(const aclTensor& tensor) { return tensor.format == ACL_FORMAT_FRACTAL_NZ; }

/// A descriptor says how the matrix would lie if it were plain: whole, or as the transpose of a whole one.
/// Nothing else of a packed matrix can be described.
bool describes_fractal_nz(const aclTensor& tensor);

/// The storage of a tensor of these sizes in FRACTAL_NZ, in elements along its dimensions.
std::vector<int64_t> fractal_nz_storage(at::IntArrayRef sizes, size_t element_bytes);

/// A plain copy, with the strides of the descriptor.
at::Tensor unpacked(const aclTensor& tensor);

namespace fast {

/// out = self mat2 (+ bias) for a mat2 in FRACTAL_NZ.
bool matmul_fractal_nz(const aclTensor& self, const aclTensor& mat2, const aclTensor* bias,
                       const aclTensor& out);

/// From ND to FRACTAL_NZ or back. False if neither is packed, or both are.
bool cast_format(const aclTensor* from, aclTensor* to);

}  // namespace fast
}  // namespace cann_host
