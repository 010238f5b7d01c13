#include "cann_host/opapi/arguments.h"

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "cann_host/opapi/fractal_nz.h"

namespace cann_host {

at::ScalarType to_aten(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT:
      return at::kFloat;
    case ACL_FLOAT16:
      return at::kHalf;
    case ACL_BF16:
      return at::kBFloat16;
    case ACL_DOUBLE:
      return at::kDouble;
    case ACL_INT8:
      return at::kChar;
    case ACL_UINT8:
      return at::kByte;
    case ACL_INT16:
      return at::kShort;
    case ACL_UINT16:
      return at::kUInt16;
    case ACL_INT32:
      return at::kInt;
    case ACL_UINT32:
      return at::kUInt32;
    case ACL_INT64:
      return at::kLong;
    case ACL_UINT64:
      return at::kUInt64;
    case ACL_BOOL:
      return at::kBool;
    case ACL_COMPLEX32:
      return at::kComplexHalf;
    case ACL_COMPLEX64:
      return at::kComplexFloat;
    case ACL_COMPLEX128:
      return at::kComplexDouble;
    default:
      TORCH_CHECK(false, "cann_host does not know aclDataType ", static_cast<int>(dtype));
  }
}

at::Tensor to_aten(const aclTensor& tensor) {
  if (is_fractal_nz(tensor)) [[unlikely]]
    return unpacked(tensor);
  const auto dtype = c10::scalarTypeToTypeMeta(to_aten(tensor.dtype));
  // Bytes up to the last element that the strides reach, so that ATen's own bounds checks hold.
  int64_t last = 0;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) {
      last = -1;
      break;
    }
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  const size_t bytes = (last + 1) * dtype.itemsize();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(tensor.data(), c10::Device(c10::DeviceType::CPU)), nullptr, /*resizable=*/false);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
  impl->set_sizes_and_strides({tensor.sizes.data(), tensor.sizes.size()},
                              {tensor.strides.data(), tensor.strides.size()});
  return at::Tensor(std::move(impl));
}

at::Scalar to_aten(const aclScalar& scalar) {
  if (scalar.is_bool()) return scalar.integer != 0;
  if (scalar.is_integral()) return scalar.integer;
  if (scalar.is_complex()) return c10::complex<double>(scalar.complex.real(), scalar.complex.imag());
  return scalar.complex.real();
}

void DynamicOutput::set(const at::Tensor& result) {
  if (descriptor_ == nullptr) return;
  TORCH_CHECK(result.numel() <= descriptor_->numel(), "the output has room for ", descriptor_->numel(),
              " elements, the result has ", result.numel());
  const auto contiguous = result.contiguous();
  descriptor_->sizes.assign(contiguous.sizes().data(), contiguous.dim());
  descriptor_->strides.assign(contiguous.strides().data(), contiguous.dim());
  to_aten(*descriptor_).copy_(contiguous);
}

}  // namespace cann_host
