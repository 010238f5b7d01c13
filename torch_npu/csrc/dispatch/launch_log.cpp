#include "torch_npu/csrc/dispatch/launch_log.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/dispatch/python_line.h"

namespace torch_npu {
namespace {

const std::string& no_line() {
  static const std::string empty;
  return empty;
}

const std::string& (*g_python_line)() = &no_line;

struct Launch {
  const char* op = nullptr;
  const std::string* line = nullptr;
};

/// The last launches of all streams.
class LaunchLog {
 public:
  void add(Launch launch) {
    const std::lock_guard lock(mutex_);
    launches_[next_++ % launches_.size()] = launch;
  }

  /// Distinct lines of launches whose operator is in `message`, most recent first.
  std::vector<const std::string*> lines_of(std::string_view message) {
    const std::lock_guard lock(mutex_);
    std::vector<const std::string*> lines;
    const size_t count = std::min(next_, launches_.size());
    for (size_t back = 1; back <= count; ++back) {
      const Launch& launch = launches_[(next_ - back) % launches_.size()];
      if (launch.line->empty() || message.find(std::string(launch.op) + "(") == std::string_view::npos)
        continue;
      if (std::find(lines.begin(), lines.end(), launch.line) == lines.end()) lines.push_back(launch.line);
    }
    return lines;
  }

 private:
  std::mutex mutex_;
  std::array<Launch, 4096> launches_;
  size_t next_ = 0;
};

LaunchLog& launch_log() {
  static auto* log = new LaunchLog;  // outlives static destruction
  return *log;
}

}  // namespace

const std::string& python_line() { return g_python_line(); }
void set_python_line(const std::string& (*function)()) { g_python_line = function; }

void note_launch(const char* op, aclrtStream stream) {
  const auto& runs_inline = cann::api().cannHostStreamRunsInline;
  if (static_cast<bool>(runs_inline) && runs_inline(stream) != 0) return;
  launch_log().add({op, &python_line()});
}

std::string launched_by(std::string_view message) {
  constexpr size_t kShown = 3;
  const auto lines = launch_log().lines_of(message);
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kShown); ++i) text += (i ? "; or " : "") + *lines[i];
  return text;
}

}  // namespace torch_npu
