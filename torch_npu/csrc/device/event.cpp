#include "torch_npu/csrc/device/event.h"

#include <c10/util/Exception.h>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/device/trace.h"

namespace torch_npu::device {

void record_event(void** event, c10::Stream stream, c10::EventFlag flag) {
  const aclrtStream handle = stream_handle(stream);
  activate(stream.device_index());
  if (!*event) {
    const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    const uint32_t cann_flag = timed ? ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE : ACL_EVENT_SYNC;
    // Events of the "Ex" kind are not limited in number by the hardware.
    const auto& unlimited = cann::api().aclrtCreateEventExWithFlag;
    (unlimited ? unlimited : cann::api().aclrtCreateEventWithFlag).checked(event, cann_flag);
  }
  cann::api().aclrtRecordEvent.checked(*event, handle);
  trace(Trace::kEventRecord, *event, handle);
}

void block_stream(void* event, c10::Stream stream) {
  if (!event) return;
  const aclrtStream handle = stream_handle(stream);
  activate(stream.device_index());
  cann::api().aclrtStreamWaitEvent.checked(handle, event);
  trace(Trace::kEventWait, event, handle);
}

bool query_event(void* event) {
  if (!event) return true;
  activate_any();
  aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
  cann::api().aclrtQueryEventStatus.checked(event, &status);
  return status == ACL_EVENT_RECORDED_STATUS_COMPLETE;
}

void synchronize_event(void* event) {
  if (!event) return;
  activate_any();
  cann::api().aclrtSynchronizeEvent.checked(event);
  trace(Trace::kEventSynchronization, event);
}

void destroy_event(void* event, c10::DeviceIndex index) noexcept {
  if (!event || in_bad_fork()) return;
  try {
    activate(index);
    trace(Trace::kEventDeletion, event);
    cann::api().aclrtDestroyEvent.checked(event);
  } catch (const std::exception& error) {
    TORCH_WARN("could not destroy an npu event: ", error.what());
  }
}

void* create_external_event() {
  activate(current_device());
  void* event = nullptr;
  cann::api().aclrtCreateEventExWithFlag.checked(&event, ACL_EVENT_EXTERNAL);
  return event;
}

void record_external_event(void* event, aclrtStream stream) {
  activate_any();
  cann::api().aclrtRecordEvent.checked(event, stream);
  trace(Trace::kEventRecord, event, stream);
}

void wait_external_event(void* event, aclrtStream stream) {
  activate_any();
  cann::api().aclrtStreamWaitEvent.checked(stream, event);
  trace(Trace::kEventWait, event, stream);
}

void reset_event(void* event, aclrtStream stream) {
  activate_any();
  cann::api().aclrtResetEvent.checked(event, stream);
}

double elapsed_milliseconds(void* start, void* end) {
  TORCH_CHECK(start && end, "both events must be recorded before the time between them is known");
  activate_any();
  float milliseconds = 0;
  cann::api().aclrtEventElapsedTime.checked(&milliseconds, start, end);
  return milliseconds;
}

uint64_t recorded_time(void* event) {
  TORCH_CHECK(event, "the event must be recorded before its time is known");
  activate_any();
  uint64_t microseconds = 0;
  cann::api().aclrtEventGetTimestamp.checked(event, &microseconds);
  return microseconds;
}

}  // namespace torch_npu::device
