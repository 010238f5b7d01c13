#include "torch_npu/csrc/ops/format.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "cann/acl.h"
#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::ops {
namespace {

bool is_plain(int64_t format) {
  return format == ACL_FORMAT_NCHW || format == ACL_FORMAT_NHWC || format == ACL_FORMAT_ND ||
         format == ACL_FORMAT_NCDHW || format == ACL_FORMAT_NDHWC;
}

bool is_private(int64_t format) {
  return !is_plain(format) && format >= 0 && format <= ACL_FORMAT_FRACTAL_NZ_C0_8;
}

/// Null for memory that is not the pool's, and for fake tensors.
memory::Block* block_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  return memory::block_of(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
}

at::Tensor empty_with_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<at::Device> device,
                             std::optional<bool> pin_memory, int64_t format,
                             std::optional<int64_t> alignment) {
  TORCH_CHECK_NOT_IMPLEMENTED(!alignment.has_value(),
                              "empty_with_format: base_addr_aligned_kb is not supported; leave it out");
  at::Tensor tensor =
      at::empty(size, dtype, layout, device.value_or(at::Device(at::kPrivateUse1)), pin_memory, std::nullopt);
  return set_format("empty_with_format", tensor, format);
}

}  // namespace

int64_t format_of(const at::Tensor& self) {
  const memory::Block* block = block_of(self);
  if (block && block->format != memory::Block::kNoFormat) return block->format;
  return self.dim() == 4 ? ACL_FORMAT_NCHW : self.dim() == 5 ? ACL_FORMAT_NCDHW : ACL_FORMAT_ND;
}

const at::Tensor& set_format(const char* op, const at::Tensor& self, int64_t format) {
  TORCH_CHECK_VALUE(is_plain(format) || is_private(format), op, ": acl_format=", format,
                    " is no format of CANN's; see torch_npu.Format");
  if (is_private(format)) {
    TORCH_WARN_ONCE(
        op, ": acl_format=", format,
        " is a private format of Ascend hardware; the tensor stays in its plain format, which every "
        "operator takes");
    return self;
  }
  if (memory::Block* block = block_of(self)) block->format = static_cast<int8_t>(format);
  return self;
}

at::Tensor& set_format(const char* op, at::Tensor& self, int64_t format) {
  set_format(op, static_cast<const at::Tensor&>(self), format);
  return self;
}

at::Tensor format_cast(const char* op, const at::Tensor& self, int64_t format) {
  if (format_of(self) == format) return self.alias();
  return set_format(op, static_cast<const at::Tensor&>(self.clone()), format);
}

TORCH_LIBRARY_FRAGMENT(npu, m) {
  m.def(
      "empty_with_format(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
      "bool? "
      "pin_memory=None, int acl_format=2, int? base_addr_aligned_kb=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(npu, CompositeExplicitAutograd, m) {
  m.impl("empty_with_format", TORCH_FN(empty_with_format));
}

}  // namespace torch_npu::ops
