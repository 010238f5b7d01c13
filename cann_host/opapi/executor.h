// aclOpExecutor: a validated call that waits for phase 2, where it becomes work on a stream.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "cann_host/opapi/arguments.h"
#include "cann_host/opapi/phase1.h"
#include "cann_host/runtime/task.h"

struct aclOpExecutor : cann_host::Task {};

namespace cann_host {

/// Runs body with dispatch keys as a plain CPU program has them (the client's thread may carry autograd or
/// PrivateUse1 state) and turns an exception into an error code with the operator's name in the message.
/// Where no tensor has more than a few thousand elements, `largest`, it keeps ATen from waking other threads,
/// which takes longer than the work.
aclError guarded(const aclOpExecutor& executor, void (*body)(const void*), const void* context,
                 int64_t largest) noexcept;

/// What phase 1 returns to a caller that wants no executor.
aclError nowhere_to_put_executor(const char* op);

/// Text of one argument for error messages and traces; empty for what would not help a reader.
inline std::string describe_argument(const Ref<const aclTensor>& t) {
  return t.get() ? t.get()->describe() : "none";
}
inline std::string describe_argument(const Ref<aclTensor>& t) {
  return t.get() ? t.get()->describe() : "none";
}
inline std::string describe_argument(const Ref<const aclTensorList>& list) {
  std::string text = "[";
  if (list.get() != nullptr) {
    for (const auto& t : list.get()->values) text += (text.size() > 1 ? ", " : "") + describe_argument(t);
  }
  return text + "]";
}
template <class T>
std::string describe_argument(const T&) {
  return {};
}

/// Elements of the largest tensor of an argument.
inline int64_t largest_tensor(const Ref<const aclTensor>& t) { return t.get() ? t.get()->numel() : 0; }
inline int64_t largest_tensor(const Ref<aclTensor>& t) { return t.get() ? t.get()->numel() : 0; }
inline int64_t largest_tensor(const Ref<const aclTensorList>& list) {
  int64_t largest = 0;
  if (list.get() != nullptr) {
    for (const auto& t : list.get()->values) largest = std::max(largest, largest_tensor(t));
  }
  return largest;
}
template <class T>
int64_t largest_tensor(const T&) {
  return 0;
}

/// One operator call. Body is the host implementation; Fast, if given, is tried first on the bare descriptors
/// and returns false for what it does not take.
template <class Op, class... Args>
class Executor final : public aclOpExecutor {
 public:
  explicit Executor(typename Args::Abi... args) : held_(Args::hold(args)...) {}

  aclError run() noexcept override {
    if constexpr (requires { Op::fast; }) {
      const auto fast = [](const typename Args::Held&... held) { return Op::fast(raw(held)...); };
      if (std::apply(fast, held_)) return ACL_SUCCESS;
    }
    return guarded(
        *this,
        [](const void* self) {
          static_cast<const Executor*>(self)->call(std::index_sequence_for<Args...>());
        },
        this, largest());
  }

  std::string describe() const override {
    std::string text;
    const auto add = [&](const std::string& one) {
      if (!one.empty()) text += (text.empty() ? "" : ", ") + one;
    };
    std::apply([&](const auto&... held) { (add(describe_argument(held)), ...); }, held_);
    return std::string(Op::name) + "(" + text + ")";
  }

 private:
  int64_t largest() const {
    int64_t result = 0;
    std::apply([&](const auto&... held) { ((result = std::max(result, largest_tensor(held))), ...); }, held_);
    return result;
  }

  template <class T>
  static T* raw(const Ref<T>& held) {
    return held.get();
  }
  template <class T>
  static const T& raw(const T& held) {
    return held;
  }

  template <size_t... I>
  void call(std::index_sequence<I...>) const {
    auto host = std::tuple<decltype(Args::host(std::get<I>(held_)))...>(Args::host(std::get<I>(held_))...);
    Op::body(std::get<I>(host)...);
  }

  std::tuple<typename Args::Held...> held_;
};

/// End of phase 1: hands out an executor if everything was in order.
template <class Op, class... Args>
aclError prepare(const Phase1& phase1, uint64_t* workspace_size, aclOpExecutor** executor,
                 typename Args::Abi... args) {
  if (phase1.failed()) return phase1.code();
  if (workspace_size == nullptr || executor == nullptr) return nowhere_to_put_executor(Op::name);
  *workspace_size = 0;
  *executor = new Executor<Op, Args...>(args...);
  return ACL_SUCCESS;
}

/// Phase 2, the same for every operator.
aclError launch(const char* op, aclOpExecutor* executor, aclrtStream stream);

}  // namespace cann_host
