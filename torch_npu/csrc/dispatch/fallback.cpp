#include "torch_npu/csrc/dispatch/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/CPUFallback.h>
#include <c10/util/flat_hash_map.h>
#include <torch/library.h>

#include <array>
#include <deque>
#include <mutex>
#include <string_view>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/host_dtypes.h"
#include "torch_npu/csrc/dispatch/host_view.h"
#include "torch_npu/csrc/dispatch/layouts.h"
#include "torch_npu/csrc/dispatch/recorded_fallback.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu {
namespace {

/// The CPU's key for the layout that the call is about.
c10::DispatchKeySet host_keys(c10::DispatchKeySet keys) {
  if (keys.has(c10::DispatchKey::SparsePrivateUse1)) return c10::DispatchKeySet(c10::DispatchKey::SparseCPU);
  if (keys.has(c10::DispatchKey::SparseCsrPrivateUse1))
    return c10::DispatchKeySet(c10::DispatchKey::SparseCsrCPU);
  if (keys.has(c10::DispatchKey::NestedTensorPrivateUse1)) {
    return c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU);
  }
  return c10::DispatchKeySet(c10::DispatchKey::CPU);
}

/// Operators that PyTorch lets mix devices: indices and lengths may stay on the CPU.
constexpr std::array<std::string_view, 12> kMixedDevices = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::tensor_split",
    "aten::_pack_padded_sequence",
    // Nested tensors keep their sizes on the CPU.
    "aten::_nested_from_padded",
    "aten::_nested_view_from_buffer",
    "aten::_nested_view_from_buffer_copy",
    "aten::_copy_from",
    "aten::set_",
};

bool mixes_devices(const std::string& name) {
  return std::find(kMixedDevices.begin(), kMixedDevices.end(), name) != kMixedDevices.end();
}

/// The kernel, though below autograd, asks whether its arguments require gradients: it leaves out what only
/// the gradient of amax and amin reads.
bool asks_for_gradients(const std::string& name) { return name == "aten::_sparse_mm_reduce_impl"; }

/// A CPU generator whose stream is a function of the npu generator's seed and offset, which it advances.
at::Generator host_generator(const std::optional<at::Generator>& given, c10::DeviceIndex device) {
  constexpr uint64_t kNumbersPerCall = 1 << 20;
  const auto [seed, offset] = generator_or_default(given, device).philox_engine_inputs(kNumbersPerCall);
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  return at::detail::createCPUGenerator(seed ^ (offset + 1) * kGolden);
}

/// Applies `visit` to each tensor of an argument; raises nothing.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) visit(*tensor);
    }
  }
}

/// What the arguments say about the call as a whole.
struct Survey {
  c10::DeviceIndex device = -1;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the first npu tensor
  int64_t bytes = 0;
  bool has_host_tensor = false;

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_privateuseone()) {
      if (dtype == c10::ScalarType::Undefined) dtype = tensor.scalar_type();
      if (device < 0) device = tensor.device().index();
      if (is_dense(tensor)) bytes += static_cast<int64_t>(tensor.nbytes());
    } else if (tensor.is_cpu() && tensor.dim() > 0) {
      has_host_tensor = true;
    }
  }
  void add(const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().is_privateuseone() && device < 0)
      device = value.toDevice().index();
    for_each_tensor(value, [this](const at::Tensor& tensor) { add(tensor); });
  }

  void require_one_device(const c10::OperatorHandle& op) const {
    TORCH_CHECK(!has_host_tensor || dtype == c10::ScalarType::Undefined,
                "Expected all tensors to be on the same device, but found at least two devices, npu:",
                static_cast<int>(std::max<c10::DeviceIndex>(device, 0)),
                " and cpu! (when checking arguments of ", op.schema().name(), ")");
  }
};

/// A call while it runs: on the device of its arguments, and with a line in the ledger.
class RunningCall {
 public:
  RunningCall(FallbackRecord& record, const Survey& survey)
      : counter(record.enter(survey.dtype)), on_(survey.device), bytes_(survey.bytes) {}
  RunningCall(const RunningCall&) = delete;
  ~RunningCall() {
    counter.bytes.fetch_add(bytes_, std::memory_order_relaxed);
    counter.ticks.fetch_add(static_cast<int64_t>(c10::getApproximateTime() - started_),
                            std::memory_order_relaxed);
  }

  FallbackCounter& counter;

 private:
  decltype(c10::getApproximateTime()) started_ = c10::getApproximateTime();
  const DeviceSwitch on_;
  const int64_t bytes_;
};

