// Copies: within a device by aclnnInplaceCopy (any strides, any dtypes), across devices by aclrtMemcpy of
// dense bytes.
#include <ATen/ATen.h>
#include <ATen/Dispatch_v2.h>
#include <torch/library.h>

#include <cstddef>

#include "cann/aclnn.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/sync_debug.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu {
namespace {

Aclnn<decltype(::aclnnInplaceCopyGetWorkspaceSize)> inplace_copy("aclnnInplaceCopy");

bool same_bytes(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.strides() == from.strides() && to.is_non_overlapping_and_dense() &&
         to.is_neg() == from.is_neg() && to.is_conj() == from.is_conj();
}

/// Dense bytes across devices. The host side must stay untouched until the copy ran, so only copies from or
/// to pinned memory may return early.
void copy_bytes(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const at::Tensor& npu = to.is_privateuseone() ? to : from;
  const DeviceSwitch on(npu.device().index());
  const aclrtStream stream = device::current_stream_handle(npu.device().index());
  const at::Tensor& host = to.is_privateuseone() ? from : to;
  const bool on_device = from.is_privateuseone() && to.is_privateuseone();
  const bool may_return_early = on_device || (non_blocking && host.is_pinned());
  if (graph::Recording* recording = graph::current_recording(npu.device().index())) [[unlikely]] {
    if (!may_return_early) {
      graph::require_no_recording(
          from.is_privateuseone() ? "a copy to the CPU" : "a copy from the CPU",
          "the host would have to wait for it, and nothing runs before the replay; copies "
          "from and to pinned memory with non_blocking=True can be recorded");
    }
    recording->keep(to.storage());
    recording->keep(from.storage());
    recording->count_node();
  }
  if (!may_return_early)
    note_synchronization(from.is_privateuseone() ? "a copy to the CPU" : "a copy from the CPU");
  const auto kind = !from.is_privateuseone() ? ACL_MEMCPY_HOST_TO_DEVICE
                    : to.is_privateuseone()  ? ACL_MEMCPY_DEVICE_TO_DEVICE
                                             : ACL_MEMCPY_DEVICE_TO_HOST;
  cann::api().aclrtMemcpyAsync.checked(to.data_ptr(), to.nbytes(), from.const_data_ptr(), from.nbytes(), kind,
                                       stream);
  if (!may_return_early) device::synchronize_handle(stream);
}

/// Whether CANN's copy takes both dtypes; it knows those that have an aclDataType below 34 (no float8, no
/// quantized).
bool on_device_copy_takes(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kDouble:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

/// Within one device.
void copy_on_device(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const DeviceSwitch on(to.device().index());
  if (same_bytes(to, from)) return copy_bytes(to, from, non_blocking);
  if (!on_device_copy_takes(to) || !on_device_copy_takes(from)) {
    static const auto copy = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    torch::jit::Stack stack{to, from, non_blocking};
    return boxed_fallback(copy, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
  }
  inplace_copy(to, from);
  // The descriptor carries bytes only: lazily negated or conjugated values are brought about here.
  if (to.is_neg() != from.is_neg()) to._neg_view().neg_();
  if (to.is_conj() != from.is_conj()) to._conj().conj_physical_();
}

/// From one device (or the CPU) to another: dense bytes travel, the rest happens on the npu side.
void copy_across(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (same_bytes(to, from)) return copy_bytes(to, from, non_blocking);
  const at::Tensor expanded = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  if (to.is_privateuseone()) {
    const at::Tensor source = expanded.resolve_conj().resolve_neg().contiguous();
    if (!to.is_conj() && !to.is_neg() && to.is_contiguous() && to.scalar_type() == source.scalar_type()) {
      return copy_bytes(to, source, non_blocking && source.is_same(from));
    }
    const at::Tensor staged = new_output(source.sizes(), source.scalar_type(), to);
    copy_bytes(staged, source, non_blocking && source.is_same(from));
    return copy_on_device(to, staged, non_blocking);
  }
  const at::Tensor source = expanded.resolve_conj().resolve_neg().to(to.scalar_type()).contiguous();
  if (!to.is_conj() && !to.is_neg() && to.is_contiguous()) return copy_bytes(to, source, non_blocking);
  const at::Tensor staged = at::empty(source.sizes(), to.options().pinned_memory(false));
  copy_bytes(staged, source, /*non_blocking=*/false);
  to.copy_(staged);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0 || self.is_same(dst)) return dst;
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_cpu() || self.is_privateuseone(),
                              "device npu copies from and to the CPU, not ", self.device());
  const bool on_one_device = self.device() == dst.device();
  on_one_device ? copy_on_device(dst, self, non_blocking) : copy_across(dst, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, /*non_blocking=*/false);
}

/// tensor.item()
at::Scalar local_scalar_dense(const at::Tensor& self) {
  graph::require_no_recording("tensor.item()",
                              "the host would have to wait for the value, and nothing runs before the replay",
                              self.device().index());
  note_synchronization("tensor.item()");
  const DeviceSwitch on(self.device().index());
  const aclrtStream stream = device::current_stream_handle(self.device().index());
  alignas(16) std::byte bytes[16];
  cann::api().aclrtMemcpyAsync.checked(bytes, sizeof bytes, self.const_data_ptr(), self.itemsize(),
                                       ACL_MEMCPY_DEVICE_TO_HOST, stream);
  device::synchronize_handle(stream);
  at::Scalar value;
  AT_DISPATCH_V2(self.scalar_type(), "item",
                 AT_WRAP([&] { value = *reinterpret_cast<const scalar_t*>(bytes); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), at::kComplexHalf, at::kHalf, at::kBool, at::kBFloat16,
                 AT_EXPAND(AT_FLOAT8_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  return value;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

// The copy itself resolves conjugation and negation; PyTorch's fallbacks would copy to resolve them, without
// end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace torch_npu
