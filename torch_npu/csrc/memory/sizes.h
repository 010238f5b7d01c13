#pragma once

#include <cstddef>

/// Sizes by which memory is cut and asked for; those of torch.cuda's allocator.
namespace torch_npu::memory {

constexpr size_t kMinBlock = 512;                    // all sizes are multiples of it
constexpr size_t kSmallMax = size_t{1} << 20;        // largest size that comes from a small segment
constexpr size_t kSmallSegment = size_t{2} << 20;    // segments that small blocks are cut from
constexpr size_t kMinOwnSegment = size_t{10} << 20;  // from here on each allocation gets its own segment
constexpr size_t kSegmentGranule = size_t{2} << 20;  // sizes of own segments are multiples of it
constexpr size_t kExabyte = size_t{1} << 60;

constexpr size_t round_up(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

}  // namespace torch_npu::memory