/// An argument as the CPU kernel wants it.
c10::IValue to_host(HostCall& call, c10::IValue&& value, const c10::Argument& argument,
                    c10::DeviceIndex device) {
  if (value.isTensor()) return call.argument(std::move(value).toTensor());
  if (value.isTensorList()) {
    const auto list = value.toTensorList();
    c10::List<at::Tensor> views;
    views.reserve(list.size());
    for (const at::Tensor& tensor : list) views.push_back(call.argument(tensor));
    return views;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> views;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      views.push_back(tensor.has_value() ? std::optional(call.argument(*tensor)) : std::nullopt);
    }
    return views;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) return c10::Device(c10::DeviceType::CPU);
  if (value.isGenerator()) return host_generator(value.toGenerator(), device);
  if (value.isNone() && argument.name() == "generator") return host_generator(std::nullopt, device);
  return std::move(value);
}

c10::IValue from_host(HostCall& call, c10::IValue&& value) {
  if (value.isTensor()) return call.result(std::move(value).toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> results;
    for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(call.result(tensor));
    return results;
  }
  return std::move(value);
}

bool returns_several(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return returns.size() > 1 ||
         (returns.size() == 1 && !returns[0].type()->isSubtypeOf(*c10::TensorType::get()));
}

}  // namespace

FallbackKernel::FallbackKernel(const c10::OperatorHandle& op)
    : record_(std::make_unique<FallbackRecord>(c10::toString(op.operator_name()))),
      is_mutable_(op.schema().is_mutable()),
      several_results_(returns_several(op.schema())),
      asks_for_gradients_(asks_for_gradients(op.schema().name())),
      mixes_devices_(mixes_devices(op.schema().name())) {}

void FallbackKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack) {
  Survey survey;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) survey.add(value);
  if (!mixes_devices_) survey.require_one_device(op);
  const RunningCall running(*record_, survey);
  run(op, keys, stack, running.counter, survey.bytes);
}

template <class... Tensors>
at::Tensor FallbackKernel::call(const c10::TypedOperatorHandle<at::Tensor(Tensors...)>& op,
                                c10::DispatchKeySet keys, const Tensors&... arguments) {
  Survey survey;
  (survey.add(arguments), ...);
  if (!mixes_devices_) survey.require_one_device(op);
  const RunningCall running(*record_, survey);
  const c10::DeviceIndex device = survey.device;
  if (graph::current_recording(device) != nullptr || !device_memory_is_host_accessible()) [[unlikely]] {
    torch::jit::Stack stack{arguments...};
    run(op, keys, &stack, running.counter, survey.bytes);
    return std::move(stack.back()).toTensor();
  }
  const aclrtStream stream = device::current_stream_handle(device);
  device::synchronize_handle(stream);
  HostCall call(several_results_);
  at::Tensor result;
  {
    const HostAllocationsFromPool pooled(device, stream);
    result = op.redispatch(host_keys(keys), call.argument(arguments)...);
  }
  result = call.result(std::move(result));
  if (call.copied_bytes() > 0)
    running.counter.copied.fetch_add(call.copied_bytes(), std::memory_order_relaxed);
  return result;
}

void FallbackKernel::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                         FallbackCounter& counter, int64_t bytes) {
  const auto device = device::current_device();
  if (graph::current_recording(device) != nullptr) [[unlikely]]
    return record_fallback(op, stack, device);
  // The CPU kernel reads what earlier work on this stream writes.
  device::synchronize_handle(device::current_stream_handle(device));
  if (device_memory_is_host_accessible()) {
    run_on_views(op, host_keys(keys), stack, counter);
  } else {
    run_on_copies(op, stack);
    counter.copied.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void FallbackKernel::run_on_views(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  torch::jit::Stack* stack, FallbackCounter& counter) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const auto device = device::current_device();
  HostCall call(several_results_);
  {
    // Holds while the views are made, too: a view keeps the allocator that its storage grows with.
    const HostAllocationsFromPool pooled(device, device::current_stream_handle(device));
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      auto& value = (*stack)[first + i];
      if (value.isTensor() && !value.toTensor().defined()) continue;
      const bool wants_gradient = asks_for_gradients_ && value.isTensor() && value.toTensor().requires_grad();
      value = to_host(call, std::move(value), schema.arguments()[i], device);
      if (wants_gradient) {
        const c10::InferenceMode on;  // views are inference tensors
        value.toTensor().set_requires_grad(true);
      }
    }
    op.redispatchBoxed(keys, stack);
  }
  if (is_mutable_) call.write_back();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = from_host(call, std::move((*stack)[i]));
  }
  if (call.copied_bytes() > 0) counter.copied.fetch_add(call.copied_bytes(), std::memory_order_relaxed);
}

