// Pointwise operators that are more than one call: where, equal.
#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include "cann/aclnn.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnSWhereGetWorkspaceSize)> aclnn_where("aclnnSWhere");
Aclnn<decltype(::aclnnEqualGetWorkspaceSize)> aclnn_equal("aclnnEqual");

/// The output of where: it is not structured, but TensorIterator says what it looks like.
class WhereMeta : public at::TensorIteratorBase {
 public:
  void meta(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
    const auto dtype = at::result_type(self, other);
    const at::Tensor& out = maybe_get_output(0);
    TORCH_CHECK(!out.defined() || out.scalar_type() == dtype, "Expected out type to be ", dtype, " but got ",
                out.scalar_type());
    TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte,
                "where expected condition to be a boolean tensor, but got a tensor with dtype ",
                condition.scalar_type());
    const auto device = at::Device(at::kPrivateUse1, device::current_device());
    build(at::TensorIteratorConfig()
              .check_all_same_dtype(false)
              .add_output(out)
              .add_const_input(condition)
              .add_const_input(self)
              .add_const_input(other)
              .allow_cpu_scalars(true)
              .declare_static_dtype_and_device(dtype, device));
    dtype_ = dtype;
  }
  at::ScalarType result_dtype() const { return dtype_; }

 private:
  at::ScalarType dtype_ = at::kFloat;
};

void call_where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                at::ScalarType dtype, at::Tensor& out) {
  aclnn_where(*on_device(condition, at::kBool), *on_device(self, dtype), *on_device(other, dtype), out);
}

}  // namespace

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const DeviceSwitch on(DeviceSwitch::of(condition, self, other));
  if (!aclnn_where.available()) return fallback<at::_ops::where_self>(condition, self, other);
  NewOutputs<WhereMeta, 1> rule;
  rule.meta(condition, self, other);
  call_where(condition, self, other, rule.result_dtype(), rule.output(0));
  return std::move(rule.output(0));
}

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                      at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(condition, self, other));
  if (!aclnn_where.available()) return fallback<at::_ops::where_self_out>(condition, self, other, out);
  GivenOutputs<WhereMeta, 1> rule(out);
  rule.meta(condition, self, other);
  call_where(condition, self, other, rule.result_dtype(), out);
  return out;
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  same_device("equal", self, "self", other, "other");
  const DeviceSwitch on(DeviceSwitch::of(self, other));
  if (self.sizes() != other.sizes()) return false;
  if (!aclnn_equal.available() || self.is_complex() || self.scalar_type() != other.scalar_type()) {
    return fallback<at::_ops::equal>(self, other);
  }
  at::Tensor out = new_output({}, at::kBool, self);
  aclnn_equal(self, other, out);
  return out.item<bool>();
}

}  // namespace torch_npu::ops
