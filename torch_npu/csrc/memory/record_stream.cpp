#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::memory {
namespace {

void record_stream(at::Tensor& self, c10::Stream stream) {
  caching_allocator().recordStream(self.storage().data_ptr(), stream);
}

void erase_stream(const at::Tensor& self, c10::Stream stream) {
  caching_allocator().erase_stream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_FRAGMENT(npu, m) { m.def("erase_stream(Tensor self, Stream stream) -> ()"); }

TORCH_LIBRARY_IMPL(npu, PrivateUse1, m) { m.impl("erase_stream", erase_stream); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", record_stream); }

}  // namespace
}  // namespace torch_npu::memory
