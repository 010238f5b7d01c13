// Calls of functions that no fused operator took, so that they were composed of others: which, why, how
// often, and which Python line asked first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_npu {

struct UnfusedCall {
  std::string function;
  std::string reason;
  int64_t calls;
  std::string first_line;  // "train.py:12 in forward"
};

/// Notes a call. Reasons are sentences without numbers that differ from call to call.
void note_unfused(const char* function, const char* reason);

std::vector<UnfusedCall> unfused_calls();
void clear_unfused_calls();

}  // namespace torch_npu
