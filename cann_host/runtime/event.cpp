#include "event.h"

#include <chrono>

#include "capture.h"
#include "settings.h"
#include "stream.h"

namespace cann_host {

constinit HandleTable<Event, 1 << 20> events{"an event"};

uint64_t now_ns() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void Mark::complete() {
  std::lock_guard lock(mutex_);
  if (done_) return;
  done_ = true;
  time_ns_ = now_ns();
  changed_.notify_all();
}

bool Mark::wait(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (deadline) return changed_.wait_until(lock, *deadline, [&] { return done_; });
  changed_.wait(lock, [&] { return done_; });
  return true;
}

bool Mark::done() {
  std::lock_guard lock(mutex_);
  return done_;
}

uint64_t Mark::time_ns() {
  std::lock_guard lock(mutex_);
  return time_ns_;
}

namespace {
std::atomic<uint32_t> next_event_id{0};
}

Event::Event(uint32_t flags) : id(next_event_id.fetch_add(1)), flags(flags) {}

void Event::record_now() {
  uint64_t time = timed() ? now_ns() : 0;
  std::lock_guard lock(mutex_);
  state_.recorded = true;
  state_.mark.reset();
  state_.time_ns = time;
  state_.capture = 0;
}

void Event::record_by(std::shared_ptr<Mark> mark) {
  std::lock_guard lock(mutex_);
  state_ = {true, std::move(mark), 0, 0, {}};
}

void Event::record_in_capture(uint64_t capture, CaptureClock clock) {
  std::lock_guard lock(mutex_);
  state_ = {true, nullptr, 0, capture, std::move(clock)};
}

void Event::reset() {
  std::lock_guard lock(mutex_);
  state_ = {};
}

Event::State Event::state() {
  std::lock_guard lock(mutex_);
  return state_;
}

namespace {

/// Completes the mark when it runs, and also when it is dropped: nobody may wait for ever for an aborted
/// stream.
class RecordTask : public Task {
 public:
  RecordTask(uint32_t event, std::shared_ptr<Mark> mark) : event_(event), mark_(std::move(mark)) {}
  ~RecordTask() override { mark_->complete(); }
  aclError run() noexcept override {
    mark_->complete();
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "record of event " + std::to_string(event_); }

 private:
  uint32_t event_;
  std::shared_ptr<Mark> mark_;
};

class WaitTask : public Task {
 public:
  WaitTask(uint32_t event, std::shared_ptr<Mark> mark) : event_(event), mark_(std::move(mark)) {
    mark_->waiting_tasks.fetch_add(1);
  }
  ~WaitTask() override { mark_->waiting_tasks.fetch_sub(1); }
  aclError run() noexcept override {
    mark_->wait({});
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "wait for event " + std::to_string(event_); }

 private:
  uint32_t event_;
  std::shared_ptr<Mark> mark_;
};

/// Record of an external event inside a captured model: done anew by each run.
class ExternalRecordTask : public Task {
 public:
  explicit ExternalRecordTask(Event& event) : event_(&event), id_(event.id) {}
  aclError run() noexcept override {
    Event* event = events.find(event_);
    if (!event || event->id != id_) {
      set_last_error("the event was destroyed");
      return ACL_ERROR_RT_INVALID_HANDLE;
    }
    event->record_now();
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "record of external event " + std::to_string(id_); }

