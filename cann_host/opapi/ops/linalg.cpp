#include "opapi/host_functions.h"

namespace cann_host::host {

void Svd(const at::Tensor& input, bool fullMatrices, bool computeUV, at::Tensor& sigma, at::Tensor& u,
         at::Tensor& v) {
  if (!computeUV) return assign(sigma, at::linalg_svdvals(widened(input)));
  const auto [left, values, right] = at::linalg_svd(widened(input), fullMatrices);
  assign(sigma, values);
  u.copy_(left);
  v.copy_(right.mH());
}

/// xOut: A^-1 self, or transposed A^-T self. mOut: A, of which only the triangle was read.
void TriangularSolve(const at::Tensor& self, const at::Tensor& A, bool upper, bool transpose,
                     bool unitriangular, at::Tensor& xOut, at::Tensor& mOut) {
  const auto a = widened(A);
  xOut.copy_(at::linalg_solve_triangular(transpose ? a.mT() : a, widened(self), upper != transpose, true,
                                         unitriangular));
  mOut.copy_(A);
}

}  // namespace cann_host::host
