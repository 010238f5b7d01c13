// What devices are and can do, and the options that clients set on them.
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "device.h"
#include "event.h"
#include "settings.h"
#include "stream.h"

namespace cann_host {

std::atomic<uint32_t>& CoreLimits::of(aclrtDevResLimitType type) {
  switch (type) {
    case ACL_RT_DEV_RES_CUBE_CORE:
      return cube;
    case ACL_RT_DEV_RES_VECTOR_CORE:
      return vector;
  }
  refuse(ACL_ERROR_INVALID_PARAM, "type=%d is not a kind of core", type);
}

namespace {

thread_local Stream* cores_stream = nullptr;  // aclrtUseStreamResInCurrentThread
std::atomic<int> saturation_mode{ACL_RT_OVERFLOW_MODE_INFNAN};

uint32_t cores_of_soc(aclrtDevResLimitType type) {
  const Soc& soc = settings().soc;
  return static_cast<uint32_t>(type == ACL_RT_DEV_RES_CUBE_CORE ? soc.cube_cores : soc.vector_cores);
}

uint32_t device_limit(Device& device, aclrtDevResLimitType type) {
  uint32_t set = device.limits.of(type).load();
  return set ? set : cores_of_soc(type);
}

uint32_t stream_limit(Stream& stream, aclrtDevResLimitType type) {
  uint32_t set = stream.limits.of(type).load();
  return set ? set : device_limit(stream.device, type);
}

void set_limit(CoreLimits& limits, aclrtDevResLimitType type, uint32_t value) {
  std::atomic<uint32_t>& limit = limits.of(type);
  uint32_t most = cores_of_soc(type);
  if (value == 0 || value > most)
    refuse(ACL_ERROR_INVALID_PARAM, "value=%u: expected 1 to %u cores", value, most);
  limit.store(value);
}

void reset_limits(CoreLimits& limits) {
  limits.cube.store(0);
  limits.vector.store(0);
}

int64_t device_attribute(const Device& device, aclrtDevAttr attribute) {
  const Soc& soc = settings().soc;
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
      return std::max(1u, std::thread::hardware_concurrency());
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
      return soc.cube_cores;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      return soc.vector_cores;
    case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE:
      return soc.ub_bytes;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      return static_cast<int64_t>(settings().device_memory);
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      return soc.l2_bytes;
    case ACL_DEV_ATTR_SMP_ID:
      return 0;
    case ACL_DEV_ATTR_PHY_CHIP_ID:
      return device.physical_id;
    case ACL_DEV_ATTR_IS_VIRTUAL:
      return 1;
    case ACL_DEV_ATTR_NPU_ARCH:
      return soc.npu_arch;
    case ACL_DEV_ATTR_WARP_SIZE:
    case ACL_DEV_ATTR_MAX_THREAD_PER_VECTOR_CORE:
      break;  // of SIMT products only, which cann_host does not imitate
  }
  refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "attr=%d is not known of %s", attribute, soc.name.c_str());
}

/// Per cent of the machine that this process used since the last call: the device is the CPU.
int32_t cpu_utilization() {
  static std::mutex mutex;
  static uint64_t last_wall = 0, last_cpu = 0;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto us = [](const timeval& t) {
    return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_usec);
  };
  uint64_t cpu = us(usage.ru_utime) + us(usage.ru_stime), wall = now_ns() / 1000;
  std::lock_guard lock(mutex);
  uint64_t spent = cpu - std::exchange(last_cpu, cpu), passed = wall - std::exchange(last_wall, wall);
  uint64_t available = passed * std::max(1u, std::thread::hardware_concurrency());
  return available ? static_cast<int32_t>(std::min<uint64_t>(100, spent * 100 / available)) : 0;
}

std::atomic<int64_t>& option(Context& context, aclSysParamOpt option) {
  switch (option) {
    case ACL_OPT_DETERMINISTIC:
      return context.deterministic;
    case ACL_OPT_ENABLE_DEBUG_KERNEL:
      return context.debug_kernel;
    case ACL_OPT_STRONG_CONSISTENCY:
      return context.strong_consistency;
  }
  refuse(ACL_ERROR_INVALID_PARAM, "opt=%d is not an option", option);
}

void set_option(Context& context, aclSysParamOpt which, int64_t value) {
  if (value != 0 && value != 1) refuse(ACL_ERROR_INVALID_PARAM, "value=%ld: expected 0 or 1", value);
  option(context, which).store(value);
}

