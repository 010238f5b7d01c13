// The fallback ledger: which operators ran on the CPU for device npu, how often, on how many bytes, for how
// long, and which Python line asked first.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ApproximateClock.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace torch_npu {

enum class FallbackPolicy : int8_t { kAllow, kWarn, kError };

/// Counters of one operator and dtype.
struct FallbackCounter {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> bytes{0};   // of tensor arguments
  std::atomic<int64_t> copied{0};  // bytes of results that had to be copied
  std::atomic<int64_t> ticks{0};
  std::string first_line;  // written once, under the ledger's lock
};

/// One line of the report.
struct FallbackEntry {
  std::string op;
  std::string dtype;
  int64_t calls;
  int64_t bytes;
  int64_t copied_bytes;
  double seconds;
  std::string
      first_line;  // "train.py:12 in forward"; empty where no Python frame was running (autograd threads)
};

/// One operator's page of the ledger. Lives as long as the process.
class FallbackRecord {
 public:
  explicit FallbackRecord(std::string op);
  const std::string& op() const { return op_; }

  /// To be called before the operator runs: applies the policy, notes the Python line of the first call.
  FallbackCounter& enter(c10::ScalarType dtype) {
    auto& counter = counters_[static_cast<size_t>(dtype)];
    if (counter.calls.fetch_add(1, std::memory_order_relaxed) == 0 || strict()) [[unlikely]]
      announce(counter, dtype);
    return counter;
  }

 private:
  friend class FallbackLedger;
  static bool strict();
  void announce(FallbackCounter& counter, c10::ScalarType dtype);

  std::string op_;
  std::array<FallbackCounter, static_cast<size_t>(c10::ScalarType::NumOptions)> counters_;
};

class FallbackLedger {
 public:
  static FallbackLedger& get();

  FallbackPolicy policy() const { return policy_.load(std::memory_order_relaxed); }
  /// Returns the policy that was in force.
  FallbackPolicy set_policy(FallbackPolicy policy) { return policy_.exchange(policy); }

  std::vector<FallbackEntry> entries();
  void clear();

 private:
  friend class FallbackRecord;
  std::mutex mutex_;  // guards records_ and first lines
  std::vector<FallbackRecord*> records_;
  std::atomic<FallbackPolicy> policy_{FallbackPolicy::kAllow};
};

}  // namespace torch_npu
