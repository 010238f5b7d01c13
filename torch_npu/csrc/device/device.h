#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

/// Devices as this process sees them: how many, which one a thread has selected, what they are.
///
/// Nothing here touches a device before it must. Counting loads CANN's libraries; ensure_initialized()
/// (aclInit) and activate() (aclrtSetDevice in this thread) run at the first allocation, stream or launch.
namespace torch_npu::device {

/// More devices than any Ascend server shows to one process.
constexpr c10::DeviceIndex kMaxDevices = 64;

/// Calls aclInit at first use. Raises if no CANN can be used, or in the forked child of an initialised
/// process.
void ensure_initialized();

/// True after ensure_initialized() succeeded in this process.
bool is_initialized() noexcept;

/// True in a child that was forked from an initialised process: the device cannot be used there.
bool in_bad_fork() noexcept;

/// Number of visible devices, 0 if no CANN can be used. Never raises and initialises nothing.
c10::DeviceIndex device_count() noexcept;

/// Raises if there is no such device: "invalid device index: 7, this process sees 1 npu device (npu:0) …".
void check_index(c10::DeviceIndex index);

/// The calling thread's device (0 until it selects another).
c10::DeviceIndex current_device() noexcept;

/// Selects the calling thread's device. The driver hears of it at activate().
void set_device(c10::DeviceIndex index);

/// set_device() that returns the previous device; a negative index selects nothing.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);

/// Makes `index` the driver's current device in this thread, which calls that take no stream depend on
/// (aclrtMalloc, aclrtCreateStream, …). Initialises. Costs a comparison if it is already.
void activate(c10::DeviceIndex index);

/// Activates the thread's device if it has activated none: for calls that need some device, no matter which.
void activate_any();

/// True once any thread has activated the device.
bool has_context(c10::DeviceIndex index) noexcept;

/// Waits for all streams of the device; does nothing if the device has no context.
void synchronize(c10::DeviceIndex index);

/// Waits for all devices that have a context.
void synchronize_all();

/// The device that owns `pointer`, or nothing if it is host memory.
std::optional<c10::DeviceIndex> device_of_pointer(const void* pointer);

/// True if `pointer` is host memory that CANN has allocated or registered (aclrtMallocHost).
bool is_pinned(const void* pointer);

struct Properties {
  std::string name;       // the SoC, such as "Ascend910B3"
  size_t total_memory;    // bytes
  int64_t cube_core_num;  // matrix cores
  int64_t vector_core_num;
  size_t L2_cache_size;  // bytes
  std::string uuid;
};
const Properties& properties(c10::DeviceIndex index);

/// {free, total} bytes of the device's memory.
std::pair<size_t, size_t> memory_info(c10::DeviceIndex index);

/// How busy the matrix cores are, in per cent.
int32_t utilization(c10::DeviceIndex index);

/// False for a device and itself.
bool can_access_peer(c10::DeviceIndex index, c10::DeviceIndex peer);

}  // namespace torch_npu::device
