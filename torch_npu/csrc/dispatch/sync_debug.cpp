#include "torch_npu/csrc/dispatch/sync_debug.h"

#include <c10/util/Exception.h>

#include "torch_npu/csrc/dispatch/python_line.h"

namespace torch_npu::detail {

void report_synchronization(const char* what) {
  const std::string& line = python_line();
  const std::string message = std::string("called a synchronizing npu operation: ") + what +
                              (line.empty() ? "" : " at " + line) + " makes the host wait for the device";
  TORCH_CHECK(sync_debug.load(std::memory_order_relaxed) != SyncDebug::kError, message);
  TORCH_WARN(message);
}

}  // namespace torch_npu::detail
