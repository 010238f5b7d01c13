#include "cores.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>

namespace cann_host {
namespace {

using namespace std::chrono_literals;

uint32_t usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

/// Waits for something that is about to happen, the longer the more it leaves to others: kernels of one model
/// follow each other within microseconds, but the threads of operators (OpenMP's) want the processor, too.
class Patience {
 public:
  /// Whether it waited; false: it is time to sleep.
  bool wait() noexcept {
    const auto waited = std::chrono::steady_clock::now() - began_;
    if (waited > 200us) return false;
    if (waited > 2us) std::this_thread::yield();
    pause();
    return true;
  }

 private:
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class Cores {
 public:
  Cores() {
    const uint32_t helpers = usable_processors() - 1;
    try {
      for (; helpers_ < helpers; ++helpers_) std::thread([this] { help(); }).detach();
    } catch (const std::system_error&) {
      // No more threads to be had: the caller does what they would have done.
    }
  }

  void run(KernelFunction function, uint32_t blocks, const void* args) noexcept {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || helpers_ == 0) {
      for (uint32_t block = 0; block < blocks; ++block) function(block, blocks, args);
      return;
    }
    function_ = function;
    args_ = args;
    blocks_ = blocks;
    next_.store(0, std::memory_order_relaxed);
    round_.store(next_round(round_.load(std::memory_order_relaxed)), std::memory_order_release);
    round_.notify_all();
    work();
    // Helpers that have not come yet, as other work occupies their processors, are not waited for.
    round_.fetch_and(~open, std::memory_order_relaxed);
    for (Patience patience; (round_.load(std::memory_order_acquire) & inside) != 0;) {
      if (!patience.wait()) std::this_thread::yield();
    }
  }

 private:
  // A round is a number, whether helpers may still come, and how many of them are inside.
  static constexpr uint32_t inside = 0xffff, open = 0x10000, number = ~(inside | open);

  static uint32_t next_round(uint32_t round) { return ((round & number) + 2 * open) | open; }

  void work() noexcept {
    for (uint32_t block; (block = next_.fetch_add(1, std::memory_order_relaxed)) < blocks_;) {
      function_(block, blocks_, args_);
    }
  }

  bool enter(uint32_t round) noexcept {
    while ((round & open) != 0) {
      if (round_.compare_exchange_weak(round, round + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void help() noexcept {
    for (uint32_t seen = 0;;) {
      uint32_t round = round_.load(std::memory_order_acquire);
      for (Patience patience; (round & number) == seen; round = round_.load(std::memory_order_acquire)) {
        if (!patience.wait()) round_.wait(round, std::memory_order_acquire);
      }
      seen = round & number;
      if (!enter(round)) continue;
      work();
      round_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  KernelFunction function_ = nullptr;
  const void* args_ = nullptr;
  uint32_t blocks_ = 0;
  uint32_t helpers_ = 0;
  std::atomic<uint32_t> next_{0}, round_{0};
};

}  // namespace

void run_blocks(KernelFunction function, uint32_t blocks, const void* args) noexcept {
  if (blocks == 1) return function(0, 1, args);
  static auto* cores = new Cores;  // its threads outlive static destruction
  cores->run(function, blocks, args);
}

}  // namespace cann_host
