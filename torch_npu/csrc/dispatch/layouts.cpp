#include "torch_npu/csrc/dispatch/layouts.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nested_tensor_size_native.h>
#include <ATen/ops/_nested_tensor_storage_offsets_native.h>
#include <ATen/ops/_nested_tensor_strides_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/dispatch/fallback.h"

namespace torch_npu {
namespace {

at::SparseTensorImpl& sparse_impl(const at::Tensor& tensor) {
  return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor relocate_sparse(const at::Tensor& tensor, c10::DeviceType type, const Relocate& part) {
  const auto key =
      type == c10::DeviceType::CPU ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparsePrivateUse1;
  at::Tensor result = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), tensor.dtype());
  assign_parts(result, tensor, part);
  return result;
}

bool is_compressed(const at::Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }

at::SparseCsrTensorImpl& compressed_impl(const at::Tensor& tensor) {
  return *static_cast<at::SparseCsrTensorImpl*>(tensor.unsafeGetTensorImpl());
}

at::Tensor relocate_compressed(const at::Tensor& tensor, c10::DeviceType type, const Relocate& part) {
  const bool to_host = type == c10::DeviceType::CPU;
  const auto key = to_host ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::SparseCsrPrivateUse1;
  const c10::Device device = to_host ? c10::Device(type) : c10::Device(type, device::current_device());
  at::Tensor result = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), device,
                                                                       tensor.layout(), tensor.dtype());
  assign_parts(result, tensor, part);
  return result;
}

at::Tensor relocate_nested(const at::Tensor& tensor, const Relocate& part) {
  const auto* from = at::native::get_nested_tensor_impl(tensor);
  // Sizes, strides and offsets are CPU tensors for every device.
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      part(from->get_unsafe_storage_as_tensor()), from->get_nested_sizes(), from->get_nested_strides(),
      from->get_storage_offsets());
}

}  // namespace

at::Tensor relocate_parts(const at::Tensor& tensor, c10::DeviceType type, const Relocate& part) {
  if (tensor.is_sparse()) return relocate_sparse(tensor, type, part);
  if (is_compressed(tensor)) return relocate_compressed(tensor, type, part);
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.is_nested(),
                              "device npu has dense, sparse and nested tensors, but this one is ",
                              tensor.is_quantized() ? "quantized" : c10::str(tensor.layout()),
                              ". Move it to the CPU for this operator.");
  return relocate_nested(tensor, part);
}

void assign_parts(const at::Tensor& to, const at::Tensor& from, const Relocate& part) {
  if (is_compressed(to)) {
    const auto& source = compressed_impl(from);
    compressed_impl(to).set_member_tensors(part(source.compressed_indices()), part(source.plain_indices()),
                                           part(source.values()), from.sizes());
    return;
  }
  if (!to.is_sparse()) return;
  auto& target = sparse_impl(to);
  const auto& source = sparse_impl(from);
  target.raw_resize_(source.sparse_dim(), source.dense_dim(), source.sizes());
  target.set_indices_and_values_unsafe(part(source.indices()), part(source.values()));
  target.set_coalesced(source.coalesced());
}

// What only reads or makes the parts is PyTorch's own for every device; all else is the fallback's.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  m.impl("select.int", TORCH_FN(at::native::select_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_nested_tensor_size", TORCH_FN(at::native::_nested_tensor_size));
  m.impl("_nested_tensor_strides", TORCH_FN(at::native::_nested_tensor_strides));
  m.impl("_nested_tensor_storage_offsets", TORCH_FN(at::native::_nested_tensor_storage_offsets));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_nested));
  m.impl("copy_", TORCH_FN(at::native::copy_nested_));
  m.impl("_to_copy", TORCH_FN(at::native::_to_copy_nested));
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

}  // namespace torch_npu
