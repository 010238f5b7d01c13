// Streams: where work goes, and in asynchronous mode the thread that does it.
#pragma once

#include <cann/acl.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "device.h"
#include "task.h"

namespace cann_host {

class Capture;
struct TaskGroup;

struct Failure {
  aclError code = ACL_SUCCESS;
  std::string text;
};

/// Runs the task and says what it was if it fails.
Failure run_task(Task& task) noexcept;

/// The thread behind a stream in asynchronous mode.
class Worker {
 public:
  explicit Worker(Device& device) : device_(device) {}
  ~Worker();

  void enqueue(std::unique_ptr<Task> task);
  /// Waits for all that was queued before the call. False if the deadline came first.
  bool wait(const Deadline& deadline);
  bool idle();
  void drop_queued();
  /// The first failure since the last call.
  Failure take_failure();
  void stop_on_failure(bool stop);

  /// The worker whose thread this is, or null.
  static Worker* of_this_thread();

 private:
  void loop();

  Device& device_;
  std::mutex mutex_;
  std::condition_variable queued_, finished_;
  std::deque<std::unique_ptr<Task>> queue_;
  uint64_t submitted_ = 0, completed_ = 0;
  bool stop_on_failure_ = false, stopping_ = false;
  Failure failure_;
  std::thread thread_;
};

class Stream {
 public:
  Stream(Device& device, uint32_t priority, uint32_t flags);
  /// Finishes the queued work.
  ~Stream() = default;

  bool is_default() const { return device.default_stream == this; }
  bool runs_inline() const noexcept { return inline_.load(std::memory_order_relaxed); }
  /// Runs, queues or records.
  aclError submit(std::unique_ptr<Task> task);
  /// Waits, and throws the first failure of the stream's tasks.
  void synchronize(const Deadline& deadline);
  /// Entering or leaving capture or the update of a task group.
  void set_capture(Capture* capture);
  void set_update(TaskGroup* group);

  Device& device;
  const int32_t id;
  std::atomic<uint32_t> priority;
  const uint32_t flags;
  std::atomic<uint64_t> failure_mode{ACL_CONTINUE_ON_FAILURE};
  std::atomic<uint32_t> overflow_switch{0};
  std::atomic<uint32_t> custom_tag{0};
  std::atomic<uint32_t> cache_op_info{0};
  CoreLimits limits;

  std::atomic<Capture*> capture{nullptr};
  std::atomic<TaskGroup*> update{nullptr};
  const std::shared_ptr<Worker> worker;  // null unless in asynchronous mode

 private:
  void choose_path() noexcept;

  std::atomic<bool> inline_;
};

extern HandleTable<Stream, 1 << 16> streams;

/// The stream behind a handle of which null is the current device's default. Throws
/// ACL_ERROR_RT_STREAM_CONTEXT if it is another device's, ACL_ERROR_RT_CONTEXT_NULL if the thread has none.
Stream& stream_of(aclrtStream handle);

/// Waits for all streams of the device; failures stay for the streams' own synchronisation.
void synchronize(Device& device, const Deadline& deadline);
/// aclrtSynchronizeDevice: not during capture, and throws the first failure.
void synchronize_or_fail(Device& device, const Deadline& deadline);
void abort_tasks(Device& device);

/// Ends the subscription of a thread to the callbacks of a stream that is about to go.
void forget_subscription(const Stream& stream);

}  // namespace cann_host
