// The CPU fallback: every operator without a native kernel (or with a dtype that CANN's operator does not
// take) runs on ATen's CPU kernel, over the same bytes where the host can address device memory, and is
// written into the ledger.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/SymIntArrayRef.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "torch_npu/csrc/dispatch/ledger.h"

namespace torch_npu {

/// The boxed kernel of one operator. What can be known from the schema is found out once.
class FallbackKernel final : public c10::OperatorKernel {
 public:
  explicit FallbackKernel(const c10::OperatorHandle& op);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  /// The same without boxing, for operators that take only tensors and return a new one.
  template <class... Tensors>
  at::Tensor call(const c10::TypedOperatorHandle<at::Tensor(Tensors...)>& op, c10::DispatchKeySet keys,
                  const Tensors&... arguments);

 private:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
           FallbackCounter& counter, int64_t bytes);
  void run_on_views(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                    FallbackCounter& counter);
  void run_on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  std::unique_ptr<FallbackRecord> record_;
  bool is_mutable_;
  bool several_results_;
  bool asks_for_gradients_;  // does more if an argument requires a gradient
  bool mixes_devices_;       // takes CPU tensors beside npu tensors by design (indices, lengths)
};

/// The kernel of an operator, made at first use.
FallbackKernel& fallback_kernel(const c10::OperatorHandle& op);

/// Runs the boxed kernel of any operator; registered as the fallback of all namespaces.
void boxed_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

namespace detail {

/// An argument of a native kernel as the operator's signature has it: lists of sizes are symbolic there.
template <class Parameter, class T>
decltype(auto) as_parameter(T&& argument) {
  if constexpr (std::is_same_v<Parameter, c10::SymIntArrayRef>) {
    return c10::fromIntArrayRefSlow(argument);
  } else if constexpr (std::is_same_v<Parameter, at::OptionalSymIntArrayRef>) {
    return argument.has_value() ? at::OptionalSymIntArrayRef(c10::fromIntArrayRefSlow(*argument))
                                : at::OptionalSymIntArrayRef();
  } else {
    return std::forward<T>(argument);
  }
}

template <class Signature>
struct FallbackCall;

template <class Result, class... Parameters>
struct FallbackCall<Result(Parameters...)> {
  template <class... Args>
  static Result call(const c10::OperatorHandle& op, Args&&... args) {
    return c10::impl::BoxedKernelWrapper<Result(Parameters...)>::call(
        c10::BoxedKernel::makeFromFunction<&boxed_fallback>(), op,
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
        as_parameter<Parameters>(std::forward<Args>(args))...);
  }
};

}  // namespace detail

/// From a native kernel that cannot take its arguments: the same call on the CPU.
template <class Op, class... Args>
decltype(auto) fallback(Args&&... args) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
  return detail::FallbackCall<typename Op::schema>::call(op, std::forward<Args>(args)...);
}

/// Registers the fallback for every aten operator with a CPU kernel and no native one, and the same for
/// sparse and nested tensors. Without it PyTorch would take detours over composite kernels (add -> empty +
/// add.out) that cost more than the operator or that the layout does not have.
void register_fallbacks();

}  // namespace torch_npu
