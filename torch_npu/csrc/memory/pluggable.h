#pragma once

#include <cstddef>

#include "torch_npu/csrc/memory/block.h"

namespace torch_npu::memory {

/// Device memory from two functions of another library (torch.npu.NPUPluggableAllocator), which live as long
/// as the process. They are called with the allocator locked and the device active, so they must neither
/// allocate tensors nor need Python. `allocate` returns null for lack of memory.
struct PluggableAllocator {
  void* (*allocate)(size_t nbytes, int device, StreamHandle stream);
  void (*release)(void* ptr, size_t nbytes, int device, StreamHandle stream);
};

}  // namespace torch_npu::memory
