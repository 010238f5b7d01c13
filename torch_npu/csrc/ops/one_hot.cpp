// PyTorch composes one_hot, of 64-bit classes only; the device takes 32-bit ones as well.
#include <ATen/ops/one_hot_native.h>
#include <torch/library.h>

namespace torch_npu::ops {
namespace {

at::Tensor one_hot(const at::Tensor& self, int64_t num_classes) {
  return at::native::one_hot(self.scalar_type() == at::kInt ? self.to(at::kLong) : self, num_classes);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("one_hot", TORCH_FN(one_hot)); }

}  // namespace torch_npu::ops
