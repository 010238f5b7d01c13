#include "torch_npu/csrc/device/stream.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_set>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/thread_state.h"
#include "torch_npu/csrc/device/trace.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::device {
namespace {

constexpr int kIndexBits = 5;
static_assert(kStreamsPerPool == 1 << kIndexBits);

// CANN's priorities go from 0 (most urgent) to 7.
struct Pool {
  c10::StreamId tag;  // upper bits of the ids of its streams
  uint32_t cann_priority;
  int torch_priority;
};
constexpr Pool kNormal{3, 1, 0};
constexpr Pool kHigh{4, 0, -1};
constexpr c10::StreamId kDefaultId = 0;

/// Pool slots and the default stream are filled at first use and never emptied.
struct DeviceStreams {
  using Slots = std::array<std::atomic<aclrtStream>, kStreamsPerPool>;

  std::mutex mutex;
  std::atomic<aclrtStream> default_stream{nullptr};
  Slots normal{}, high{};
  std::atomic<uint32_t> next_normal{0}, next_high{0};
  std::unordered_set<aclrtStream> external;
};

DeviceStreams& streams_of(c10::DeviceIndex index) {
  static auto* all =
      new std::array<DeviceStreams, kMaxDevices>;  // never destroyed: used until the process ends
  check_index(index);
  return (*all)[index];
}

aclrtStream create(c10::DeviceIndex index, uint32_t priority) {
  activate(index);
  aclrtStream stream = nullptr;
  cann::api().aclrtCreateStreamWithConfig.checked(&stream, priority,
                                                  ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC);
  return stream;
}

aclrtStream create_once(c10::DeviceIndex index, std::atomic<aclrtStream>& slot, uint32_t priority) {
  if (aclrtStream stream = slot.load(std::memory_order_acquire)) return stream;
  std::lock_guard<std::mutex> lock(streams_of(index).mutex);
  if (!slot.load()) slot.store(create(index, priority), std::memory_order_release);
  return slot.load();
}

c10::Device device_at(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }

c10::DeviceIndex or_current(c10::DeviceIndex index) { return index < 0 ? current_device() : index; }

const Pool* pool_of(c10::StreamId id) {
  const c10::StreamId tag = id >> kIndexBits;
  return tag == kNormal.tag ? &kNormal : tag == kHigh.tag ? &kHigh : nullptr;
}

/// The stream of `id`, created if it is the default one; null if this process has handed out no such id.
aclrtStream find(c10::DeviceIndex index, c10::StreamId id) {
  DeviceStreams& streams = streams_of(index);
  if (id == kDefaultId) return create_once(index, streams.default_stream, kNormal.cann_priority);
  if (const Pool* pool = pool_of(id)) {
    return (pool == &kHigh ? streams.high : streams.normal)[id & (kStreamsPerPool - 1)].load();
  }
  const auto handle = reinterpret_cast<aclrtStream>(id);
  std::lock_guard<std::mutex> lock(streams.mutex);
  return streams.external.contains(handle) ? handle : nullptr;
}

/// This thread's current stream on `index`, with its handle.
CurrentStream& resolve(c10::DeviceIndex index) {
  activate(index);
  CurrentStream& current = thread_state.streams[index];
  if (!current.handle) current.handle = find(index, current.id);
  return current;
}

}  // namespace

aclrtStream current_stream_handle(c10::DeviceIndex index) {
  if (index == thread_state.active) [[likely]] {
    if (aclrtStream handle = thread_state.streams[index].handle) return handle;
  }
  return resolve(or_current(index)).handle;
}

c10::Stream current_stream(c10::DeviceIndex index) {
  index = or_current(index);
  check_index(index);
  return c10::Stream(c10::Stream::UNSAFE, device_at(index), thread_state.streams[index].id);
}

c10::Stream default_stream(c10::DeviceIndex index) {
  index = or_current(index);
  check_index(index);
  return c10::Stream(c10::Stream::UNSAFE, device_at(index), kDefaultId);
}

c10::Stream stream_from_pool(c10::DeviceIndex index, int priority) {
  index = or_current(index);
  DeviceStreams& streams = streams_of(index);
  const bool high = priority < 0;
  const Pool& pool = high ? kHigh : kNormal;
  const uint32_t slot = (high ? streams.next_high : streams.next_normal)++ % kStreamsPerPool;
  create_once(index, (high ? streams.high : streams.normal)[slot], pool.cann_priority);
  return c10::Stream(c10::Stream::UNSAFE, device_at(index), pool.tag << kIndexBits | slot);
}

c10::Stream external_stream(aclrtStream handle, c10::DeviceIndex index) {
  index = or_current(index);
  TORCH_CHECK_VALUE(handle, "an external stream must be an aclrtStream, got a null pointer");
  DeviceStreams& streams = streams_of(index);
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.external.insert(handle);
  return c10::Stream(c10::Stream::UNSAFE, device_at(index), reinterpret_cast<c10::StreamId>(handle));
}

c10::Stream exchange_stream(c10::Stream stream) {
  const aclrtStream handle = stream_handle(stream);
  CurrentStream& current = thread_state.streams[stream.device_index()];
  const c10::Stream before(c10::Stream::UNSAFE, stream.device(), current.id);
  current = {stream.id(), handle};
  return before;
}

aclrtStream stream_handle(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::PrivateUse1,
              "expected a stream of an npu device, got ", stream);
  const aclrtStream handle = find(stream.device_index(), stream.id());
  TORCH_CHECK(handle, "there is no stream with id ", stream.id(), " on ", stream.device(),
              ": streams come from torch.npu.Stream(), torch.npu.current_stream() or "
              "torch.npu.ExternalStream(pointer)");
  return handle;
}

int stream_priority(c10::Stream stream) {
  const Pool* pool = pool_of(stream.id());
  return pool ? pool->torch_priority : 0;
}

bool query_stream(c10::Stream stream) {
  const aclrtStream handle = stream_handle(stream);
  activate(stream.device_index());
  graph::require_no_recording_on(handle, "stream.query");
  aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
  cann::api().aclrtStreamQuery.checked(handle, &status);
  return status == ACL_STREAM_STATUS_COMPLETE;
}

void synchronize_handle(aclrtStream handle) {
  cann::api().aclrtSynchronizeStream.checked(handle);
  trace(Trace::kStreamSynchronization, handle);
}

void synchronize_stream(c10::Stream stream) {
  const aclrtStream handle = stream_handle(stream);
  activate(stream.device_index());
  graph::require_no_recording_on(handle, "stream.synchronize");
  synchronize_handle(handle);
}

bool is_capturing(c10::Stream stream) {
  const auto& get_info = cann::api().aclmdlRICaptureGetInfo;
  if (!get_info || !is_initialized() || !has_context(stream.device_index())) return false;
  activate(stream.device_index());  // the call needs a device, which this thread may not have used yet
  aclmdlRICaptureStatus status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  aclmdlRI model = nullptr;
  get_info.checked(stream_handle(stream), &status, &model);
  return status == ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
}

}  // namespace torch_npu::device
