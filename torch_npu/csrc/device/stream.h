#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <vector>

#include "cann/acl.h"

/// Streams: c10::Stream <-> aclrtStream, the pool, and the current stream of each thread and device.
///
/// A c10::StreamId is 0 for the default stream, (3 << 5 | i) or (4 << 5 | i) for slot i of the pool of normal
/// or high priority, and the aclrtStream itself for a stream that someone else created. All but the last are
/// made at first use and live as long as the process.
namespace torch_npu::device {

constexpr int kStreamsPerPool = 32;

/// The current stream of this thread on `index`, ready for a launch: the device is activated. The hot path of
/// every op.
aclrtStream current_stream_handle(c10::DeviceIndex index);

c10::Stream current_stream(c10::DeviceIndex index);
c10::Stream default_stream(c10::DeviceIndex index);

/// The next stream of the device's pool, round robin. A negative `priority` is high, as in PyTorch.
c10::Stream stream_from_pool(c10::DeviceIndex index, int priority);

/// A stream created by other code, which keeps owning it.
c10::Stream external_stream(aclrtStream handle, c10::DeviceIndex index);

/// Makes `stream` current on its device in this thread and returns the one that was. Keeps the current
/// device.
c10::Stream exchange_stream(c10::Stream stream);

/// Raises if `stream` is no stream of this module (a made-up id, another device type).
aclrtStream stream_handle(c10::Stream stream);

/// -1 for a stream of the high-priority pool, 0 for any other.
int stream_priority(c10::Stream stream);

bool query_stream(c10::Stream stream);
void synchronize_stream(c10::Stream stream);
void synchronize_handle(aclrtStream stream);

/// True while work put on `stream` is recorded into a graph.
bool is_capturing(c10::Stream stream);

}  // namespace torch_npu::device
