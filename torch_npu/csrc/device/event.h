#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "cann/acl.h"

/// Events as c10::Event holds them: an aclrtEvent behind a void*, created when it is first recorded.
namespace torch_npu::device {

/// Creates *event if it is null (with time stamps if `flag` asks for them) and records it on `stream`.
void record_event(void** event, c10::Stream stream, c10::EventFlag flag);

/// Makes later work of `stream` wait for the event; no event, no wait.
void block_stream(void* event, c10::Stream stream);

bool query_event(void* event);
void synchronize_event(void* event);
void destroy_event(void* event, c10::DeviceIndex index) noexcept;

/// An event that works of different graphs, and work outside, signal to each other: in a capture a wait is
/// recorded although nothing recorded in the same graph precedes it. It can be reset in stream order.
void* create_external_event();
void record_external_event(void* event, aclrtStream stream);
void wait_external_event(void* event, aclrtStream stream);
void reset_event(void* event, aclrtStream stream);

/// Milliseconds between two events that were created with time stamps. Both must be complete.
double elapsed_milliseconds(void* start, void* end);

/// The device's clock at the event, in microseconds.
uint64_t recorded_time(void* event);

}  // namespace torch_npu::device
