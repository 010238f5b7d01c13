#include "stream.h"

#include <chrono>
#include <cstdio>
#include <vector>

#include "capture.h"
#include "settings.h"

namespace cann_host {

constinit HandleTable<Stream, 1 << 16> streams{"a stream"};

namespace {

std::atomic<int32_t> next_stream_id{0};
thread_local Worker* this_worker = nullptr;

/// Stream threads would otherwise run into the destruction of what their tasks use.
void stop_all_workers_at_exit() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::atexit([] {
      if (unusual.load() & forked) return;
      std::vector<std::shared_ptr<Worker>> workers;
      streams.for_each([&](Stream& stream) { workers.push_back(stream.worker); });
      for (auto& worker : workers) worker->drop_queued();
      for (auto& worker : workers) worker->wait(std::chrono::steady_clock::now() + std::chrono::seconds(1));
    });
  });
}

std::vector<std::shared_ptr<Worker>> workers_of(const Device& device) {
  std::vector<std::shared_ptr<Worker>> workers;
  streams.for_each([&](Stream& stream) {
    if (&stream.device == &device && stream.worker) workers.push_back(stream.worker);
  });
  return workers;
}

[[noreturn]] void refuse_timeout(aclError code, const char* what) {
  refuse(code, "the work of the %s did not end in the time given", what);
}

void require_no_capture(const Stream& stream) {
  if (stream.capture.load()) {
    refuse(ACL_ERROR_RT_STREAM_CAPTURED,
           "stream %d is being captured: its tasks are recorded and not run, so that there is nothing to "
           "wait for "
           "before aclmdlRICaptureEnd",
           stream.id);
  }
}

}  // namespace

Failure run_task(Task& task) noexcept try {
  if (settings().trace) [[unlikely]]
    std::fprintf(stderr, "[cann_host] run %s\n", task.describe().c_str());
  set_last_error({});
  aclError code = task.run();
  if (code == ACL_SUCCESS) return {};
  std::string cause = take_last_error();
  return {code, task.describe() + ": " + (cause.empty() ? "error " + std::to_string(code) : cause)};
} catch (...) {
  return {ACL_ERROR_BAD_ALLOC, "the host is out of memory"};
}

// ---- worker

Worker* Worker::of_this_thread() { return this_worker; }

Worker::~Worker() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
  if (this_worker == this) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Worker::loop() {
  this_worker = this;
  thread_context = device_.primary;
  std::unique_lock lock(mutex_);
  for (;;) {
    queued_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::unique_ptr<Task> task = std::move(queue_.front());
    queue_.pop_front();
    bool skip = stop_on_failure_ && failure_.code != ACL_SUCCESS;
    lock.unlock();
    if (uint32_t delay = settings().delay_us) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    Failure failure = skip ? Failure{} : run_task(*task);
    task.reset();
    lock.lock();
    if (failure.code != ACL_SUCCESS && failure_.code == ACL_SUCCESS) failure_ = std::move(failure);
    ++completed_;
    finished_.notify_all();
  }
}

void Worker::enqueue(std::unique_ptr<Task> task) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(task));
  ++submitted_;
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  queued_.notify_one();
}

bool Worker::wait(const Deadline& deadline) {
  if (this_worker == this)
    refuse(ACL_ERROR_RT_PARAM_INVALID, "a host callback cannot wait for the stream it runs on");
  std::unique_lock lock(mutex_);
  auto done = [&, goal = submitted_] { return completed_ >= goal; };
  if (deadline) return finished_.wait_until(lock, *deadline, done);
  finished_.wait(lock, done);
  return true;
}

bool Worker::idle() {
  std::lock_guard lock(mutex_);
  return completed_ == submitted_;
}

void Worker::drop_queued() {
  std::deque<std::unique_ptr<Task>>
      dropped;  // destroyed without the lock: a task may own what takes it again
  std::lock_guard lock(mutex_);
  dropped.swap(queue_);
  completed_ += dropped.size();
  finished_.notify_all();
}

