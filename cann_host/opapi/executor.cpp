#include "cann_host/opapi/executor.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <cann/aclnn_base.h>
#include <omp.h>

namespace cann_host {
namespace {

c10::impl::LocalDispatchKeySet plain_cpu_keys() {
  c10::impl::PODLocalDispatchKeySet keys{};
  keys.set_included(c10::DispatchKeySet(c10::DispatchKey::BackendSelect));
  keys.set_excluded(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set);
  return c10::impl::LocalDispatchKeySet(keys);
}

aclError report(const aclOpExecutor& executor, const char* cause) noexcept {
  set_last_error(executor.describe() + ": " + cause);
  return ACLNN_ERR_INNER;
}

/// Keeps OpenMP from using other threads than this one.
class OneThread {
 public:
  explicit OneThread(bool wanted) : threads_(wanted ? omp_get_max_threads() : 1) {
    if (threads_ > 1) omp_set_num_threads(1);
  }
  OneThread(const OneThread&) = delete;
  ~OneThread() {
    if (threads_ > 1) omp_set_num_threads(threads_);
  }

 private:
  const int threads_;
};

}  // namespace

aclError nowhere_to_put_executor(const char* op) {
  set_last_error(std::string(op) + ": workspaceSize and executor may not be null pointers");
  return ACLNN_ERR_PARAM_NULLPTR;
}

aclError guarded(const aclOpExecutor& executor, void (*body)(const void*), const void* context,
                 int64_t largest) noexcept {
  static const auto keys = plain_cpu_keys();
  const c10::impl::ForceDispatchKeyGuard guard(keys);
  constexpr int64_t most_for_one_thread = 4096;
  const OneThread one_thread(largest <= most_for_one_thread);
  try {
    body(context);
    return ACL_SUCCESS;
  } catch (const c10::Error& error) {
    return report(executor, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return report(executor, error.what());
  }
}

aclError launch(const char* op, aclOpExecutor* executor, aclrtStream stream) {
  if (executor == nullptr) {
    set_last_error(std::string(op) + ": phase 2 was called without an executor of phase 1");
    return ACLNN_ERR_PARAM_NULLPTR;
  }
  std::unique_ptr<aclOpExecutor> task(executor);
  return runs_inline(stream) ? task->run() : submit(stream, std::move(task));
}

}  // namespace cann_host

extern "C" {

aclnnStatus aclnnInit(const char*) { return ACL_SUCCESS; }
aclnnStatus aclnnFinalize() { return ACL_SUCCESS; }

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return ACL_SUCCESS;
}
}
