#include "torch_npu/csrc/dispatch/aclnn.h"

#include <ATen/ops/empty.h>

#include <mutex>
#include <vector>

#include "torch_npu/csrc/device/activity.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/dispatch/launch_log.h"
#include "torch_npu/csrc/dispatch/packed.h"
#include "torch_npu/csrc/dispatch/workspace.h"
#include "torch_npu/csrc/graph/recording.h"
#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu {

aclDataType to_acl(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ACL_FLOAT;
    case at::kHalf:
      return ACL_FLOAT16;
    case at::kBFloat16:
      return ACL_BF16;
    case at::kDouble:
      return ACL_DOUBLE;
    case at::kChar:
      return ACL_INT8;
    case at::kByte:
      return ACL_UINT8;
    case at::kShort:
      return ACL_INT16;
    case at::kUInt16:
      return ACL_UINT16;
    case at::kInt:
      return ACL_INT32;
    case at::kUInt32:
      return ACL_UINT32;
    case at::kLong:
      return ACL_INT64;
    case at::kUInt64:
      return ACL_UINT64;
    case at::kBool:
      return ACL_BOOL;
    case at::kComplexHalf:
      return ACL_COMPLEX32;
    case at::kComplexFloat:
      return ACL_COMPLEX64;
    case at::kComplexDouble:
      return ACL_COMPLEX128;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "CANN has no data type for torch.", dtype);
  }
}

aclTensor* create_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  if (is_packed(tensor)) [[unlikely]]
    return create_packed_tensor(tensor);
  const auto& storage = tensor.storage();
  if (graph::Recording* recording = graph::current_recording(tensor.device().index())) [[unlikely]]
    recording->keep(storage);
  // CANN wants the extent of the storage too; one dimension of elements describes any.
  const int64_t elements = static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
  return cann::api().aclCreateTensor(sizes.data(), sizes.size(), to_acl(tensor.scalar_type()), strides.data(),
                                     tensor.storage_offset(), ACL_FORMAT_ND, &elements, 1,
                                     const_cast<void*>(storage.data()));
}

aclScalar* create_scalar(const at::Scalar& scalar) {
  const auto create = [](auto value, aclDataType dtype) {
    return cann::api().aclCreateScalar(&value, dtype);
  };
  if (scalar.isBoolean()) return create(scalar.toBool(), ACL_BOOL);
  if (scalar.isIntegral(/*includeBool=*/false)) return create(scalar.toLong(), ACL_INT64);
  if (scalar.isComplex()) return create(scalar.toComplexDouble(), ACL_COMPLEX128);
  return create(scalar.toDouble(), ACL_DOUBLE);
}

aclIntArray* create_int_array(at::IntArrayRef values) {
  return cann::api().aclCreateIntArray(values.data(), values.size());
}

aclBoolArray* create_bool_array(at::ArrayRef<bool> values) {
  return cann::api().aclCreateBoolArray(values.data(), values.size());
}

aclFloatArray* create_float_array(at::ArrayRef<double> values) {
  const c10::SmallVector<float, 8> narrow(values.begin(), values.end());
  return cann::api().aclCreateFloatArray(narrow.data(), narrow.size());
}

aclTensorList* create_tensor_list(at::TensorList tensors) {
  c10::SmallVector<const aclTensor*, 16> handles;
  for (const auto& tensor : tensors) handles.push_back(create_tensor(tensor));
  return cann::api().aclCreateTensorList(handles.data(), handles.size());
}

aclTensorList* create_tensor_list(const at::ITensorListRef& tensors) {
  c10::SmallVector<const aclTensor*, 16> handles;
  for (const at::Tensor& tensor : tensors) handles.push_back(create_tensor(tensor));
  return cann::api().aclCreateTensorList(handles.data(), handles.size());
}

