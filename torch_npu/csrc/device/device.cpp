#include "torch_npu/csrc/device/device.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/init_config.h"
#include "torch_npu/csrc/device/thread_state.h"
#include "torch_npu/csrc/device/trace.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::device {

constinit thread_local ThreadState thread_state;

namespace {

enum class Phase { kFresh, kReady, kForked };
std::atomic<Phase> phase{Phase::kFresh};
std::mutex init_mutex;
std::array<std::atomic<bool>, kMaxDevices> contexts{};
InitConfig init_config;
uint32_t count_in_use = 0;  // of visible devices, from the initialisation on

/// The driver's state does not survive a fork. The child has only the forking thread, so forgetting what that
/// one had activated sends every later use through ensure_initialized().
void after_fork_in_child() {
  phase.store(Phase::kForked);
  thread_state = ThreadState{};
}

void require_usable_config() { TORCH_CHECK(init_config.problem.empty(), init_config.problem); }

void initialize() {
  TORCH_CHECK(phase.load() != Phase::kForked,
              "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use "
              "the 'spawn' "
              "start method");
  require_usable_config();
  std::lock_guard<std::mutex> lock(init_mutex);
  if (phase.load() == Phase::kReady) return;
  const cann::Api& api = cann::api();
  // Other users of CANN in the process may have initialised it.
  const char* file = init_config.path.empty() ? nullptr : init_config.path.c_str();
  if (const aclError code = api.aclInit(file); code != ACL_ERROR_REPEAT_INITIALIZE)
    cann::check(code, "aclInit");
  api.aclrtGetDeviceCount.checked(&count_in_use);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  phase.store(Phase::kReady, std::memory_order_release);
}

std::string list_devices(int count) {
  if (count == 1) return "1 npu device (npu:0)";
  return std::to_string(count) + " npu devices (npu:0 to npu:" + std::to_string(count - 1) + ")";
}

std::string format_uuid(const aclrtUuid& uuid) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += byte;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

std::string read_uuid(c10::DeviceIndex index) {
  aclrtUuid uuid{};
  const auto& get = cann::api().aclrtDeviceGetUuid;
  if (get && get(index, &uuid) != ACL_SUCCESS) uuid = {};  // older drivers have the call and no UUID
  return format_uuid(uuid);
}

int64_t read_capability(c10::DeviceIndex index, aclDeviceInfo what) {
  int64_t value = 0;
  cann::api().aclGetDeviceCapability.checked(index, what, &value);
  return value;
}

Properties read_properties(c10::DeviceIndex index) {
  return {.name = cann::info().soc,
          .total_memory = memory_info(index).second,
          .cube_core_num = read_capability(index, ACL_DEVICE_INFO_AI_CORE_NUM),
          .vector_core_num = read_capability(index, ACL_DEVICE_INFO_VECTOR_CORE_NUM),
          .L2_cache_size = static_cast<size_t>(read_capability(index, ACL_DEVICE_INFO_L2_SIZE)),
          .uuid = read_uuid(index)};
}

aclrtMemLocation location_of(const void* pointer) {
  aclrtPtrAttributes attributes{};
  attributes.location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  activate_any();
  cann::api().aclrtPointerGetAttributes.checked(pointer, &attributes);
  return attributes.location;
}

}  // namespace

void ensure_initialized() {
  if (phase.load(std::memory_order_acquire) != Phase::kReady) [[unlikely]]
    initialize();
}

bool is_initialized() noexcept { return phase.load() == Phase::kReady; }

bool in_bad_fork() noexcept { return phase.load() == Phase::kForked; }

c10::DeviceIndex device_count() noexcept {
  try {
    uint32_t count = count_in_use;
    // Until then ASCEND_RT_VISIBLE_DEVICES may still change what the process sees.
    if (phase.load(std::memory_order_acquire) == Phase::kFresh) {
      count = static_cast<uint32_t>(cann::info().device_count);
      if (count > 0) cann::api().aclrtGetDeviceCount.checked(&count);
    }
    return static_cast<c10::DeviceIndex>(std::min<uint32_t>(count, kMaxDevices));
  } catch (...) {
    // PyTorch asks this in places that cannot handle an exception; whoever uses a device gets the reason.
    return 0;
  }
}

