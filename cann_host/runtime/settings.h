// The environment variables of cann_host, each read once.
#pragma once

#include <cann/acl.h>

#include <string>
#include <vector>

namespace cann_host {

struct Soc {
  std::string name;
  int64_t cube_cores;
  int64_t vector_cores;
  int64_t l2_bytes;
  int64_t ub_bytes;  // unified buffer of one vector core
  int64_t npu_arch;
};

struct Settings {
  Soc soc;                    // CANN_HOST_SOC
  uint32_t physical_devices;  // CANN_HOST_DEVICES
  size_t device_memory;       // bytes of one device: CANN_HOST_MEMORY
  bool asynchronous;          // CANN_HOST_ASYNC
  uint32_t delay_us;          // CANN_HOST_DELAY_US
  bool trace;                 // CANN_HOST_TRACE
  bool winograd;              // CANN_HOST_WINOGRAD
  std::string problem;        // what is wrong with them; empty if nothing is
};

#pragma GCC visibility push(default)
const Settings& settings();
#pragma GCC visibility pop

/// Logical -> physical: CANN_HOST_DEVICES filtered by ASCEND_RT_VISIBLE_DEVICES. Read anew until devices
/// exist, because programs set it after they loaded their plug-in and even after they counted. The reference
/// holds until the thread's next call.
const std::vector<int32_t>& visible_devices();

/// The same from now on, whatever becomes of the variable.
const std::vector<int32_t>& fix_visible_devices();

/// Throws ACL_ERROR_INVALID_PARAM if a setting could not be understood.
void require_valid_settings();
/// The same, ASCEND_RT_VISIBLE_DEVICES included.
void require_valid_devices();

}  // namespace cann_host
