// Products of matrices.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

at::Tensor operand(const Arguments& a, size_t i, bool transposed) {
  const auto x = a.wide(i);
  return transposed ? x.transpose(-1, -2) : x;
}

void product(const Arguments& a, const char* first, const char* second) {
  auto result = at::matmul(operand(a, 0, a.flag(first)), operand(a, 1, a.flag(second)));
  if (a.has(2)) result = result + a.wide(2);
  a.set(0, result);
}

void matmul(const Arguments& a) { product(a, "transpose_x1", "transpose_x2"); }
void batch_matmul(const Arguments& a) { product(a, "adj_x1", "adj_x2"); }

}  // namespace

Table matrix_operators() {
  return {
      {"MatMul", matmul},
      {"MatMulV2", matmul},
      {"BatchMatMul", batch_matmul},
      {"BatchMatMulV2", batch_matmul},
      {"Dot", [](const Arguments& a) { a.set(0, (a.wide(0) * a.wide(1)).sum()); }},
      {"MatrixInverse", [](const Arguments& a) { a.set(0, at::linalg_inv(a.wide(0))); }},
      {"LogMatrixDeterminant",
       [](const Arguments& a) {
         const auto [sign, log] = at::linalg_slogdet(a.wide(0));
         a.set(0, sign);
         a.set(1, log);
       }},
      {"AffineGrid",
       [](const Arguments& a) {
         a.set(0, at::affine_grid_generator(a.wide(0), a.list(1), a.flag("align_corners")));
       }},
      {"Qr",
       [](const Arguments& a) {
         const auto [q, r] = at::linalg_qr(a.wide(0), a.flag("full_matrices") ? "complete" : "reduced");
         a.set(0, q);
         a.set(1, r);
       }},
  };
}

}  // namespace cann_host::legacy