void set_init_config(InitConfig config) { init_config = std::move(config); }

void check_index(c10::DeviceIndex index) {
  require_usable_config();
  const int count = device_count();
  if (index >= 0 && index < count) return;
  cann::api();  // if there is no device at all, raises the reason
  TORCH_CHECK(false, "invalid device index: ", static_cast<int>(index), ", this process sees ",
              list_devices(count),
              cann::info().is_host ? ". CANN_HOST_DEVICES sets how many the software CANN shows."
                                   : ". ASCEND_RT_VISIBLE_DEVICES selects the visible ones.");
}

c10::DeviceIndex current_device() noexcept { return thread_state.selected; }

void set_device(c10::DeviceIndex index) {
  if (index == thread_state.selected) return;
  check_index(index);
  thread_state.selected = index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const c10::DeviceIndex before = thread_state.selected;
  if (index >= 0) set_device(index);
  return before;
}

void activate(c10::DeviceIndex index) {
  if (index == thread_state.active) [[likely]]
    return;
  ensure_initialized();
  check_index(index);
  cann::api().aclrtSetDevice.checked(index);
  thread_state.active = index;
  contexts[index].store(true);
}

void activate_any() {
  if (thread_state.active == ThreadState::kNone) activate(thread_state.selected);
}

bool has_context(c10::DeviceIndex index) noexcept {
  return index >= 0 && index < kMaxDevices && is_initialized() && contexts[index].load();
}

void synchronize(c10::DeviceIndex index) {
  if (index < 0) index = current_device();
  if (in_bad_fork()) ensure_initialized();  // raises
  check_index(index);
  if (!has_context(index)) return;
  graph::require_no_recording("torch.npu.synchronize",
                              "the host would have to wait, and nothing runs before the replay", index);
  activate(index);
  cann::api().aclrtSynchronizeDevice.checked();
  trace(Trace::kDeviceSynchronization);
}

void synchronize_all() {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) synchronize(index);
}

std::optional<c10::DeviceIndex> device_of_pointer(const void* pointer) {
  if (!is_initialized()) return std::nullopt;
  const aclrtMemLocation location = location_of(pointer);
  if (location.type != ACL_MEM_LOCATION_TYPE_DEVICE) return std::nullopt;
  return static_cast<c10::DeviceIndex>(location.id);
}

bool is_pinned(const void* pointer) {
  // Before the first use no memory can be pinned, and asking must not initialise (DataLoader workers ask).
  return pointer && is_initialized() && location_of(pointer).type == ACL_MEM_LOCATION_TYPE_HOST;
}

const Properties& properties(c10::DeviceIndex index) {
  static std::array<std::once_flag, kMaxDevices> once;
  static std::array<Properties, kMaxDevices> cache;
  check_index(index);
  std::call_once(once[index], [&] { cache[index] = read_properties(index); });
  return cache[index];
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex index) {
  activate(index);
  size_t free = 0, total = 0;
  cann::api().aclrtGetMemInfo.checked(ACL_HBM_MEM, &free, &total);
  return {free, total};
}

int32_t utilization(c10::DeviceIndex index) {
  ensure_initialized();
  aclrtUtilizationInfo info{};
  cann::api().aclrtGetDeviceUtilizationRate.checked(index, &info);
  return info.cubeUtilization;
}

bool can_access_peer(c10::DeviceIndex index, c10::DeviceIndex peer) {
  check_index(index);
  check_index(peer);
  if (index == peer) return false;
  ensure_initialized();
  int32_t can = 0;
  cann::api().aclrtDeviceCanAccessPeer.checked(&can, index, peer);
  return can != 0;
}

}  // namespace torch_npu::device
