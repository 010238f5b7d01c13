// npu_grouped_matmul: lists of tensors in and out.
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "cann/aclnn/moe.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/npu_operator.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/ops/nn_sizes.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnGroupedMatmulV4GetWorkspaceSize)> aclnn_grouped_matmul("aclnnGroupedMatmulV4");

using OptionalList = std::optional<at::TensorList>;
using Optional = std::optional<at::Tensor>;
using OptionalInt = std::optional<int64_t>;

bool any(const OptionalList& list) { return list.has_value() && !list->empty(); }

void check(at::TensorList x, at::TensorList weight, std::initializer_list<const OptionalList*> refused,
           const Optional& group_list, int64_t group_type, int64_t act_type) {
  TORCH_CHECK_VALUE(!x.empty() && !weight.empty(),
                    "npu_grouped_matmul: x and weight must not be empty lists");
  check_dtype("npu_grouped_matmul", "x", x, kHalfAndFloat);
  check_dtype("npu_grouped_matmul", "weight", weight, kHalfAndFloat);
  for (const auto* list : refused) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !any(*list), "npu_grouped_matmul: scales, offsets and activations are not supported; leave them out");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(act_type == 0, "npu_grouped_matmul: act_type is ", act_type,
                              "; expected 0 (none)");
  TORCH_CHECK_NOT_IMPLEMENTED(group_type == -1 || group_type == 0, "npu_grouped_matmul: group_type is ",
                              group_type, "; expected -1 (lists) or 0 (groups of rows)");
  TORCH_CHECK_VALUE(group_type == 0 || x.size() == weight.size(),
                    "npu_grouped_matmul: group_type -1 needs as many x (", x.size(), ") as weights (",
                    weight.size(), ")");
  TORCH_CHECK_VALUE(group_type == -1 || given(group_list),
                    "npu_grouped_matmul: group_type 0 needs group_list");
}

/// Sizes of the results, where split_item 2 and 3 mean one and 0 and 1 one a product.
template <class Int>
std::vector<at::Tensor> results(at::TensorList x, at::TensorList weight, int64_t split_item,
                                OptionalInt dtype) {
  const auto columns = [](const at::Tensor& w) { return entry<Int>(shape_of<Int>(w), -1); };
  const auto make = [&](SizeList<Int> sizes) {
    return new_result<Int>(sizes, dtype_named("npu_grouped_matmul", dtype, x[0].scalar_type()), x[0]);
  };
  if (split_item == 2 || split_item == 3) {
    Int rows = 0;
    for (const auto& t : x) rows = rows + shape_of<Int>(t)[0];
    return {make(SizeList<Int>().append(rows).append(columns(weight[0])))};
  }
  TORCH_CHECK_VALUE(
      x.size() == weight.size(),
      "npu_grouped_matmul: split_item 0 and 1 need as many x as weights; pass split_item=3 for one result");
  std::vector<at::Tensor> made;
  for (size_t i = 0; i < x.size(); ++i)
    made.push_back(make(with<Int>(shape_of<Int>(x[i]), -1, columns(weight[i]))));
  return made;
}

}  // namespace

std::vector<at::Tensor> npu_grouped_matmul(
    at::TensorList x, at::TensorList weight, OptionalList bias, OptionalList scale, OptionalList offset,
    OptionalList antiquant_scale, OptionalList antiquant_offset, OptionalList per_token_scale,
    const Optional& group_list, OptionalList activation_input, OptionalList activation_quant_scale,
    OptionalList activation_quant_offset, OptionalInt split_item, OptionalInt group_type,
    OptionalInt group_list_type, OptionalInt act_type, at::OptionalIntArrayRef, OptionalInt output_dtype,
    OptionalInt, OptionalInt, OptionalInt, OptionalInt) {
  check(x, weight,
        {&scale, &offset, &antiquant_scale, &antiquant_offset, &per_token_scale, &activation_input,
         &activation_quant_scale, &activation_quant_offset},
        group_list, group_type.value_or(-1), act_type.value_or(0));
  const DeviceSwitch on(DeviceSwitch::of(x));
  const auto out = results<int64_t>(x, weight, split_item.value_or(0), output_dtype);
  const at::TensorList none;
  aclnn_grouped_matmul(x, weight, bias.value_or(none), none, none, none, none, none, group_list, none, none,
                       none, split_item.value_or(0), group_type.value_or(-1), group_list_type.value_or(0),
                       act_type.value_or(0), at::TensorList(out), none, none);
  return out;
}

std::vector<at::Tensor> npu_grouped_matmul_meta(
    at::TensorList x, at::TensorList weight, OptionalList, OptionalList scale, OptionalList offset,
    OptionalList antiquant_scale, OptionalList antiquant_offset, OptionalList per_token_scale,
    const Optional& group_list, OptionalList activation_input, OptionalList activation_quant_scale,
    OptionalList activation_quant_offset, OptionalInt split_item, OptionalInt group_type, OptionalInt,
    OptionalInt act_type, at::OptionalIntArrayRef, OptionalInt output_dtype, OptionalInt, OptionalInt,
    OptionalInt, OptionalInt) {
  check(x, weight,
        {&scale, &offset, &antiquant_scale, &antiquant_offset, &per_token_scale, &activation_input,
         &activation_quant_scale, &activation_quant_offset},
        group_list, group_type.value_or(-1), act_type.value_or(0));
  return results<c10::SymInt>(x, weight, split_item.value_or(0), output_dtype);
}

}  // namespace torch_npu::ops
