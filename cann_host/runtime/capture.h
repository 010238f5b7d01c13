// Capture: tasks recorded into a model (aclmdlRI) that runs them as often as wanted.
#pragma once

#include <cann/acl.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "event.h"
#include "handle_table.h"
#include "task.h"

namespace cann_host {

class Stream;

/// What a client can run. The tasks lie in the order in which they were submitted; as all dependences between
/// streams of one capture come from calls in that order, running them one after another respects every one of
/// them.
struct Model {
  const uint32_t id;
  std::string name;
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<int32_t> stream_ids;  // of each task
  std::atomic<int> queued_runs{0};
  bool complete = false;  // capture has ended

  explicit Model(uint32_t id) : id(id) {}
  /// Stops at the first failure, whose text it leaves as the thread's last error.
  aclError run() noexcept;
};

extern HandleTable<Model, 1 << 16> models;

/// Tasks of a model that can be recorded anew; inside the model they are one task.
struct TaskGroup {
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<std::unique_ptr<Task>> replaced;  // while they are recorded anew
};

extern HandleTable<TaskGroup, 1 << 16> task_groups;

class Capture {
 public:
  Capture(uint64_t id, Model& model, Stream& origin, aclmdlRICaptureMode mode);

  void record(Stream& stream, std::unique_ptr<Task> task);
  /// The stream becomes part of the capture, after what `clock` covers.
  void join(Stream& stream, const CaptureClock& clock);
  /// What comes next on the stream comes after what `clock` covers.
  void merge(Stream& stream, const CaptureClock& clock);
  CaptureClock clock_of(Stream& stream);
  /// Releases all streams. Throws if work of one of them was not joined to the origin.
  void end();

  void begin_group(Stream& stream);
  TaskGroup* end_group(Stream& stream);

  const uint64_t id;
  Model& model;
  Stream& origin;
  const aclmdlRICaptureMode mode;
  const std::thread::id thread = std::this_thread::get_id();

 private:
  struct Member {
    Stream* stream;
    CaptureClock clock;
    TaskGroup* open_group = nullptr;
  };

  Member& member(Stream& stream);

  std::mutex mutex_;
  std::map<int32_t, Member> members_;  // by stream id
};

/// Null if that capture has ended.
Capture* active_capture(uint64_t id);

/// Calls that run at once while work is recorded (synchronous copies, waiting for the device) usually are
/// mistakes: throws ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT if the modes of the captures and of this thread
/// forbid them.
void require_unsafe_call_allowed();

}  // namespace cann_host
