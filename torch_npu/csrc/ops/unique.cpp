// The unique family: how many values there are decides the shapes of the outputs.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/ops/common_dtypes.h"
#include "torch_npu/csrc/ops/dynamic_output.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnUniqueGetWorkspaceSize)> aclnn_unique("aclnnUnique");
Aclnn<decltype(::aclnnUnique2GetWorkspaceSize)> aclnn_unique2("aclnnUnique2");
Aclnn<decltype(::aclnnUniqueDimGetWorkspaceSize)> aclnn_unique_dim("aclnnUniqueDim");
Aclnn<decltype(::aclnnUniqueConsecutiveGetWorkspaceSize)> aclnn_unique_consecutive("aclnnUniqueConsecutive");

bool takes_dtype(const at::Tensor& self) { return takes(kRealDtypes, self) && self.numel() > 0; }

/// int64 of these sizes if wanted, else empty.
at::Tensor positions(bool wanted, at::IntArrayRef sizes, const at::Tensor& self) {
  return new_output(wanted ? sizes : at::IntArrayRef(0), at::kLong, self);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool return_inverse) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_unique.available() || !takes_dtype(self)) {
    return fallback<at::_ops::_unique>(self, sorted, return_inverse);
  }
  DynamicOutput values("aten::_unique", new_output({self.numel()}, self.scalar_type(), self));
  at::Tensor inverse = positions(return_inverse, self.sizes(), self);
  aclnn_unique(self, sorted, return_inverse, values.descriptor(), inverse);
  return {values.finish(), inverse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique2(const at::Tensor& self, bool sorted,
                                                       bool return_inverse, bool return_counts) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_unique2.available() || !takes_dtype(self)) {
    return fallback<at::_ops::_unique2>(self, sorted, return_inverse, return_counts);
  }
  DynamicOutput values("aten::_unique2", new_output({self.numel()}, self.scalar_type(), self));
  // CANN wants room for the inverse also where only counts are asked for.
  at::Tensor inverse = positions(return_inverse || return_counts, self.sizes(), self);
  DynamicOutput counts("aten::_unique2", positions(return_counts, {self.numel()}, self));
  aclnn_unique2(self, sorted, return_inverse, return_counts, values.descriptor(), inverse,
                counts.descriptor());
  if (!return_inverse) inverse = positions(false, {}, self);
  return {values.finish(), inverse, return_counts ? counts.finish() : positions(false, {}, self)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim(const at::Tensor& self, int64_t dim, bool sorted,
                                                          bool return_inverse, bool return_counts) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_unique_dim.available() || !takes_dtype(self) || self.dim() == 0) {
    return fallback<at::_ops::unique_dim>(self, dim, sorted, return_inverse, return_counts);
  }
  const int64_t length = self.size(dim);
  DynamicOutput values("aten::unique_dim", new_output(self.sizes(), self.scalar_type(), self));
  at::Tensor inverse = new_output({length}, at::kLong, self);
  DynamicOutput counts("aten::unique_dim", new_output({length}, at::kLong, self));
  aclnn_unique_dim(self, sorted, return_inverse, at::maybe_wrap_dim(dim, self.dim()), values.descriptor(),
                   inverse, counts.descriptor());
  return {values.finish(), return_inverse ? inverse : positions(false, {}, self),
          return_counts ? counts.finish() : positions(false, {}, self)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_consecutive(const at::Tensor& self, bool return_inverse,
                                                                  bool return_counts,
                                                                  std::optional<int64_t> dim) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_unique_consecutive.available() || !takes_dtype(self) || self.dim() == 0) {
    return fallback<at::_ops::unique_consecutive>(self, return_inverse, return_counts, dim);
  }
  constexpr int64_t kNoDim = 1000;  // what CANN takes for "over all elements"
  const int64_t along = dim.has_value() ? at::maybe_wrap_dim(*dim, self.dim()) : kNoDim;
  const int64_t length = dim.has_value() ? self.size(along) : self.numel();
  DynamicOutput values(
      "aten::unique_consecutive",
      new_output(dim.has_value() ? self.sizes() : at::IntArrayRef(length), self.scalar_type(), self));
  at::Tensor inverse =
      positions(return_inverse, dim.has_value() ? at::IntArrayRef(length) : self.sizes(), self);
  DynamicOutput counts("aten::unique_consecutive", positions(return_counts, {length}, self));
  aclnn_unique_consecutive(self, return_inverse, return_counts, along, values.descriptor(), inverse,
                           counts.descriptor());
  return {values.finish(), inverse, return_counts ? counts.finish() : positions(false, {}, self)};
}

}  // namespace torch_npu::ops
