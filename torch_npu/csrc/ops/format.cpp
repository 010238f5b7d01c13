#include "torch_npu/csrc/ops/format.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "cann/acl.h"
#include "torch_npu/csrc/dispatch/packed.h"
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

/// Whether the tensor can have the format. FRACTAL_NZ packs matrices; another private format leaves tensors
/// as they are, and a warning says so once.
bool can_have(const char* op, const at::Tensor& self, int64_t format) {
  TORCH_CHECK_VALUE(is_plain(format) || is_private(format), op, ": acl_format=", format,
                    " is no format of CANN's; see torch_npu.Format");
  if (!is_private(format)) return true;
  if (format == ACL_FORMAT_FRACTAL_NZ) {
    if (self.dim() >= 2) return true;
    TORCH_WARN_ONCE(op, ": FRACTAL_NZ (29) packs matrices; a tensor of shape ", self.sizes(),
                    " stays in its plain format");
    return false;
  }
  TORCH_WARN_ONCE(op, ": acl_format=", format,
                  " is a private format that tensors do not have here (FRACTAL_NZ is); the tensor stays in "
                  "its plain format, which every operator takes");
  return false;
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
  if (is_packed(self)) return packed_storage(self.storage())->format;
  const memory::Block* block = block_of(self);
  if (block && block->format != memory::Block::kNoFormat) return block->format;
  return self.dim() == 4 ? ACL_FORMAT_NCHW : self.dim() == 5 ? ACL_FORMAT_NCDHW : ACL_FORMAT_ND;
}

const at::Tensor& set_format(const char* op, const at::Tensor& self, int64_t format) {
  if (!can_have(op, self, format) || format_of(self) == format) return self;
  if (format == ACL_FORMAT_FRACTAL_NZ || is_packed(self)) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        self.is_privateuseone() && !self.key_set().has(c10::DispatchKey::Python), op, ": self is on ",
        self.device(), ", or a compiler traces it; expected an npu tensor, cast outside of what is compiled");
    TORCH_CHECK_NOT_IMPLEMENTED(self.storage().use_count() == 1, op,
                                ": self shares its memory with another tensor (a view, or tensor.data of a "
                                "parameter), which would not "
                                "follow; expected a tensor that has its memory alone. Write p.data = "
                                "torch_npu.npu_format_cast(p.data, ",
                                format, ")");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor cast = cast_packed(self, format);
    auto* impl = self.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(cast.storage());
    impl->set_sizes_and_strides(cast.sizes(), cast.strides(), 0);
    follow_storage(self);
  }
  if (memory::Block* block = block_of(self)) block->format = static_cast<int8_t>(format);
  return self;
}

at::Tensor& set_format(const char* op, at::Tensor& self, int64_t format) {
  set_format(op, static_cast<const at::Tensor&>(self), format);
  return self;
}

at::Tensor format_cast(const char* op, const at::Tensor& self, int64_t format) {
  if (!can_have(op, self, format)) return self.clone();
  if (format_of(self) == format) return self.alias();
  if (format == ACL_FORMAT_FRACTAL_NZ || is_packed(self)) {
    static const auto cast = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("npu::_npu_format_cast", "")
                                 .typed<at::Tensor(const at::Tensor&, int64_t)>();
    return cast.call(self, format);
  }
  return set_format(op, static_cast<const at::Tensor&>(self.clone()), format);
}

at::Tensor cast_packed(const at::Tensor& self, int64_t format) {
  // Between two formats the way leads over the plain one.
  const at::Tensor plain = is_packed(self) ? on_plain_storage(self, unpack(self.storage())) : self;
  if (format != ACL_FORMAT_FRACTAL_NZ) {
    const at::Tensor result =
        is_packed(self) ? plain.contiguous() : plain.clone(at::MemoryFormat::Contiguous);
    return set_format("npu_format_cast", result, format);
  }
  return pack(plain, ACL_FORMAT_FRACTAL_NZ);
}

at::Tensor cast_packed_meta(const at::Tensor& self, int64_t) {
  return at::empty_symint(self.sym_sizes(), self.options());
}

int64_t storage_size(const at::Tensor& self) {
  return c10::multiply_integers(packed_storage(self.storage())->storage_sizes);
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
