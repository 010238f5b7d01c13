#include "device.h"

#include <cann/hal.h>
#include <pthread.h>
#include <unistd.h>

#include <cstring>

#include "memory.h"
#include "settings.h"
#include "stream.h"

namespace cann_host {

thread_local Context* thread_context = nullptr;

namespace {

/// Only the calling thread lives on in the child, and no lock of the parent may be trusted there.
void after_fork_in_child() {
  if (unusual.load() & forked) return;
  bool used = false;
  for (uint32_t id = 0; id < device_count(); ++id) used |= device_of(id).in_use.load();
  if (!used) return;
  unusual.fetch_or(forked);
  thread_context = nullptr;
}

Device* make_devices() {
  const auto& physical = fix_visible_devices();
  auto* all = new Device[physical.size()];
  for (size_t i = 0; i < physical.size(); ++i) {
    Device& device = all[i];
    device.id = static_cast<int32_t>(i);
    device.physical_id = physical[i];
    device.primary = contexts.create(&device, true);
    device.default_stream = streams.create(device, 0u, 0u);
  }
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  return all;
}

Device* devices() {
  static Device* all = make_devices();
  return all;
}

void reset_device(int32_t id) {
  Device& device = device_of(id);
  synchronize(device, {});
  device.in_use.store(false);
  if (thread_context && thread_context->device == &device) thread_context = nullptr;
}

std::atomic<bool> initialized{false};

}  // namespace

uint32_t device_count() { return static_cast<uint32_t>(visible_devices().size()); }

Device& device_of(int64_t id) {
  if (id < 0 || id >= device_count()) [[unlikely]] {
    require_valid_devices();
    refuse(ACL_ERROR_RT_INVALID_DEVICEID,
           "device %ld does not exist: there are %u (see CANN_HOST_DEVICES and ASCEND_RT_VISIBLE_DEVICES)",
           static_cast<long>(id), device_count());
  }
  return devices()[id];
}

Device& current_or_first_device() {
  if (!thread_context) {
    Device& first = device_of(0);
    first.in_use.store(true);
    thread_context = first.primary;
  }
  return current_device();
}

void Device::take_memory(size_t size) {
  size_t total = settings().device_memory;
  size_t used = memory_used.load(std::memory_order_relaxed);
  do {
    if (size > total || used > total - size) {
      refuse(ACL_ERROR_RT_MEMORY_ALLOCATION,
             "device %d has %zu of %zu bytes free, %zu were asked for (see CANN_HOST_MEMORY)", id,
             total - std::min(used, total), total, size);
    }
  } while (!memory_used.compare_exchange_weak(used, used + size, std::memory_order_relaxed));
  size_t peak = memory_peak.load(std::memory_order_relaxed);
  while (peak < used + size && !memory_peak.compare_exchange_weak(peak, used + size)) {
  }
}

Deadline deadline_after(int32_t milliseconds) {
  if (milliseconds == -1) return std::nullopt;
  if (milliseconds < 0) {
    refuse(ACL_ERROR_INVALID_PARAM, "timeout=%d ms: expected -1 (for ever) or a positive number",
           milliseconds);
  }
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
}

}  // namespace cann_host

using namespace cann_host;

aclError aclInit(const char*) {
  return entry(__func__, [] {
    require_valid_settings();
    if (initialized.exchange(true)) refuse(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
  });
}

aclError aclFinalize(void) {
  return entry(__func__, [] {
    if (!initialized.exchange(false))
      refuse(ACL_ERROR_REPEAT_FINALIZE, "aclInit was not called, or aclFinalize was");
    for (uint32_t id = 0; id < device_count(); ++id) synchronize(device_of(id), {});
  });
}

aclError aclrtSetDevice(int32_t id) {
  return entry(__func__, [&] {
    Device& device = device_of(id);
    if (!device.in_use.load(std::memory_order_relaxed)) [[unlikely]] {
      require_valid_devices();
      device.in_use.store(true);
    }
    thread_context = device.primary;
  });
}

aclError aclrtGetDevice(int32_t* id) {
  return entry(__func__, [&] {
    require_pointer(id, "deviceId");
    *id = current_device().id;
  });
}

aclError aclrtResetDevice(int32_t id) {
  return entry(__func__, [&] { reset_device(id); });
}

aclError aclrtResetDeviceForce(int32_t id) {
  return entry(__func__, [&] { reset_device(id); });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return entry(__func__, [&] {
    require_pointer(count, "count");
    require_valid_devices();
    *count = device_count();
  });
}

int32_t drvGetDevNum(uint32_t* count) {
  return entry(__func__, [&] {
    require_pointer(count, "count");
    *count = settings().physical_devices;
  });
}

aclError aclrtSynchronizeDevice(void) {
  return entry(__func__, [] { synchronize_or_fail(current_device(), {}); });
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  return entry(__func__, [&] { synchronize_or_fail(current_device(), deadline_after(timeout)); });
}

aclError aclrtDeviceTaskAbort(int32_t id, uint32_t) {
  return entry(__func__, [&] { abort_tasks(device_of(id)); });
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t id, int32_t peer) {
  return entry(__func__, [&] {
    require_pointer(can, "canAccessPeer");
    *can = &device_of(id) != &device_of(peer);
  });
}

aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
  return entry(__func__, [&] {
    if (flags) refuse(ACL_ERROR_INVALID_PARAM, "flags=%u: expected 0", flags);
    if (&device_of(peer) == &current_device()) {
      refuse(ACL_ERROR_INVALID_PARAM, "peerDeviceId=%d is the current device itself", peer);
    }
  });
}

aclError aclrtDeviceDisablePeerAccess(int32_t peer) {
  return entry(__func__, [&] { device_of(peer); });
}

aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  return entry(__func__, [&] {
    require_pointer(pid, "pid");
    *pid = getpid();
  });
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logic) {
  return entry(__func__, [&] {
    require_pointer(logic, "logicDevId");
    *logic = device_of(user).physical_id;
  });
}

aclError aclrtGetRunMode(aclrtRunMode* mode) {
  return entry(__func__, [&] {
    require_pointer(mode, "runMode");
    *mode = ACL_HOST;
  });
}

const char* aclrtGetSocName(void) { return settings().soc.name.c_str(); }

aclError aclrtDeviceGetUuid(int32_t id, aclrtUuid* uuid) {
  return entry(__func__, [&] {
    require_pointer(uuid, "uuid");
    Device& device = device_of(id);
    std::memset(uuid, 0, sizeof *uuid);
    std::memcpy(uuid->bytes, "cann_host", 9);
    std::memcpy(uuid->bytes + 12, &device.physical_id, sizeof device.physical_id);
  });
}
