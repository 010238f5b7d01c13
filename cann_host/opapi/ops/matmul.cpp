// Matrix products.
#include "cann_host/kernels/transpose.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

bool is_half(const at::Tensor& tensor) { return tensor.scalar_type() == at::kHalf; }

/// Whether the processor multiplies whole matrices of bfloat16.
bool has_matrix_unit() {
#if defined(__x86_64__)
  static const bool result = __builtin_cpu_supports("amx-bf16");
  return result;
#else
  return false;
#endif
}

/// The first operand as oneDNN multiplies it fastest: with a matrix unit, a large one that lies column by
/// column (a weight's gradient has such) takes twice the time of one that lies row by row.
at::Tensor in_rows(const at::Tensor& matrix) {
  constexpr int64_t least = 1 << 16;
  if (matrix.scalar_type() != at::kBFloat16 || matrix.dim() != 2 || matrix.numel() < least ||
      matrix.stride(0) != 1 || matrix.stride(1) < matrix.size(0) || !has_matrix_unit()) {
    return matrix;
  }
  at::Tensor rows = at::empty(matrix.sizes(), matrix.options());
  kernels::transpose({.element_bytes = 2,
                      .from = matrix.const_data_ptr(),
                      .from_stride = matrix.stride(1),
                      .to = rows.mutable_data_ptr(),
                      .to_stride = matrix.size(1),
                      .rows = matrix.size(1),
                      .columns = matrix.size(0)});
  return rows;
}

}  // namespace

void Mm(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out, int8_t) {
  is_half(out) ? assign(out, at::mm(exact(self), exact(mat2))) : void(at::mm_out(out, in_rows(self), mat2));
}

void BatchMatMul(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out, int8_t) {
  const auto batches = [&](const at::Tensor& t) { return t.expand({out.size(0), t.size(1), t.size(2)}); };
  if (is_half(out)) return assign(out, at::bmm(batches(exact(self)), batches(exact(mat2))));
  at::bmm_out(out, batches(self), batches(mat2));
}

void Matmul(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out, int8_t) {
  is_half(out) ? assign(out, at::matmul(exact(self), exact(mat2)))
               : void(at::matmul_out(out, in_rows(self), mat2));
}

void Addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
           const at::Scalar& alpha, at::Tensor& out, int8_t) {
  if (is_half(out)) return assign(out, at::addmm(exact(self), exact(mat1), exact(mat2), beta, alpha));
  at::addmm_out(out, self, in_rows(mat1), mat2, beta, alpha);
}

void InplaceAddmm(at::Tensor& selfRef, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                  const at::Scalar& alpha, int8_t) {
  if (is_half(selfRef))
    return assign(selfRef, at::addmm(exact(selfRef), exact(mat1), exact(mat2), beta, alpha));
  selfRef.addmm_(in_rows(mat1), mat2, beta, alpha);
}

void Baddbmm(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
             const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out, int8_t) {
  if (is_half(out)) return assign(out, at::baddbmm(exact(self), exact(batch1), exact(batch2), beta, alpha));
  at::baddbmm_out(out, self, batch1, batch2, beta, alpha);
}

void Addbmm(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
            const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out, int8_t) {
  if (is_half(out)) return assign(out, at::addbmm(exact(self), exact(batch1), exact(batch2), beta, alpha));
  at::addbmm_out(out, self, batch1, batch2, beta, alpha);
}

}  // namespace cann_host::host
