// Matrix products.
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

bool is_half(const at::Tensor& tensor) { return tensor.scalar_type() == at::kHalf; }

}  // namespace

void Mm(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out, int8_t) {
  is_half(out) ? assign(out, at::mm(exact(self), exact(mat2))) : void(at::mm_out(out, self, mat2));
}

void BatchMatMul(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out, int8_t) {
  const auto batches = [&](const at::Tensor& t) { return t.expand({out.size(0), t.size(1), t.size(2)}); };
  if (is_half(out)) return assign(out, at::bmm(batches(exact(self)), batches(exact(mat2))));
  at::bmm_out(out, batches(self), batches(mat2));
}

void Matmul(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out, int8_t) {
  is_half(out) ? assign(out, at::matmul(exact(self), exact(mat2))) : void(at::matmul_out(out, self, mat2));
}

void Addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
           const at::Scalar& alpha, at::Tensor& out, int8_t) {
  if (is_half(out)) return assign(out, at::addmm(exact(self), exact(mat1), exact(mat2), beta, alpha));
  at::addmm_out(out, self, mat1, mat2, beta, alpha);
}

void InplaceAddmm(at::Tensor& selfRef, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                  const at::Scalar& alpha, int8_t) {
  if (is_half(selfRef))
    return assign(selfRef, at::addmm(exact(selfRef), exact(mat1), exact(mat2), beta, alpha));
  selfRef.addmm_(mat1, mat2, beta, alpha);
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
