#pragma once

#include <string>
#include <vector>

#include "torch_npu/csrc/memory/history.h"

/// Who holds memory, for messages.
namespace torch_npu::memory {

/// A live allocation.
struct Holding {
  size_t nbytes;
  History::Context context;  // null if it was made while no history was recorded
};

/// "train.py:12 in forward" of a recorded call stack: its innermost Python frame outside torch, "" without
/// one.
using LineOfContext = std::string (*)(const History::Context& context);

/// Called once by the bindings; without it nothing has a line.
void set_line_of_context(LineOfContext function);

/// One line of text for each Python line that holds most, or for each size where no line is known, the
/// largest first; says how to get the lines. To be called without the allocator's lock: Python's lock is
/// taken.
std::string largest_holders(std::vector<Holding> holdings);

}  // namespace torch_npu::memory