Failure Worker::take_failure() {
  std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void Worker::stop_on_failure(bool stop) {
  std::lock_guard lock(mutex_);
  stop_on_failure_ = stop;
}

// ---- stream

Stream::Stream(Device& device, uint32_t priority, uint32_t flags)
    : device(device),
      id(next_stream_id.fetch_add(1)),
      priority(priority),
      flags(flags),
      worker(settings().asynchronous ? std::make_shared<Worker>(device) : nullptr) {
  if (worker) stop_all_workers_at_exit();
  choose_path();
}

void Stream::choose_path() noexcept {
  inline_.store(!worker && !capture.load() && !update.load() && !settings().trace);
}

void Stream::set_capture(Capture* to) {
  capture.store(to);
  choose_path();
}

void Stream::set_update(TaskGroup* to) {
  update.store(to);
  choose_path();
}

aclError Stream::submit(std::unique_ptr<Task> task) {
  if (TaskGroup* group = update.load()) {
    group->tasks.push_back(std::move(task));
    return ACL_SUCCESS;
  }
  if (Capture* recording = capture.load()) {
    recording->record(*this, std::move(task));
    return ACL_SUCCESS;
  }
  if (worker) {
    worker->enqueue(std::move(task));
    return ACL_SUCCESS;
  }
  Failure failure = run_task(*task);
  if (failure.code != ACL_SUCCESS) throw Error(failure.code, std::move(failure.text));
  return ACL_SUCCESS;
}

void Stream::synchronize(const Deadline& deadline) {
  require_no_capture(*this);
  if (!worker) return;
  if (!worker->wait(deadline)) refuse_timeout(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "stream");
  Failure failure = worker->take_failure();
  if (failure.code != ACL_SUCCESS) throw Error(failure.code, std::move(failure.text));
}

Stream& stream_of(aclrtStream handle) {
  Device& device = current_device();
  if (!handle) return *device.default_stream;
  Stream& stream = streams.get(handle, "stream");
  if (&stream.device != &device) {
    refuse(ACL_ERROR_RT_STREAM_CONTEXT, "stream %d is of device %d, and this thread's current device is %d",
           stream.id, stream.device.id, device.id);
  }
  return stream;
}

bool runs_inline(aclrtStream handle) noexcept {
  if (!thread_context) return false;
  Device* device = thread_context->device;
  Stream* stream = handle ? streams.find(handle) : device->default_stream;
  return stream && &stream->device == device && stream->runs_inline();
}

aclError submit(aclrtStream handle, std::unique_ptr<Task> task) {
  return entry("launch", [&] { return stream_of(handle).submit(std::move(task)); });
}

void synchronize(Device& device, const Deadline& deadline) {
  if (!settings().asynchronous) return;
  for (auto& worker : workers_of(device)) {
    if (worker.get() == this_worker) continue;
    if (!worker->wait(deadline)) refuse_timeout(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "device");
  }
}

void synchronize_or_fail(Device& device, const Deadline& deadline) {
  require_unsafe_call_allowed();
  if (!settings().asynchronous) return;
  synchronize(device, deadline);
  Failure first;
  for (auto& worker : workers_of(device)) {
    Failure failure = worker->take_failure();
    if (first.code == ACL_SUCCESS) first = std::move(failure);
  }
  if (first.code != ACL_SUCCESS) throw Error(first.code, std::move(first.text));
}

void abort_tasks(Device& device) {
  for (auto& worker : workers_of(device)) worker->drop_queued();
}

namespace {

void create_stream(aclrtStream* handle, uint32_t priority, uint32_t flags) {
  require_pointer(handle, "stream");
  *handle = nullptr;
  if (priority > 7) refuse(ACL_ERROR_INVALID_PARAM, "priority=%u: expected 0 (most urgent) to 7", priority);
  *handle = streams.create(current_or_first_device(), priority, flags);
}

void destroy_stream(aclrtStream handle, bool force) {
  Stream& stream = streams.get(handle, "stream");
  require_no_capture(stream);
  if (stream.is_default())
    refuse(ACL_ERROR_INVALID_PARAM, "stream=%p is the default stream of its device", handle);
  if (stream.worker) {
    if (force) stream.worker->drop_queued();
    stream.worker->wait({});
  }
  forget_subscription(stream);
  streams.destroy(stream);
}

}  // namespace
}  // namespace cann_host

using namespace cann_host;

int32_t cannHostStreamRunsInline(aclrtStream stream) { return runs_inline(stream); }

aclError aclrtCreateStream(aclrtStream* stream) {
  return entry(__func__, [&] { create_stream(stream, 0, 0); });
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag) {
  return entry(__func__, [&] { create_stream(stream, priority, flag); });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return entry(__func__, [&] { destroy_stream(stream, false); });
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return entry(__func__, [&] { destroy_stream(stream, true); });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return entry(__func__, [&] { stream_of(stream).synchronize({}); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return entry(__func__, [&] { stream_of(stream).synchronize(deadline_after(timeout)); });
}

aclError aclrtStreamAbort(aclrtStream stream) {
  return entry(__func__, [&] {
    Stream& s = stream_of(stream);
    require_no_capture(s);
    if (s.worker) s.worker->drop_queued();
  });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return entry(__func__, [&] {
    require_pointer(status, "status");
    Stream& s = stream_of(stream);
    require_no_capture(s);
    *status = !s.worker || s.worker->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  });
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  return entry(__func__, [&] {
    require_pointer(id, "streamId");
    *id = stream_of(stream).id;
  });
}

aclError aclrtStreamGetPriority(aclrtStream stream, uint32_t* priority) {
  return entry(__func__, [&] {
    require_pointer(priority, "priority");
    *priority = stream_of(stream).priority.load();
  });
}

aclError aclrtStreamGetFlags(aclrtStream stream, uint32_t* flags) {
  return entry(__func__, [&] {
    require_pointer(flags, "flags");
    *flags = stream_of(stream).flags;
  });
}
