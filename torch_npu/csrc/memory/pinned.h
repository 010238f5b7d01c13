#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_npu::memory {

/// Page-locked host memory (aclrtMallocHost), cached by ATen's host allocator and registered with ATen for
/// PrivateUse1.
at::HostAllocator& pinned_allocator();

}  // namespace torch_npu::memory
