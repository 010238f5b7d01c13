#include "extent.h"

#include "memory.h"
#include "settings.h"

namespace cann_host {

std::string reason_against_extent(const void* address, size_t bytes) {
  const size_t device = settings().device_memory;
  if (bytes > device) {
    return "needs " + std::to_string(bytes) + " bytes, and the device has " + std::to_string(device);
  }
  const size_t left = memory_map().device_bytes_from(address, bytes);
  if (left == 0 || left >= bytes) return "";
  return "needs " + std::to_string(bytes) + " bytes, and its allocation has " + std::to_string(left) +
         " left";
}

}  // namespace cann_host
