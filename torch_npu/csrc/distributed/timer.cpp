// Times of DistributedDataParallel's steps (`_get_ddp_logging_data`), by events of the current stream.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <optional>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

// The registry is c10d's, whose macro names its parts without their namespace.
namespace c10d {
namespace {

constexpr size_t events = static_cast<size_t>(Timer::Event::kBackwardCommEnd) + 1;

class NpuTimer final : public Timer {
 public:
  explicit NpuTimer(c10::Device device) : device_(device) {}

  void record(Event event) override {
    Timer::record(event);  // the host's time stamp
    auto& recorded = events_[static_cast<size_t>(event)];
    if (!recorded) recorded.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    recorded->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto &first = events_[static_cast<size_t>(start)], &last = events_[static_cast<size_t>(end)];
    if (!first || !last || !first->query() || !last->query()) return std::nullopt;
    const double milliseconds = first->elapsedTime(*last);
    // A step that did not communicate leaves the events of one before it, in another order.
    return milliseconds < 0 ? std::nullopt : std::optional(static_cast<int64_t>(milliseconds * 1e6));
  }

 private:
  const c10::Device device_;
  std::array<std::optional<c10::Event>, events> events_;
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, NpuTimer)

}  // namespace
}  // namespace c10d
