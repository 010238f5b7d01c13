#include <ATen/ops/_foreach_norm_ops.h>

#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnForeachNormGetWorkspaceSize)> aclnn_foreach_norm("aclnnForeachNorm");
Aclnn<decltype(::aclnnForeachCopyGetWorkspaceSize)> aclnn_foreach_copy("aclnnForeachCopy");

}  // namespace

std::vector<at::Tensor> foreach_norm(at::TensorList self, const at::Scalar& ord,
                                     std::optional<at::ScalarType> dtype) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  const bool one_or_two = !ord.isComplex() && (ord.toDouble() == 1 || ord.toDouble() == 2);
  if (!native(aclnn_foreach_norm, kHalfAndFloat, self) || !fits_foreach({self}) || !one_or_two ||
      (dtype.has_value() && *dtype != self[0].scalar_type())) {
    return fallback<at::_ops::_foreach_norm_Scalar>(self, ord, dtype);
  }
  std::vector<at::Tensor> norms;
  norms.reserve(self.size());
  for (const auto& tensor : self) norms.push_back(new_output({}, tensor.scalar_type(), tensor));
  for_slices(self.size(), 2, [&](size_t start, size_t count) {
    aclnn_foreach_norm(self.slice(start, count), ord, at::TensorList(norms).slice(start, count));
  });
  return norms;
}

void foreach_copy(at::TensorList self, at::TensorList src, bool non_blocking) {
  at::native::check_foreach_api_restrictions(self, src);
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (aclnn_foreach_copy.available() && fits_foreach({self, src})) {
    for_slices(self.size(), 2, [&](size_t start, size_t count) {
      aclnn_foreach_copy(src.slice(start, count), self.slice(start, count));
    });
    return;
  }
  for (size_t i = 0; i < self.size(); ++i) self[i].copy_(src[i], non_blocking);
}

}  // namespace torch_npu::ops
