// Advanced indexing, and selections whose size depends on the values.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/index_meta.h>

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/ops/common_dtypes.h"
#include "torch_npu/csrc/ops/dynamic_output.h"

namespace torch_npu::ops {
namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

Aclnn<decltype(::aclnnIndexGetWorkspaceSize)> aclnn_index("aclnnIndex");
Aclnn<decltype(::aclnnIndexPutImplGetWorkspaceSize)> aclnn_index_put("aclnnIndexPutImpl");
Aclnn<decltype(::aclnnInplaceMaskedFillScalarGetWorkspaceSize)> aclnn_masked_fill_scalar(
    "aclnnInplaceMaskedFillScalar");
Aclnn<decltype(::aclnnInplaceMaskedFillTensorGetWorkspaceSize)> aclnn_masked_fill_tensor(
    "aclnnInplaceMaskedFillTensor");
Aclnn<decltype(::aclnnMaskedSelectGetWorkspaceSize)> aclnn_masked_select("aclnnMaskedSelect");
Aclnn<decltype(::aclnnNonzeroV2GetWorkspaceSize)> aclnn_nonzero("aclnnNonzeroV2");

/// As PyTorch says it; the operator would find out on the stream.
void require_broadcastable(const std::vector<at::Tensor>& indices) {
  at::DimVector common;
  for (const auto& index : indices) {
    if (!index.defined()) continue;
    const auto sizes = index.sizes();
    if (sizes.size() > common.size()) common.insert(common.begin(), sizes.size() - common.size(), 1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      int64_t& size = common[common.size() - sizes.size() + i];
      const bool fits = sizes[i] == size || sizes[i] == 1 || size == 1;
      TORCH_CHECK_INDEX(fits, "shape mismatch: indexing tensors could not be broadcast together: ", sizes,
                        " does not fit the ", common, " of the others");
      if (size == 1) size = sizes[i];
    }
  }
}

/// A CPU tensor cannot be indexed by what lies on the device.
void require_host_indices(const OptionalTensors& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    TORCH_CHECK(
        !index.has_value() || !index->defined() || index->is_cpu(),
        "indices should be either on cpu or on the same device as the indexed tensor (cpu), but one is on ",
        index->device());
  }
}

/// Integer indices on self's device, undefined where none was given: masks become the positions of their true
/// elements.
std::vector<at::Tensor> positions(const at::Tensor& self, const OptionalTensors& indices) {
  at::native::checkIndexTensorTypes(indices, /*allow_int=*/true);
  return at::native::expandTensors(self, indices, /*ensure_same_device=*/true);
}

OptionalTensors as_optional(const std::vector<at::Tensor>& indices) {
  OptionalTensors result;
  result.reserve(indices.size());
  for (const auto& index : indices) result.push_back(index.defined() ? std::optional(index) : std::nullopt);
  return result;
}

/// CANN's operators take an empty tensor of self's dtype for an index that was not given.
std::vector<at::Tensor> with_placeholders(const at::Tensor& self, std::vector<at::Tensor> indices) {
  for (auto& index : indices) {
    if (!index.defined()) index = new_output({0}, self.scalar_type(), self);
  }
  return indices;
}

bool all_undefined(const std::vector<at::Tensor>& indices) {
  return std::none_of(indices.begin(), indices.end(),
                      [](const at::Tensor& index) { return index.defined(); });
}

/// index with the outputs of `rule` (new or given ones); false if this is a case for the CPU.
template <class Rule>
bool try_index(Rule& rule, const at::Tensor& self, const OptionalTensors& indices) {
  if (!aclnn_index.available() || !takes(kCommonDtypes, self)) return false;
  auto where = positions(self, indices);
  if (all_undefined(where)) return false;
  rule.meta(self, as_optional(where));
  at::Tensor& out = rule.output(0);
  const auto given = with_placeholders(self, std::move(where));
  if (out.numel() > 0) aclnn_index(self, given, out);
  return true;
}

}  // namespace

at::Tensor index(const at::Tensor& self, const OptionalTensors& indices) {
  const DeviceSwitch on(DeviceSwitch::of(self, indices));
  if (!self.is_privateuseone()) require_host_indices(indices);
  NewOutputs<at::meta::structured_index_Tensor, 1> rule;
  if (!self.is_privateuseone() || !try_index(rule, self, indices))
    return fallback<at::_ops::index_Tensor>(self, indices);
  return std::move(rule.output(0));
}

