#pragma once

#include <cann/acl.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "device.h"

namespace cann_host {

uint64_t now_ns();

/// One recording of an event that is, or was, on its way through a stream's queue.
class Mark {
 public:
  void complete();
  /// False if the deadline came first.
  bool wait(const Deadline& deadline);
  bool done();
  uint64_t time_ns();

  std::atomic<int> waiting_tasks{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  uint64_t time_ns_ = 0;
};

/// How many tasks of each stream of a capture come before a point of it.
using CaptureClock = std::map<int32_t, uint64_t>;

class Event {
 public:
  explicit Event(uint32_t flags);

  bool external() const { return flags & ACL_EVENT_EXTERNAL; }
  bool timed() const { return flags & ACL_EVENT_TIME_LINE; }

  /// Recorded at this moment.
  void record_now();
  /// To be recorded when the mark is completed.
  void record_by(std::shared_ptr<Mark> mark);
  void record_in_capture(uint64_t capture, CaptureClock clock);
  void reset();

  struct State {
    bool recorded;
    std::shared_ptr<Mark> mark;  // null if it was recorded at once
    uint64_t time_ns;
    uint64_t capture;  // of a recording that belongs to a capture, else 0
    CaptureClock clock;
  };
  State state();

  const uint32_t id;
  const uint32_t flags;

 private:
  std::mutex mutex_;
  State state_{};
};

extern HandleTable<Event, 1 << 20> events;

}  // namespace cann_host
