#include "cores.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>

namespace cann_host {
namespace {

uint32_t usable_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

/// How often a waiting thread looks before it sleeps: about 20 us, the time between two kernels of one model.
constexpr int spins = 4000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

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
    busy_.store(helpers_, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work();
    // A helper that comes late finds no block left, but reads the fields above: it must be through with them.
    for (int i = 0; busy_.load(std::memory_order_acquire) != 0; ++i) {
      if (i < spins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  void work() noexcept {
    for (uint32_t block; (block = next_.fetch_add(1, std::memory_order_relaxed)) < blocks_;) {
      function_(block, blocks_, args_);
    }
  }

  void help() noexcept {
    for (uint32_t seen = 0;; ++seen) {
      for (int i = 0; i < spins && round_.load(std::memory_order_acquire) == seen; ++i) pause();
      round_.wait(seen, std::memory_order_acquire);
      work();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  KernelFunction function_ = nullptr;
  const void* args_ = nullptr;
  uint32_t blocks_ = 0;
  uint32_t helpers_ = 0;
  std::atomic<uint32_t> next_{0}, busy_{0}, round_{0};
};

}  // namespace

void run_blocks(KernelFunction function, uint32_t blocks, const void* args) noexcept {
  if (blocks == 1) return function(0, 1, args);
  static auto* cores = new Cores;  // its threads outlive static destruction
  cores->run(function, blocks, args);
}

}  // namespace cann_host