at::Tensor& index_out(const at::Tensor& self, const OptionalTensors& indices, at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(self, indices));
  if (!self.is_privateuseone()) require_host_indices(indices);
  GivenOutputs<at::meta::structured_index_Tensor, 1> rule(out);
  if (!self.is_privateuseone() || !try_index(rule, self, indices)) {
    return fallback<at::_ops::index_Tensor_out>(self, indices, out);
  }
  return out;
}

at::Tensor& index_put_impl_(at::Tensor& self, const OptionalTensors& indices, const at::Tensor& values,
                            bool accumulate, bool unsafe) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  const auto on_cpu = [&]() -> at::Tensor& {
    return fallback<at::_ops::_index_put_impl_>(self, indices, values, accumulate, unsafe);
  };
  if (!self.is_privateuseone()) require_host_indices(indices);
  if (!self.is_privateuseone() || !aclnn_index_put.available() || !takes(kCommonDtypes, self))
    return on_cpu();
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim(), " (got ", indices.size(), ")");
  if (!accumulate && values.numel() == 1) {
    // One value at the true elements of one mask; asked as for a CPU value, which is all that PyTorch's rule
    // knows.
    static const at::Tensor any_value = at::zeros({});
    const auto [is_fill, mask] = at::native::canDispatchToMaskedFill(self, indices, any_value);
    if (is_fill) return self.masked_fill_(mask, values.reshape({}));
  }
  at::assert_no_overlap(self, values);
  auto where = positions(self, indices);
  if (all_undefined(where)) return on_cpu();
  const bool is_scalar = is_host_scalar(values);
  if (!is_scalar) same_device("index_put_", self, "self", values, "values");
  TORCH_CHECK_INDEX(self.scalar_type() == values.scalar_type(),
                    "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
                    " for the destination and ", values.scalar_type(), " for the source.");
  const bool is_noop =
      self.numel() == 0 || std::any_of(where.begin(), where.end(), [](const at::Tensor& index) {
        return index.defined() && index.numel() == 0;
      });
  require_broadcastable(where);
  if (is_noop) return on_cpu();  // checks shapes and writes nothing
  const auto given = with_placeholders(self, std::move(where));
  aclnn_index_put(self, given, *on_device(values, self.scalar_type()), accumulate, unsafe);
  return self;
}

at::Tensor& masked_fill_tensor_(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  same_device("masked_fill_", self, "self", mask, "mask");
  const DeviceSwitch on(DeviceSwitch::of(self));
  TORCH_CHECK(value.dim() == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(),
              " dimension(s).");
  const bool takes_both = mask.scalar_type() == at::kBool && takes(kCommonDtypes, self);
  if (is_host_scalar(value) && takes_both && aclnn_masked_fill_scalar.available()) {
    aclnn_masked_fill_scalar(self, mask, value.item());
  } else if (value.is_privateuseone() && takes_both && aclnn_masked_fill_tensor.available()) {
    aclnn_masked_fill_tensor(self, mask, value);
  } else {
    return fallback<at::_ops::masked_fill__Tensor>(self, mask, value);
  }
  return self;
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  same_device("masked_select", self, "self", mask, "mask");
  const DeviceSwitch on(DeviceSwitch::of(self, mask));
  if (!aclnn_masked_select.available() || mask.scalar_type() != at::kBool || !takes(kCommonDtypes, self)) {
    return fallback<at::_ops::masked_select>(self, mask);
  }
  const auto sizes = at::infer_size_dimvector(self.sizes(), mask.sizes());
  DynamicOutput out("aten::masked_select",
                    new_output({c10::multiply_integers(sizes)}, self.scalar_type(), self));
  aclnn_masked_select(self, mask, out.descriptor());
  return out.finish();
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  const at::Tensor selected = ops::masked_select(self, mask);
  resize_output(out, selected.sizes(), self.scalar_type(), self);
  return out.copy_(selected);
}

// The operator lists one row of indices a dimension, which is how PyTorch lays out its transpose.
at::Tensor nonzero(const at::Tensor& self) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_nonzero.available() || !takes(kCommonDtypes, self)) return fallback<at::_ops::nonzero>(self);
  DynamicOutput out("aten::nonzero", new_output({self.dim(), self.numel()}, at::kLong, self));
  aclnn_nonzero(self, out.descriptor());
  return out.finish().t();
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  const at::Tensor found = ops::nonzero(self);
  resize_output(out, found.sizes(), at::kLong, self);
  return out.copy_(found);
}

}  // namespace torch_npu::ops
