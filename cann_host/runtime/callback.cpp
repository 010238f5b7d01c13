// Functions of the client that run in stream order.
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "event.h"
#include "stream.h"

namespace cann_host {
namespace {

class HostFunctionTask : public Task {
 public:
  HostFunctionTask(aclrtHostFunc function, void* argument) : function_(function), argument_(argument) {}
  aclError run() noexcept override {
    function_(argument_);
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "host function"; }

 private:
  aclrtHostFunc function_;
  void* argument_;
};

class ClientTask : public Task {
 public:
  ClientTask(const char* name, cannHostRun run, cannHostRelease release, void* argument)
      : name_(name), run_(run), argument_(argument, release) {}

  aclError run() noexcept override {
    char message[2048] = "";
    if (run_(argument_.get(), message, sizeof message) == 0) return ACL_SUCCESS;
    set_last_error(message);
    return ACLNN_ERR_INNER;
  }
  std::string describe() const override { return name_; }

 private:
  std::string name_;
  cannHostRun run_;
  std::unique_ptr<void, cannHostRelease> argument_;
};

/// Callbacks that wait for aclrtProcessReport of one thread.
class ReportQueue {
 public:
  struct Callback {
    aclrtCallback function;
    void* argument;
    std::shared_ptr<Mark> finished;
  };

  void push(Callback callback) {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(callback));
    arrived_.notify_one();
  }

  /// Runs the next callback on the calling thread; false if none came in time.
  bool process(const Deadline& deadline) {
    Callback next;
    {
      std::unique_lock lock(mutex_);
      auto ready = [&] { return !waiting_.empty(); };
      if (!deadline) {
        arrived_.wait(lock, ready);
      } else if (!arrived_.wait_until(lock, *deadline, ready)) {
        return false;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next.function(next.argument);
    next.finished->complete();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Callback> waiting_;
};

struct Subscriptions {
  std::mutex mutex;
  std::map<int32_t, uint64_t> threads;  // by stream id
  std::map<uint64_t, std::shared_ptr<ReportQueue>> queues;

  std::shared_ptr<ReportQueue> of_thread(uint64_t thread) {
    std::lock_guard lock(mutex);
    auto found = queues.find(thread);
    return found == queues.end() ? nullptr : found->second;
  }
  std::shared_ptr<ReportQueue> of_stream(const Stream& stream) {
    std::lock_guard lock(mutex);
    auto found = threads.find(stream.id);
    return found == threads.end() ? nullptr : queues.at(found->second);
  }
  void add(const Stream& stream, uint64_t thread) {
    std::lock_guard lock(mutex);
    auto [at, added] = threads.emplace(stream.id, thread);
    if (!added) {
      refuse(ACL_ERROR_RT_STREAM_SUBSCRIBE, "thread %#lx is subscribed to stream %d already", at->second,
             stream.id);
    }
    auto& queue = queues[thread];
    if (!queue) queue = std::make_shared<ReportQueue>();
  }
  void remove(int32_t stream) {
    std::lock_guard lock(mutex);
    auto found = threads.find(stream);
    if (found == threads.end()) return;
    uint64_t thread = found->second;
    threads.erase(found);
    for (auto [other, subscriber] : threads) {
      if (subscriber == thread) return;
    }
    queues.erase(thread);
  }
  bool has(const Stream& stream, uint64_t thread) {
    std::lock_guard lock(mutex);
    auto found = threads.find(stream.id);
    return found != threads.end() && found->second == thread;
  }
};

Subscriptions& subscriptions() {
  static auto* all = new Subscriptions;
  return *all;
}

class CallbackTask : public Task {
 public:
  CallbackTask(aclrtCallback function, void* argument, bool blocks, std::shared_ptr<ReportQueue> queue)
      : function_(function), argument_(argument), blocks_(blocks), queue_(std::move(queue)) {}
  aclError run() noexcept override {
    // Without a thread behind the stream, waiting here would hold up the thread that launches, which on
    // hardware goes on (and may hold a lock that the subscriber needs): the function then runs at once.
    if (blocks_ && !Worker::of_this_thread()) {
      function_(argument_);
      return ACL_SUCCESS;
    }
    auto finished = std::make_shared<Mark>();
    queue_->push({function_, argument_, finished});
    if (blocks_) finished->wait({});
    return ACL_SUCCESS;
  }
  std::string describe() const override { return blocks_ ? "blocking callback" : "callback"; }

 private:
  aclrtCallback function_;
  void* argument_;
  bool blocks_;
  std::shared_ptr<ReportQueue> queue_;
};

}  // namespace

void forget_subscription(const Stream& stream) { subscriptions().remove(stream.id); }

}  // namespace cann_host

using namespace cann_host;

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* argument) {
  return entry(__func__, [&] {
    require_pointer(reinterpret_cast<const void*>(function), "fn");
    return stream_of(stream).submit(std::make_unique<HostFunctionTask>(function, argument));
  });
}

aclError cannHostLaunchFunction(const char* name, cannHostRun run, cannHostRelease release, void* argument,
                                aclrtStream stream) {
  return entry(__func__, [&] {
    require_pointer(name, "name");
    require_pointer(reinterpret_cast<const void*>(run), "run");
    require_pointer(reinterpret_cast<const void*>(release), "release");
    auto task = std::make_unique<ClientTask>(name, run, release, argument);
    return stream_of(stream).submit(std::move(task));
  });
}

aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType block,
                             aclrtStream stream) {
  return entry(__func__, [&] {
    require_pointer(reinterpret_cast<const void*>(function), "fn");
    Stream& s = stream_of(stream);
    auto queue = subscriptions().of_stream(s);
    if (!queue) {
      refuse(ACL_ERROR_RT_STREAM_NO_CB_REG, "no thread is subscribed to stream %d; call aclrtSubscribeReport",
             s.id);
    }
    bool blocks = block == ACL_CALLBACK_BLOCK;
    return s.submit(std::make_unique<CallbackTask>(function, argument, blocks, std::move(queue)));
  });
}

aclError aclrtSubscribeReport(uint64_t thread, aclrtStream stream) {
  return entry(__func__, [&] {
    if (thread == 0) refuse(ACL_ERROR_INVALID_PARAM, "threadId=0: expected a pthread_t");
    subscriptions().add(stream_of(stream), thread);
  });
}

aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream stream) {
  return entry(__func__, [&] {
    Stream& s = stream_of(stream);
    if (!subscriptions().has(s, thread)) {
      refuse(ACL_ERROR_RT_THREAD_SUBSCRIBE, "thread %#lx is not subscribed to stream %d", thread, s.id);
    }
    s.synchronize({});
    subscriptions().remove(s.id);
  });
}

aclError aclrtProcessReport(int32_t timeout) {
  return entry(__func__, [&] {
    Deadline deadline = deadline_after(timeout);
    auto queue = subscriptions().of_thread(pthread_self());
    if (!queue) refuse(ACL_ERROR_RT_THREAD_SUBSCRIBE, "this thread is not subscribed to a stream");
    if (!queue->process(deadline)) {
      refuse(ACL_ERROR_RT_REPORT_TIMEOUT, "no callback came within %d ms", timeout);
    }
  });
}
