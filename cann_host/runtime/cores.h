// The threads that play the cores of a device: the blocks of one kernel run on them side by side.
#pragma once

#include <cstdint>

namespace cann_host {

/// A kernel of a host binary. It does the share of block number `block` of `blocks`.
using KernelFunction = void (*)(uint32_t block, uint32_t blocks, const void* args);

/// Runs all blocks and returns when they are done. One block runs on the calling thread alone, more are
/// shared with at most one thread for each further processor. If another kernel occupies those threads, the
/// caller does all of it.
void run_blocks(KernelFunction function, uint32_t blocks, const void* args) noexcept;

}  // namespace cann_host