 private:
  Event* event_;
  uint32_t id_;
};

class ExternalWaitTask : public Task {
 public:
  explicit ExternalWaitTask(Event& event) : event_(&event), id_(event.id) {}
  aclError run() noexcept override try {
    for (;;) {
      Event* event = events.find(event_);
      if (!event || event->id != id_) refuse(ACL_ERROR_RT_INVALID_HANDLE, "the event was destroyed");
      Event::State state = event->state();
      if (state.mark) state.mark->wait({});
      if (state.recorded && !state.capture) return ACL_SUCCESS;
      if (!Worker::of_this_thread()) {
        refuse(ACL_ERROR_RT_MODEL_EXECUTE,
               "the event is not recorded, and a model that runs inline cannot wait for it: record the event "
               "first, or "
               "set CANN_HOST_ASYNC=1");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  } catch (const Error& error) {
    set_last_error(error.text);
    return error.code;
  }
  std::string describe() const override { return "wait for external event " + std::to_string(id_); }

 private:
  Event* event_;
  uint32_t id_;
};

Event& event_of(aclrtEvent handle) { return events.get(handle, "event"); }

void create_event(aclrtEvent* handle, uint32_t flags) {
  require_pointer(handle, "event");
  *handle = nullptr;
  constexpr uint32_t known =
      ACL_EVENT_SYNC | ACL_EVENT_DEFAULT | ACL_EVENT_DEVICE_USE_ONLY | ACL_EVENT_EXTERNAL;
  if (flags & ACL_EVENT_IPC) {
    refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "events between processes (ACL_EVENT_IPC) are not supported");
  }
  if (flags & ~known) refuse(ACL_ERROR_INVALID_PARAM, "flag=%#x: unknown bits %#x", flags, flags & ~known);
  current_device();
  *handle = events.create(flags);
}

void record(Event& event, Stream& stream) {
  if (Capture* capture = stream.capture.load()) {
    if (event.external()) {
      capture->record(stream, std::make_unique<ExternalRecordTask>(event));
    } else {
      event.record_in_capture(capture->id, capture->clock_of(stream));
    }
  } else if (stream.worker) {
    auto mark = std::make_shared<Mark>();
    event.record_by(mark);
    stream.submit(std::make_unique<RecordTask>(event.id, std::move(mark)));
  } else {
    event.record_now();
  }
}

void wait_in_capture(Capture& capture, Stream& stream, Event& event, const Event::State& state) {
  if (event.external()) {
    capture.record(stream, std::make_unique<ExternalWaitTask>(event));
  } else if (state.capture == capture.id) {
    capture.merge(stream, state.clock);
  } else {
    refuse(ACL_ERROR_RT_CAPTURE_DEPENDENCY,
           "stream %d is being captured and event %u was not recorded by that capture: a model cannot wait "
           "for work "
           "outside of it (create the event with ACL_EVENT_EXTERNAL if it shall)",
           stream.id, event.id);
  }
}

void wait(Stream& stream, Event& event) {
  Event::State state = event.state();
  Capture* of_stream = stream.capture.load();
  Capture* of_event = state.capture ? active_capture(state.capture) : nullptr;
  if (of_stream && of_event && of_stream != of_event) {
    refuse(ACL_ERROR_STREAM_CAPTURE_CONFLICT, "event %u and stream %d belong to different captures", event.id,
           stream.id);
  }
  if (of_stream) return wait_in_capture(*of_stream, stream, event, state);
  if (of_event) return of_event->join(stream, state.clock);
  if (state.mark && stream.worker) stream.submit(std::make_unique<WaitTask>(event.id, state.mark));
}

bool is_complete(const Event::State& state) { return state.recorded && (!state.mark || state.mark->done()); }

void require_not_captured(const Event& event, const Event::State& state) {
  if (state.capture && active_capture(state.capture)) {
    refuse(ACL_ERROR_RT_EVENT_CAPTURED,
           "event %u was recorded by a capture: nothing happens before the model runs, so that it cannot be "
           "waited for",
           event.id);
  }
}

void synchronize(Event& event, const Deadline& deadline) {
  Event::State state = event.state();
  require_not_captured(event, state);
  if (state.mark && !state.mark->wait(deadline)) {
    refuse(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "event %u was not reached in the time given", event.id);
  }
}

uint64_t time_of(Event& event) {
  Event::State state = event.state();
  require_not_captured(event, state);
  if (!event.timed()) {
    refuse(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "event %u was created without ACL_EVENT_TIME_LINE",
           event.id);
  }
  if (!state.recorded || state.capture) {
    refuse(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "event %u has not been recorded", event.id);
  }
  if (!state.mark) return state.time_ns;
  if (!state.mark->done()) {
    refuse(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "event %u has not been reached; synchronise first",
           event.id);
  }
  return state.mark->time_ns();
}

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclrtCreateEvent(aclrtEvent* event) {
  return entry(__func__, [&] { create_event(event, ACL_EVENT_SYNC | ACL_EVENT_DEFAULT); });
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
  return entry(__func__, [&] { create_event(event, flag); });
}

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
  return entry(__func__, [&] { create_event(event, flag); });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return entry(__func__, [&] { events.destroy(event_of(event)); });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return entry(__func__, [&] { record(event_of(event), stream_of(stream)); });
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  return entry(__func__, [&] {
    Event& e = event_of(event);
    // In a capture the recordings that were made stay edges of the model.
    if (!stream_of(stream).capture.load()) e.reset();
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return entry(__func__, [&] { wait(stream_of(stream), event_of(event)); });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return entry(__func__, [&] { synchronize(event_of(event), {}); });
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
  return entry(__func__, [&] { synchronize(event_of(event), deadline_after(timeout)); });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent start, aclrtEvent end) {
  return entry(__func__, [&] {
    require_pointer(ms, "ms");
    uint64_t from = time_of(event_of(start)), to = time_of(event_of(end));
    if (to < from) {
      refuse(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
             "the end event was recorded %lu ns before the start event", from - to);
    }
    *ms = static_cast<float>(static_cast<double>(to - from) * 1e-6);
  });
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
  return entry(__func__, [&] {
    require_pointer(timestamp, "timestamp");
    *timestamp = time_of(event_of(event)) / 1000;
  });
}

aclError aclrtGetEventId(aclrtEvent event, uint32_t* id) {
  return entry(__func__, [&] {
    require_pointer(id, "eventId");
    *id = event_of(event).id;
  });
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  return entry(__func__, [&] {
    require_pointer(status, "status");
    Event& e = event_of(event);
    Event::State state = e.state();
    require_not_captured(e, state);
    *status = is_complete(state) ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return entry(__func__, [&] {
    require_pointer(status, "status");
    Event& e = event_of(event);
    Event::State state = e.state();
    require_not_captured(e, state);
    *status = is_complete(state) ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  return entry(__func__, [&] {
    require_pointer(status, "status");
    Event::State state = event_of(event).state();
    bool waiting = state.mark && state.mark->waiting_tasks.load() > 0;
    *status = waiting ? ACL_EVENT_WAIT_STATUS_NOT_READY : ACL_EVENT_WAIT_STATUS_COMPLETE;
  });
}
