#include "communicators.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "error.h"

namespace cann_host::hccl {
namespace {

std::mutex mutex;
std::map<HcclComm, CommunicatorPtr> communicators;

class CommunicationTask : public Task {
 public:
  CommunicationTask(const char* function, CommunicatorPtr communicator,
                    std::function<void(Communicator&)> work)
      : function_(function), communicator_(std::move(communicator)), work_(std::move(work)) {}

  aclError run() noexcept override {
    try {
      work_(*communicator_);
      return ACL_SUCCESS;
    } catch (...) {
      communicator_->fail(report(describe()));
      return ACL_ERROR_RT_INTERNAL_ERROR;
    }
  }
  std::string describe() const override {
    return std::string(function_) + "(comm=" + communicator_->name + ", rank " +
           std::to_string(communicator_->rank) + " of " + std::to_string(communicator_->ranks) + ")";
  }

 private:
  const char* function_;
  CommunicatorPtr communicator_;
  std::function<void(Communicator&)> work_;
};

struct Launch {
  CommunicatorPtr communicator;
  aclrtStream stream;
  std::unique_ptr<Task> task;
};

/// What the thread has put aside since HcclGroupStart.
struct Group {
  int depth = 0;
  std::vector<Launch> first, receives;
};
thread_local Group group;

HcclResult submit(Launch launch) {
  if (cann_host::submit(launch.stream, std::move(launch.task)) == ACL_SUCCESS) return HCCL_SUCCESS;
  // The task's own failure, or that of the stream, whose message is already there.
  const HcclResult own = launch.communicator->error();
  return own == HCCL_SUCCESS ? HCCL_E_PARA : own;
}

}  // namespace

CommunicatorPtr find(HcclComm handle) {
  require_pointer(handle, "comm");
  const std::lock_guard lock(mutex);
  const auto found = communicators.find(handle);
  if (found == communicators.end()) refuse(HCCL_E_NOT_FOUND, "comm is not a communicator, or was destroyed");
  return found->second;
}

HcclComm add(CommunicatorPtr communicator) {
  const std::lock_guard lock(mutex);
  HcclComm handle = communicator.get();
  communicators.emplace(handle, std::move(communicator));
  return handle;
}

CommunicatorPtr remove(HcclComm handle) {
  CommunicatorPtr communicator = find(handle);
  const std::lock_guard lock(mutex);
  communicators.erase(handle);
  return communicator;
}

HcclResult launch(const char* function, const CommunicatorPtr& communicator, aclrtStream stream,
                  std::function<void(Communicator&)> work, bool receives) {
  Launch launch{communicator, stream,
                std::make_unique<CommunicationTask>(function, communicator, std::move(work))};
  if (group.depth) {
    (receives ? group.receives : group.first).push_back(std::move(launch));
    return HCCL_SUCCESS;
  }
  return submit(std::move(launch));
}

void start_group() { ++group.depth; }

HcclResult end_group() {
  if (group.depth == 0) refuse(HCCL_E_PARA, "there was no HcclGroupStart on this thread");
  if (--group.depth) return HCCL_SUCCESS;
  HcclResult first_failure = HCCL_SUCCESS;
  for (auto* launches : {&group.first, &group.receives}) {
    for (Launch& launch : std::exchange(*launches, {})) {
      const HcclResult result = submit(std::move(launch));
      if (first_failure == HCCL_SUCCESS) first_failure = result;
    }
  }
  return first_failure;
}

}  // namespace cann_host::hccl
