#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::python {

/// Memory of a graph's results that callers get as it is: for each storage a tensor, and how many hold the
/// storage when no caller does.
using HandedOut = std::vector<std::pair<at::Tensor, size_t>>;

/// Whether the graph may fill the memory again.
inline bool is_free(const HandedOut& memory) {
  return std::all_of(memory.begin(), memory.end(), [](const auto& entry) {
    const at::Storage& storage = entry.first.storage();
    if (static_cast<size_t>(storage.use_count()) != entry.second) return false;
    // Only the allocator knows when another stream is done with it.
    const memory::Block* block = memory::block_of(storage.data_ptr());
    return block == nullptr || block->stream_uses.empty();
  });
}

}  // namespace torch_npu::python