// Device memory is out of the host's reach: PyTorch's own fallback copies arguments to the CPU and results
// back.
void FallbackKernel::run_on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(!asks_for_gradients_, op.schema().name(),
                              " is run by the CPU only where the host can address the memory of the device");
  at::native::cpu_fallback(op, stack);
}

namespace {

/// A kernel that is also right where ATen's lacks a dtype.
class ConvertingFallback final : public c10::OperatorKernel {
 public:
  explicit ConvertingFallback(const c10::OperatorHandle& op) : kernel(op), dtypes_(host_dtypes(op)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (dtypes_ != nullptr && call_converted(*dtypes_, op, stack)) return;
    kernel(op, keys, stack);
  }

  FallbackKernel kernel;

 private:
  const HostDtypes* dtypes_;
};

ConvertingFallback& kernel_of(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static ska::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<ConvertingFallback>> kernels;
  const std::lock_guard lock(mutex);
  auto& kernel = kernels[&op.schema()];
  if (kernel == nullptr) kernel = std::make_unique<ConvertingFallback>(op);
  return *kernel;
}

}  // namespace

FallbackKernel& fallback_kernel(const c10::OperatorHandle& op) { return kernel_of(op).kernel; }

void boxed_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  kernel_of(op)(op, keys, stack);
}

namespace {

/// The key of device npu for a layout, and the CPU's.
struct LayoutKeys {
  c10::DispatchKey npu;
  c10::DispatchKey host;
};

constexpr LayoutKeys kLayouts[] = {
    {c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU},
    {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU},
    {c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU},
    {c10::DispatchKey::NestedTensorPrivateUse1, c10::DispatchKey::NestedTensorCPU},
};

/// Operators whose composite code, meant for all devices, works for PyTorch's own only: it calls their
/// kernels past the dispatcher, or asks for their names.
constexpr std::array<std::string_view, 2> kHostComposites = {"aten::conj_physical_", "aten::mode.values"};

bool is_host_composite(const c10::OperatorName& name) {
  return std::find(kHostComposites.begin(), kHostComposites.end(), c10::toString(name)) !=
         kHostComposites.end();
}

/// The kernel of an operator that takes only tensors and returns a new one.
template <class... Tensors>
class UnboxedFallback final : public c10::OperatorKernel {
 public:
  explicit UnboxedFallback(const c10::OperatorHandle& op)
      : kernel_(op), op_(op.typed<at::Tensor(Tensors...)>()) {}
  at::Tensor operator()(c10::DispatchKeySet keys, Tensors... arguments) {
    return kernel_.call<Tensors...>(op_, keys, arguments...);
  }

 private:
  FallbackKernel kernel_;
  const c10::TypedOperatorHandle<at::Tensor(Tensors...)> op_;
};

bool is_new_tensor_of_tensors(const c10::FunctionSchema& schema) {
  const auto is_plain = [](const c10::Argument& a) {
    return a.alias_info() == nullptr && a.type()->kind() == c10::TypeKind::TensorType;
  };
  return schema.returns().size() == 1 && is_plain(schema.returns()[0]) &&
         std::all_of(schema.arguments().begin(), schema.arguments().end(), is_plain);
}

template <class... Tensors>
c10::KernelFunction make_unboxed_fallback(const c10::OperatorHandle& op) {
  using Kernel = UnboxedFallback<Tensors...>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(op));
}

c10::KernelFunction make_fallback(const c10::OperatorHandle& op) {
  using Tensor = const at::Tensor&;
  if (host_dtypes(op) != nullptr) {
    return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ConvertingFallback>(op));
  }
  if (is_new_tensor_of_tensors(op.schema())) {
    if (op.schema().arguments().size() == 1) return make_unboxed_fallback<Tensor>(op);
    if (op.schema().arguments().size() == 2) return make_unboxed_fallback<Tensor, Tensor>(op);
  }
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<FallbackKernel>(op));
}

/// Dense operators that return views keep PyTorch's own kernels: the view must share the npu storage.
bool returns_view(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& r) {
    return r.alias_info() != nullptr && !r.alias_info()->isWrite();
  });
}

}  // namespace

void register_fallbacks() {
  install_cpu_allocator();
  static std::deque<c10::RegistrationHandleRAII> registrations;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value()) continue;
    for (const auto& [npu, host] : kLayouts) {
      if (op->hasKernelForDispatchKey(npu)) continue;
      const bool dense = npu == c10::DispatchKey::PrivateUse1;
      if (!op->hasKernelForDispatchKey(host) && !(dense && is_host_composite(name))) continue;
      if (dense && returns_view(op->schema())) continue;
      registrations.push_back(dispatcher.registerImpl(name, npu, make_fallback(*op), std::nullopt, nullptr,
                                                      "torch_npu CPU fallback"));
    }
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

}  // namespace torch_npu