aclTensorList* create_tensor_list(const c10::List<std::optional<at::Tensor>>& tensors) {
  c10::SmallVector<const aclTensor*, 16> handles;
  for (const std::optional<at::Tensor>& tensor : tensors) {
    handles.push_back(tensor.has_value() ? create_tensor(*tensor) : nullptr);
  }
  return cann::api().aclCreateTensorList(handles.data(), handles.size());
}

aclScalarList* create_scalar_list(at::ArrayRef<at::Scalar> scalars) {
  c10::SmallVector<const aclScalar*, 16> handles;
  for (const auto& scalar : scalars) handles.push_back(create_scalar(scalar));
  return cann::api().aclCreateScalarList(handles.data(), handles.size());
}

namespace {

std::mutex g_resolved_mutex;

/// Every operator that was looked up and found.
std::vector<AclnnBase*>& resolved() {
  static auto* operators = new std::vector<AclnnBase*>;
  return *operators;
}

}  // namespace

bool AclnnBase::resolve() {
  const std::lock_guard lock(g_resolved_mutex);
  if (const int8_t state = state_.load(std::memory_order_relaxed); state != 0) return state > 0;
  phase1_ = cann::find_aclnn((std::string(name_) + "GetWorkspaceSize").c_str());
  phase2_ = reinterpret_cast<Phase2>(cann::find_aclnn(name_));
  const bool there = phase1_ != nullptr && phase2_ != nullptr;
  if (there) resolved().push_back(this);
  state_.store(there ? 1 : -1, std::memory_order_release);
  return there;
}

std::map<std::string, int64_t> AclnnBase::calls() {
  std::map<std::string, int64_t> result;
  const std::lock_guard lock(g_resolved_mutex);
  for (const AclnnBase* op : resolved()) {
    // Several kernels may call the same operator, each through an object of its own.
    if (const int64_t calls = op->calls_.load(std::memory_order_relaxed); calls > 0)
      result[op->name_] += calls;
  }
  return result;
}

void AclnnBase::clear_calls() {
  const std::lock_guard lock(g_resolved_mutex);
  for (AclnnBase* op : resolved()) op->calls_.store(0, std::memory_order_relaxed);
}

void AclnnBase::refused(aclError code) const {
  if (code == ACL_ERROR_OP_NOT_FOUND) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, name_, " is not in the CANN in use (", cann::info().root,
        "); it was called by an operator that has no other way. A newer CANN may have it.");
  }
  cann::raise_error(code, name_);
}

void AclnnBase::launch(uint64_t workspace_size, aclOpExecutor* executor) {
  const detail::WorkspaceMode* mode = detail::workspace_mode;
  if (mode && mode->largest) [[unlikely]] {
    *mode->largest = std::max(*mode->largest, static_cast<int64_t>(workspace_size));
    cann::api().aclDestroyAclOpExecutor(executor);
    return;
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  const auto device = device::current_device();
  const aclrtStream stream = device::current_stream_handle(device);
  note_launch(name_, stream);
  graph::Recording* recording = graph::current_recording(device);
  if (recording) [[unlikely]]
    recording->count_node();
  const device::ActivityScope activity(recording ? nullptr : name_, device, stream);
  if (workspace_size == 0) {
    cann::check(phase2_(nullptr, 0, executor, stream), name_);
    return;
  }
  if (mode && mode->given) [[unlikely]] {
    const at::Tensor& given = **mode->given;
    TORCH_CHECK_VALUE(given.nbytes() >= workspace_size, name_, ": workspace has ", given.nbytes(),
                      " bytes, but ", workspace_size, " are needed");
    cann::check(phase2_(given.data_ptr(), workspace_size, executor, stream), name_);
    return;
  }
  // From the pool, and back to it as soon as the launch is on the stream: later users of the block come after
  // it.
  memory::Block* workspace = memory::caching_allocator().allocate_block(workspace_size, device, stream);
  const aclError code = phase2_(workspace->ptr, workspace_size, executor, stream);
  memory::caching_allocator().free_block(workspace);
  cann::check(code, name_);
}

}  // namespace torch_npu
