// The device's clock for torch.autograd.profiler.profile(use_device="npu"): an event before and after each of
// PyTorch's operators. torch.profiler needs none of it (profiler.cpp).
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <memory>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/event.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::device {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

class Marks final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const auto stream = current_stream(current_device());
    const auto index = stream.device_index();
    if (device != nullptr) *device = index;
    void* made = nullptr;  // in a capture nothing runs that could be timed
    if (graph::current_recording(index) == nullptr)
      record_event(&made, stream, c10::EventFlag::BACKEND_DEFAULT);
    *event = ProfilerVoidEventStub(made, [index](void* held) {
      if (held != nullptr) destroy_event(held, index);
    });
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
  }

  float elapsed(const ProfilerVoidEventStub* begin, const ProfilerVoidEventStub* end) const override {
    if (*begin == nullptr || *end == nullptr) return 0;
    synchronize_event(begin->get());
    synchronize_event(end->get());
    constexpr double microseconds = 1000;
    return static_cast<float>(elapsed_milliseconds(begin->get(), end->get()) * microseconds);
  }

  // Ranges are for tools outside of PyTorch; CANN's profiler gets the operators' names with their launches.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}

  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> call) const override {
    const auto before = current_device();
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      if (!has_context(index)) continue;
      set_device(index);
      call(index);
    }
    set_device(before);
  }

  void synchronize() const override { device::synchronize(current_device()); }
};

const bool registered = [] {
  static Marks marks;
  torch::profiler::impl::registerPrivateUse1Methods(&marks);
  return true;
}();

}  // namespace
}  // namespace torch_npu::device
