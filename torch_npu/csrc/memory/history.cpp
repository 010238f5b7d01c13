#include "torch_npu/csrc/memory/history.h"

#include <algorithm>

namespace torch_npu::memory {

void History::configure(const Options& options) {
  TORCH_CHECK_VALUE(!options.enabled || options.max_events > 0,
                    "memory history: max_entries must be positive");
  if (options.enabled && (options.clear || options.max_events < ring_.size())) {
    ring_.clear();
    next_ = 0;
  }
  if (options.enabled && next_ != 0 && options.max_events > ring_.size()) {
    std::rotate(ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(next_), ring_.end());
    next_ = 0;
  }
  max_events_ = options.max_events;
  skipped_ = options.skipped;
  recorder_ = options.recorder;
  contexts_ = options.contexts;
  enabled_ = options.enabled;
}

History::Context History::gather(Level level) const {
  if (!enabled() || contexts_.load(std::memory_order_relaxed) < level) return nullptr;
  const auto recorder = recorder_.load();
  return recorder ? recorder() : nullptr;
}

void History::record(Event::Action action, c10::DeviceIndex device, const void* address, size_t size,
                     void* stream, c10::MempoolId_t pool, const Context& context) {
  if (!enabled() || skipped_.count(action)) return;
  const bool keep_context = contexts_.load(std::memory_order_relaxed) >= Level::ALLOC;
  Event event(action, device, reinterpret_cast<size_t>(address), size, stream, pool, /*time=*/{},
              keep_context ? context : nullptr);
  event.time_.t_ = c10::getTime(/*allow_monotonic=*/false);
  if (ring_.size() < max_events_) {
    ring_.push_back(std::move(event));
  } else {
    ring_[next_] = std::move(event);
    next_ = (next_ + 1) % max_events_;
  }
}

std::vector<History::Event> History::events() const {
  std::vector<Event> result(ring_.begin() + static_cast<ptrdiff_t>(next_), ring_.end());
  result.insert(result.end(), ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(next_));
  return result;
}

}  // namespace torch_npu::memory
