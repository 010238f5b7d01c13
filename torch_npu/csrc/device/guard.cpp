#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/event.h"
#include "torch_npu/csrc/device/stream.h"

namespace torch_npu::device {
namespace {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;

/// How PyTorch's device-independent code (DeviceGuard, c10::Stream, c10::Event, autograd, torch.accelerator)
/// reaches devices, streams and events.
struct NPUGuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }

  c10::Device exchangeDevice(c10::Device device) const override {
    return {kNpu, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kNpu, current_device()}; }
  void setDevice(c10::Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    try {
      set_device(device.index());
    } catch (const std::exception& error) {
      TORCH_WARN("could not select ", device, ": ", error.what());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize(index); }

  /// What a tensor can hold and copy_ can convert: every dtype that the CPU fallback knows.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(device.index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream_from_pool(device.index(), high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return stream_from_pool(device.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return stream_handle(stream); }
  bool queryStream(const c10::Stream& stream) const override { return query_stream(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize_stream(stream); }
  bool isStreamCapturing(const c10::Stream& stream) const override { return is_capturing(stream); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(),
                "the event belongs to npu:", static_cast<int>(index),
                " and cannot be recorded on a stream of ", stream.device());
    record_event(event, stream, flag);
  }
  void block(void* event, const c10::Stream& stream) const override { block_stream(event, stream); }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    destroy_event(event, index);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return elapsed_milliseconds(start, end);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    c10::getDeviceAllocator(kNpu)->recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NPUGuardImpl)

}  // namespace
}  // namespace torch_npu::device
