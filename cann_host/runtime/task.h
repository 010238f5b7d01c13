// What the runtime offers to the libraries that put work on streams (libopapi, libhccl).
#pragma once

#include <cann/acl.h>

#include <memory>
#include <string>

#pragma GCC visibility push(default)
namespace cann_host {

/// One piece of work on a stream: run now, queued (asynchronous mode), or recorded (capture) and then run
/// many times. Everything that it needs is its own: descriptors given to an operator die when the call that
/// submitted it returns.
class Task {
 public:
  virtual ~Task() = default;
  /// Does the work. Not ACL_SUCCESS: the stream's next synchronisation returns it, with what `set_last_error`
  /// was told.
  virtual aclError run() noexcept = 0;
  /// For messages, traces and dumps of graphs: `aclnnAdd(self=float32[2,3], …)`.
  virtual std::string describe() const = 0;
};

/// True if work put on this stream now would run at once, on this thread. A few nanoseconds: the caller then
/// needs no Task at all. A null stream is the current device's default stream.
bool runs_inline(aclrtStream stream) noexcept;

/// Runs, queues or records the task. When it runs at once, the result is the task's own.
aclError submit(aclrtStream stream, std::unique_ptr<Task> task);

/// What the next aclGetRecentErrMsg of this thread returns; replaces an earlier message that nobody read.
void set_last_error(std::string message);

}  // namespace cann_host
#pragma GCC visibility pop
