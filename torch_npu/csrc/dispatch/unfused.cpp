#include "torch_npu/csrc/dispatch/unfused.h"

#include <algorithm>
#include <mutex>

#include "torch_npu/csrc/dispatch/python_line.h"

namespace torch_npu {
namespace {

struct Ledger {
  std::mutex mutex;
  std::vector<UnfusedCall> calls;
};

Ledger& ledger() {
  static auto* instance = new Ledger;  // outlives static destruction
  return *instance;
}

}  // namespace

void note_unfused(const char* function, const char* reason) {
  const std::string& line = python_line();
  auto& [mutex, calls] = ledger();
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const UnfusedCall& c) {
    return c.function == function && c.reason == reason;
  });
  if (found == calls.end()) {
    calls.push_back({function, reason, 1, line});
  } else {
    ++found->calls;
  }
}

std::vector<UnfusedCall> unfused_calls() {
  const std::lock_guard lock(ledger().mutex);
  return ledger().calls;
}

void clear_unfused_calls() {
  const std::lock_guard lock(ledger().mutex);
  ledger().calls.clear();
}

}  // namespace torch_npu
