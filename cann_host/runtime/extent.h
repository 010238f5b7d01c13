// What the operators ask the runtime about the memory of their arguments.
#pragma once

#include <cstddef>
#include <string>

#pragma GCC visibility push(default)
namespace cann_host {

/// Why `bytes` from `address` on cannot all be memory of a device: no device has so many, or the allocation
/// ends before. Empty if nothing speaks against it; memory that the runtime does not know is the client's
/// affair.
std::string reason_against_extent(const void* address, size_t bytes);

}  // namespace cann_host
#pragma GCC visibility pop
