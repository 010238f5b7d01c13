// Pointwise operators that are more than one call: where, equal.
#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/ops/common_dtypes.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnSWhereGetWorkspaceSize)> aclnn_where("aclnnSWhere");
Aclnn<decltype(::aclnnEqualGetWorkspaceSize)> aclnn_equal("aclnnEqual");

bool where_takes(const at::Tensor& self, const at::Tensor& other) {
  return aclnn_where.available() && takes(kCommonDtypes, self) && takes(kCommonDtypes, other) &&
         at::result_type(self, other) != at::kComplexHalf;
}

/// What where selects from, on the device: numbers on the CPU may be any of the three.
struct Where {
  Where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other)
      : dtype(at::result_type(self, other)) {
    TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
                "where expected condition to be a boolean tensor, but got a tensor with dtype ",
                condition.scalar_type());
    this->condition = on_device(condition, at::kBool);
    this->self = on_device(self, dtype);
    this->other = on_device(other, dtype);
  }

  at::ScalarType dtype;
  c10::MaybeOwned<at::Tensor> condition, self, other;
};

/// The output of where: it is not structured, but TensorIterator says what it looks like.
class WhereMeta : public at::TensorIteratorBase {
 public:
  void meta(const Where& where) {
    const auto device = at::Device(at::kPrivateUse1, device::current_device());
    const at::Tensor& out = maybe_get_output(0);
    TORCH_CHECK(!out.defined() || out.scalar_type() == where.dtype, "Expected out type to be ", where.dtype,
                " but got ", out.scalar_type());
    build(at::TensorIteratorConfig()
              .check_all_same_dtype(false)
              .add_output(out)
              .add_const_input(*where.condition)
              .add_const_input(*where.self)
              .add_const_input(*where.other)
              .declare_static_dtype_and_device(where.dtype, device));
  }
};

}  // namespace

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const DeviceSwitch on(DeviceSwitch::of(condition, self, other));
  if (!where_takes(self, other)) return fallback<at::_ops::where_self>(condition, self, other);
  const Where operands(condition, self, other);
  NewOutputs<WhereMeta, 1> rule;
  rule.meta(operands);
  aclnn_where(*operands.condition, *operands.self, *operands.other, rule.output(0));
  return std::move(rule.output(0));
}

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                      at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(condition, self, other));
  if (!where_takes(self, other)) return fallback<at::_ops::where_self_out>(condition, self, other, out);
  const Where operands(condition, self, other);
  GivenOutputs<WhereMeta, 1> rule(out);
  rule.meta(operands);
  aclnn_where(*operands.condition, *operands.self, *operands.other, out);
  return out;
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  same_device("equal", self, "self", other, "other");
  const DeviceSwitch on(DeviceSwitch::of(self, other));
  if (self.sizes() != other.sizes()) return false;
  if (!aclnn_equal.available() || !takes(kRealDtypes, self) || self.scalar_type() != other.scalar_type()) {
    return fallback<at::_ops::equal>(self, other);
  }
  at::Tensor out = new_output({}, at::kBool, self);
  aclnn_equal(self, other, out);
  return out.item<bool>();
}

}  // namespace torch_npu::ops
