#include "torch_npu/csrc/dispatch/rules.h"

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/outputs.h"

namespace torch_npu {

c10::MaybeOwned<at::Tensor> on_device(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!is_host_scalar(tensor)) [[likely]]
    return c10::MaybeOwned<at::Tensor>::borrowed(tensor);
  static Aclnn<decltype(::aclnnInplaceFillScalarGetWorkspaceSize)> fill("aclnnInplaceFillScalar");
  const auto device = at::Device(at::kPrivateUse1, device::current_device());
  at::Tensor copy = new_tensor({}, {}, at::TensorOptions().device(device).dtype(dtype));
  fill(copy, tensor.item());
  return c10::MaybeOwned<at::Tensor>::owned(std::move(copy));
}

}  // namespace torch_npu
