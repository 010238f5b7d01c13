// Tensors from numbers.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/native/RangeUtils.h>

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnArangeGetWorkspaceSize)> aclnn_arange("aclnnArange");
Aclnn<decltype(::aclnnInplaceFillScalarGetWorkspaceSize)> aclnn_fill_scalar("aclnnInplaceFillScalar");
Aclnn<decltype(::aclnnInplaceFillTensorGetWorkspaceSize)> aclnn_fill_tensor("aclnnInplaceFillTensor");

bool arange_takes(at::ScalarType dtype) {
  return at::isFloatingType(dtype) || at::isIntegralType(dtype, /*includeBool=*/false);
}

int64_t arange_length(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                      at::ScalarType dtype) {
  return AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "arange", [&] {
    return at::native::compute_arange_size<scalar_t>(start, end, step);
  });
}

}  // namespace

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                       at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(out));
  if (!aclnn_arange.available() || !arange_takes(out.scalar_type()) ||
      (out.dim() > 1 && !out.is_contiguous())) {
    return fallback<at::_ops::arange_start_out>(start, end, step, out);
  }
  const int64_t length = arange_length(start, end, step, out.scalar_type());
  if (out.numel() != length) resize_output(out, {length}, out.scalar_type(), out);
  aclnn_arange(start, end, step, out.dim() == 1 ? out : out.view({length}));
  return out;
}

at::Tensor& fill_tensor_(at::Tensor& self, const at::Tensor& value) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  if (is_host_scalar(value)) {
    aclnn_fill_scalar(self, value.item());
  } else if (aclnn_fill_tensor.available() && value.device() == self.device()) {
    aclnn_fill_tensor(self, value);
  } else {
    return self.fill_(value.item());
  }
  return self;
}

}  // namespace torch_npu::ops