Context process_context{nullptr, false};  // aclrtSetSysParamOpt
constexpr uint32_t attribute_count = 3;
const aclCannAttr attributes[attribute_count] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16,
                                                 ACL_CANN_ATTR_JIT_COMPILE};

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclGetDeviceCapability(uint32_t id, aclDeviceInfo info, int64_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    Device& device = device_of(id);
    switch (info) {
      case ACL_DEVICE_INFO_AI_CORE_NUM:
        *value = device_attribute(device, ACL_DEV_ATTR_AICORE_CORE_NUM);
        return;
      case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
        *value = device_attribute(device, ACL_DEV_ATTR_VECTOR_CORE_NUM);
        return;
      case ACL_DEVICE_INFO_L2_SIZE:
        *value = device_attribute(device, ACL_DEV_ATTR_L2_CACHE_SIZE);
        return;
      case ACL_DEVICE_INFO_UNDEFINED:
        break;
    }
    refuse(ACL_ERROR_INVALID_PARAM, "deviceInfo=%d is not a property of devices", info);
  });
}

aclError aclrtGetDeviceInfo(uint32_t id, aclrtDevAttr attribute, int64_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    *value = device_attribute(device_of(id), attribute);
  });
}

aclError aclrtGetDeviceUtilizationRate(int32_t id, aclrtUtilizationInfo* info) {
  return entry(__func__, [&] {
    require_pointer(info, "utilizationInfo");
    Device& device = device_of(id);
    *info = {};
    info->cubeUtilization = info->vectorUtilization = info->aicpuUtilization = cpu_utilization();
    info->memoryUtilization =
        static_cast<int32_t>(100.0 * static_cast<double>(device.memory_used.load()) /
                             static_cast<double>(std::max<size_t>(1, settings().device_memory)));
  });
}

aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  return entry(__func__, [&] {
    require_pointer(list, "cannAttrList");
    require_pointer(count, "num");
    *list = attributes;
    *count = attribute_count;
  });
}

aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    switch (attribute) {
      case ACL_CANN_ATTR_INF_NAN:
      case ACL_CANN_ATTR_BF16:
        *value = 1;
        return;
      case ACL_CANN_ATTR_JIT_COMPILE:
        *value = 0;
        return;
      case ACL_CANN_ATTR_UNDEFINED:
        break;
    }
    refuse(ACL_ERROR_INVALID_PARAM, "cannAttr=%d is not an attribute", attribute);
  });
}

aclError aclrtGetDeviceResLimit(int32_t id, aclrtDevResLimitType type, uint32_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    *value = device_limit(device_of(id), type);
  });
}

aclError aclrtSetDeviceResLimit(int32_t id, aclrtDevResLimitType type, uint32_t value) {
  return entry(__func__, [&] { set_limit(device_of(id).limits, type, value); });
}

aclError aclrtResetDeviceResLimit(int32_t id) {
  return entry(__func__, [&] { reset_limits(device_of(id).limits); });
}

aclError aclrtGetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    *value = stream_limit(stream_of(stream), type);
  });
}

aclError aclrtSetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t value) {
  return entry(__func__, [&] { set_limit(stream_of(stream).limits, type, value); });
}

aclError aclrtResetStreamResLimit(aclrtStream stream) {
  return entry(__func__, [&] { reset_limits(stream_of(stream).limits); });
}

aclError aclrtUseStreamResInCurrentThread(aclrtStream stream) {
  return entry(__func__, [&] { cores_stream = &stream_of(stream); });
}

aclError aclrtUnuseStreamResInCurrentThread(aclrtStream stream) {
  return entry(__func__, [&] {
    if (cores_stream == &stream_of(stream)) cores_stream = nullptr;
  });
}

aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    Stream* stream = cores_stream ? streams.find(cores_stream) : nullptr;
    *value = stream ? stream_limit(*stream, type) : device_limit(current_device(), type);
  });
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  return entry(__func__, [&] {
    if (mode != ACL_RT_OVERFLOW_MODE_INFNAN) {
      refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
             "mode=%d: cann_host computes with inf and nan (ACL_RT_OVERFLOW_MODE_INFNAN) and cannot saturate",
             mode);
    }
    saturation_mode.store(mode);
  });
}

aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode* mode) {
  return entry(__func__, [&] {
    require_pointer(mode, "mode");
    *mode = static_cast<aclrtFloatOverflowMode>(saturation_mode.load());
  });
}

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return entry(__func__, [&] { set_option(process_context, opt, value); });
}

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    *value = option(process_context, opt).load();
  });
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return entry(__func__, [&] { set_option(current_context(), opt, value); });
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    *value = option(current_context(), opt).load();
  });
}

// Work that runs on this machine is not killed by the clock: the timeouts of operators are accepted and have
// no effect.
aclError aclrtSetOpWaitTimeout(uint32_t) {
  return entry(__func__, [] {});
}

aclError aclrtSetOpExecuteTimeOut(uint32_t) {
  return entry(__func__, [] {});
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actual) {
  return entry(__func__, [&] {
    require_pointer(actual, "actualTimeout");
    *actual = timeout;
  });
}
