#include "torch_npu/csrc/dispatch/recorded_fallback.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/dispatch/host_view.h"
#include "torch_npu/csrc/dispatch/layouts.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu {
namespace {

using torch::jit::Stack;

const c10::DispatchKeySet kCPU(c10::DispatchKey::CPU);
const c10::DispatchKeySet kMeta(c10::DispatchKey::Meta);

/// The value with each of its tensors replaced.
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorVector()) result.push_back(map(tensor));
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      result.push_back(tensor.has_value() ? std::optional(map(*tensor)) : std::nullopt);
    }
    return result;
  }
  return value;
}

/// CPU tensors beside npu tensors are numbers, which keep their part in the promotion of dtypes.
at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

/// Dispatch keys as a plain CPU program has them: the thread that replays may carry autograd or autocast
/// state.
c10::impl::LocalDispatchKeySet plain_keys() {
  c10::impl::PODLocalDispatchKeySet keys{};
  keys.set_included(c10::DispatchKeySet(c10::DispatchKey::BackendSelect));
  keys.set_excluded(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set);
  return c10::impl::LocalDispatchKeySet(keys);
}

/// CPU tensors over npu memory by address. The graph keeps the memory, so that these need not: memory of its
/// pool serves other tensors before and after.
class UnownedViews {
 public:
  at::Tensor operator()(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_privateuseone()) return tensor.clone();  // a number, as it is now
    const auto& storage = tensor.storage();
    auto& host = storages_[storage.unsafeGetStorageImpl()];
    if (!host) host = unowned_host_storage(storage);
    return host_view(tensor, host);
  }

 private:
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
};

/// One recorded call. Results that are not arguments are copied to where the rest of the graph finds them.
class RecordedCall {
 public:
  RecordedCall(const c10::OperatorHandle& op, Stack arguments,
               std::vector<std::pair<size_t, at::Tensor>> results)
      : op_(op), arguments_(std::move(arguments)), results_(std::move(results)) {}

  void run() const {
    static const auto keys = plain_keys();
    const c10::impl::ForceDispatchKeyGuard guard(keys);
    Stack stack = arguments_;
    op_.redispatchBoxed(kCPU, &stack);
    for (const auto& [position, result] : results_) {
      const at::Tensor& computed = stack[position].toTensor();
      TORCH_CHECK(computed.sizes() == result.sizes(), "the result has shape ", computed.sizes(), ", but ",
                  result.sizes(), " when the graph was recorded");
      result.copy_(computed);
    }
  }

 private:
  c10::OperatorHandle op_;
  Stack arguments_;
  std::vector<std::pair<size_t, at::Tensor>> results_;
};

int32_t run_recorded(void* call, char* message, size_t room) {
  try {
    static_cast<const RecordedCall*>(call)->run();
    return 0;
  } catch (const c10::Error& error) {
    std::strncpy(message, error.what_without_backtrace(), room - 1);
  } catch (const std::exception& error) {
    std::strncpy(message, error.what(), room - 1);
  }
  return 1;
}

void release_recorded(void* call) { delete static_cast<RecordedCall*>(call); }

/// Why an operator cannot be recorded whatever its arguments are; null if it can.
const char* obstacle(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto is_tensor = [](const c10::Argument& argument) {
    return argument.type()->kind() == c10::TypeKind::TensorType;
  };
  if (!device_memory_is_host_accessible() || !cann::api().cannHostLaunchFunction) {
    return "it has no native kernel, and runs on the CPU, which this device's memory must be copied to";
  }
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    return "it has no native kernel, and the CPU's random numbers cannot follow a replay's";
  }
  if (op.hasTag(at::Tag::data_dependent_output)) {
    return "the host would have to wait for the value, and nothing runs before the replay";
  }
  const auto& name = op.operator_name().name;
  if (name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only") {
    return "it has no native kernel for these arguments, and the CPU's leaves out results that others give";
  }
  if (op.hasTag(at::Tag::dynamic_output_shape)) return "the shape of its result depends on the data";
  if (op.hasTag(at::Tag::inplace_view) ||
      !std::all_of(schema.returns().begin(), schema.returns().end(), is_tensor)) {
    return "it has no native kernel, and gives something else than a known number of tensors";
  }
  return nullptr;
}

/// The position of the argument that a result is (in-place, out=); -1 for a new tensor.
int aliased_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets())
      return static_cast<int>(i);
  }
  return -1;
}

/// Results of the operator on meta tensors of the arguments' shapes.
Stack infer(const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack;
  for (const auto& value : arguments) {
    stack.push_back(value.isDevice() ? c10::IValue(c10::Device(at::kMeta)) : map_tensors(value, on_meta));
  }
  op.redispatchBoxed(kMeta, &stack);
  return stack;
}

}  // namespace

void record_fallback(const c10::OperatorHandle& op, Stack* stack, c10::DeviceIndex device) {
  const auto& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  const auto refuse_if = [&](bool condition, const char* why) {
    if (condition) graph::require_no_recording(name.c_str(), why, device);
  };
  if (const char* why = obstacle(op)) refuse_if(true, why);
  const size_t count = schema.arguments().size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());

  graph::Recording& recording = *graph::current_recording(device);
  UnownedViews views;
  Stack host_arguments;
  for (const auto& value : arguments) {
    if (value.isDevice()) {
      host_arguments.emplace_back(c10::Device(c10::DeviceType::CPU));
      continue;
    }
    host_arguments.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      refuse_if(!is_dense(tensor), "it has no native kernel for sparse or nested tensors");
      recording.keep(tensor.storage());
      return views(tensor);
    }));
  }

  Stack inferred;
  try {
    inferred = infer(op, arguments);
  } catch (const std::exception&) {
    refuse_if(true, "it has no native kernel, and PyTorch cannot tell the shape of its result beforehand");
  }

  std::vector<std::pair<size_t, at::Tensor>> results;
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const at::Tensor& meta = inferred[i].toTensor();
    if (const int position = aliased_argument(schema, schema.returns()[i]); position >= 0) {
      const at::Tensor& argument = arguments[position].toTensor();
      refuse_if(argument.sizes() != meta.sizes(),
                "it has no native kernel, and would change the shape of an argument");
      stack->emplace_back(argument);
      continue;
    }
    const auto options = meta.options().device(c10::Device(c10::DeviceType::PrivateUse1, device));
    const at::Tensor result = new_tensor(meta.sizes(), meta.strides(), options);
    results.emplace_back(i, views(result));
    stack->emplace_back(result);
  }
  auto* call = new RecordedCall(op, std::move(host_arguments), std::move(results));
  cann::api().cannHostLaunchFunction.checked(name.c_str(), &run_recorded, &release_recorded, call,
                                             device::current_stream_handle(device));
  recording.count_node();
}

}  // namespace torch_npu
