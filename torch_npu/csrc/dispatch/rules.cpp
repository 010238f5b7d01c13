#include "torch_npu/csrc/dispatch/rules.h"

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/outputs.h"

namespace torch_npu {

at::Scalar host_scalar(const at::Tensor& tensor) {
  // Python's own types, without a detour over the dispatcher.
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return *tensor.const_data_ptr<double>();
    case at::kLong:
      return *tensor.const_data_ptr<int64_t>();
    case at::kBool:
      return *tensor.const_data_ptr<bool>();
    default:
      return tensor.item();
  }
}

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
