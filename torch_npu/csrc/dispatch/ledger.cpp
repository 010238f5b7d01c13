#include "torch_npu/csrc/dispatch/ledger.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <thread>

#include "torch_npu/csrc/dispatch/python_line.h"

namespace torch_npu {
namespace {

/// Seconds of one tick of c10's approximate clock, measured once.
double seconds_per_tick() {
  static const double value = [] {
    using Clock = std::chrono::steady_clock;
    const auto wall = Clock::now();
    const auto ticks = c10::getApproximateTime();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::chrono::duration<double> elapsed = Clock::now() - wall;
    return elapsed.count() / static_cast<double>(c10::getApproximateTime() - ticks);
  }();
  return value;
}

}  // namespace

FallbackRecord::FallbackRecord(std::string op) : op_(std::move(op)) {
  auto& ledger = FallbackLedger::get();
  const std::lock_guard lock(ledger.mutex_);
  ledger.records_.push_back(this);
}

bool FallbackRecord::strict() { return FallbackLedger::get().policy() == FallbackPolicy::kError; }

void FallbackRecord::announce(FallbackCounter& counter, c10::ScalarType dtype) {
  auto& ledger = FallbackLedger::get();
  const std::string& line = python_line();
  const bool first = counter.calls.load(std::memory_order_relaxed) == 1;
  if (ledger.policy() == FallbackPolicy::kError) {
    counter.calls.fetch_sub(1, std::memory_order_relaxed);
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, op_, " for ", c10::toString(dtype),
        " has no native kernel on device npu and would run on the CPU", line.empty() ? "" : " (" + line + ")",
        ", which torch_npu.fallback_policy(\"error\") or TORCH_NPU_FALLBACK_CPU_DISABLE=1 forbids. Use "
        "torch_npu.fallback_policy(\"allow\"), or see torch_npu.fallback_report() and docs/op_coverage.md "
        "for the operators and dtypes that are native.");
  }
  if (!first) return;
  {
    const std::lock_guard lock(ledger.mutex_);
    counter.first_line = line;
  }
  if (ledger.policy() == FallbackPolicy::kWarn) {
    TORCH_WARN(op_, " for ", c10::toString(dtype), " runs on the CPU for device npu",
               line.empty() ? "" : " (first asked for by " + line + ")");
  }
}

FallbackLedger& FallbackLedger::get() {
  static auto* ledger = new FallbackLedger;  // outlives static destruction
  return *ledger;
}

std::vector<FallbackEntry> FallbackLedger::entries() {
  std::vector<FallbackEntry> result;
  const std::lock_guard lock(mutex_);
  for (const FallbackRecord* record : records_) {
    for (size_t i = 0; i < record->counters_.size(); ++i) {
      const auto& c = record->counters_[i];
      if (c.calls.load() == 0) continue;
      result.push_back({record->op_, c10::toString(static_cast<c10::ScalarType>(i)), c.calls.load(),
                        c.bytes.load(), c.copied.load(),
                        static_cast<double>(c.ticks.load()) * seconds_per_tick(), c.first_line});
    }
  }
  return result;
}

void FallbackLedger::clear() {
  const std::lock_guard lock(mutex_);
  for (FallbackRecord* record : records_) {
    for (auto& c : record->counters_) {
      c.calls = c.bytes = c.copied = c.ticks = 0;
      c.first_line.clear();
    }
  }
}

}  // namespace torch_npu
