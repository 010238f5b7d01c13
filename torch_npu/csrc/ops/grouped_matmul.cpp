// npu_grouped_matmul: lists of tensors in and out.
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "cann/aclnn/moe.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/npu_operator.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/ops/composed.h"
#include "torch_npu/csrc/ops/nn_sizes.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnGroupedMatmulV4GetWorkspaceSize)> aclnn_grouped_matmul("aclnnGroupedMatmulV4");

using OptionalList = std::optional<at::TensorList>;
using Optional = std::optional<at::Tensor>;
using OptionalInt = std::optional<int64_t>;

constexpr uint64_t mask_of(at::ScalarType dtype) { return uint64_t{1} << static_cast<int>(dtype); }
constexpr uint64_t kFloatOrInteger = kHalfAndFloat | mask_of(at::kChar) | mask_of(at::kInt);

bool any(const OptionalList& list) { return list.has_value() && !list->empty(); }

/// The arguments that kernel and meta function check.
struct Call {
  Call(at::TensorList x, at::TensorList weight, OptionalList scale, OptionalList offset,
       OptionalList antiquant_scale, OptionalList antiquant_offset, OptionalList per_token_scale,
       OptionalList activation_input, const Optional& group_list, OptionalInt split_item,
       OptionalInt group_type, OptionalInt group_list_type, OptionalInt act_type)
      : x(x),
        weight(weight),
        scale(scale),
        offset(offset),
        antiquant_scale(antiquant_scale),
        antiquant_offset(antiquant_offset),
        per_token_scale(per_token_scale),
        activation_input(activation_input),
        group_list(group_list),
        split_item(split_item.value_or(0)),
        group_type(group_type.value_or(-1)),
        group_list_type(group_list_type.value_or(0)),
        act_type(act_type.value_or(0)) {}

  at::TensorList x, weight;
  OptionalList scale, offset, antiquant_scale, antiquant_offset, per_token_scale, activation_input;
  const Optional& group_list;
  int64_t split_item, group_type, group_list_type, act_type;
};

void check(const Call& c) {
  TORCH_CHECK_VALUE(!c.x.empty() && !c.weight.empty(),
                    "npu_grouped_matmul: x and weight must not be empty lists");
  check_dtype("npu_grouped_matmul", "x", c.x, kFloatOrInteger);
  check_dtype("npu_grouped_matmul", "weight", c.weight, kFloatOrInteger);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !any(c.offset) && !any(c.activation_input),
      "npu_grouped_matmul: offset and activation inputs are not supported by CANN; leave them out");
  const bool integer_x = !c.x[0].is_floating_point(), integer_weight = !c.weight[0].is_floating_point();
  TORCH_CHECK_VALUE(!integer_x || integer_weight, "npu_grouped_matmul: x in ", c.x[0].scalar_type(),
                    " needs a weight in int8 or int4, got ", c.weight[0].scalar_type());
  TORCH_CHECK_VALUE(integer_x || !(any(c.scale) || any(c.per_token_scale)),
                    "npu_grouped_matmul: scale and per_token_scale belong to x in int8, x is ",
                    c.x[0].scalar_type());
  TORCH_CHECK_VALUE(
      (integer_weight && !integer_x) == any(c.antiquant_scale),
      "npu_grouped_matmul: antiquant_scale belongs to floating x with an integer weight; got x in ",
      c.x[0].scalar_type(), ", weight in ", c.weight[0].scalar_type());
  TORCH_CHECK_VALUE(any(c.antiquant_scale) || !any(c.antiquant_offset),
                    "npu_grouped_matmul: antiquant_offset needs antiquant_scale");
  TORCH_CHECK_VALUE(0 <= c.act_type && c.act_type <= 5, "npu_grouped_matmul: act_type is ", c.act_type,
                    "; expected 0 (none), 1 (relu), 2 (gelu, tanh), 3 (gelu), 4 (fast gelu) or 5 (silu)");
  TORCH_CHECK_VALUE(c.group_type == -1 || c.group_type == 0 || c.group_type == 2,
                    "npu_grouped_matmul: group_type is ", c.group_type,
                    "; expected -1 (lists), 0 (groups of rows) or 2 (groups of the inner dimension)");
  TORCH_CHECK_VALUE(c.group_type != -1 || c.x.size() == c.weight.size(),
                    "npu_grouped_matmul: group_type -1 needs as many x (", c.x.size(), ") as weights (",
                    c.weight.size(), ")");
  // Lists of as many x as weights are groups by themselves.
  const bool lists_are_groups = c.group_type == 0 && c.x.size() > 1 && c.x.size() == c.weight.size();
  TORCH_CHECK_VALUE(c.group_type == -1 || given(c.group_list) || lists_are_groups,
                    "npu_grouped_matmul: group_type ", c.group_type, " needs group_list");
  TORCH_CHECK_VALUE(0 <= c.group_list_type && c.group_list_type <= 2,
                    "npu_grouped_matmul: group_list_type is ", c.group_list_type,
                    "; expected 0 (ends), 1 (lengths) or 2 ([number, length])");
  TORCH_CHECK_VALUE(c.group_type != 2 || (c.x.size() == 1 && c.weight.size() == 1 && c.split_item >= 2 &&
                                          c.group_list_type != 2 && !integer_weight),
                    "npu_grouped_matmul: group_type 2 takes one floating x and one weight, split_item 2 or 3 "
                    "and group_list_type 0 or 1");
}

/// Sizes of the results, where split_item 2 and 3 mean one and 0 and 1 one a product.
template <class Int>
std::vector<at::Tensor> results(const Call& c, OptionalInt dtype) {
  check(c);
  const auto columns = [](const at::Tensor& w) { return unpacked_size<Int>(w, -1); };
  const auto& x = c.x;
  const auto of_x = x[0].scalar_type() == at::kInt ? at::kChar : x[0].scalar_type();
  const auto make = [&](SizeList<Int> sizes) {
    return new_result<Int>(sizes, dtype_named("npu_grouped_matmul", dtype, of_x), x[0]);
  };
  if (c.group_type == 2) {
    const Int groups = shape_of<Int>(*c.group_list)[0], rows = shape_of<Int>(x[0])[0];
    return {make(SizeList<Int>().append(groups).append(rows).append(columns(c.weight[0])))};
  }
  if (c.split_item == 2 || c.split_item == 3) {
    Int rows = 0;
    for (const auto& t : x) rows = rows + shape_of<Int>(t)[0];
    return {make(SizeList<Int>().append(rows).append(columns(c.weight[0])))};
  }
  TORCH_CHECK_VALUE(
      x.size() == c.weight.size(),
      "npu_grouped_matmul: split_item 0 and 1 need as many x as weights; pass split_item=3 for one result");
  std::vector<at::Tensor> made;
  for (size_t i = 0; i < x.size(); ++i) {
    made.push_back(make(with<Int>(shape_of<Int>(x[i]), -1, columns(c.weight[i]))));
  }
  return made;
}

}  // namespace

std::vector<at::Tensor> npu_grouped_matmul(
    at::TensorList x, at::TensorList weight, OptionalList bias, OptionalList scale, OptionalList offset,
    OptionalList antiquant_scale, OptionalList antiquant_offset, OptionalList per_token_scale,
    const Optional& group_list, OptionalList activation_input, OptionalList, OptionalList,
    OptionalInt split_item, OptionalInt group_type, OptionalInt group_list_type, OptionalInt act_type,
    at::OptionalIntArrayRef, OptionalInt output_dtype, OptionalInt, OptionalInt, OptionalInt, OptionalInt) {
  const Call c(x, weight, scale, offset, antiquant_scale, antiquant_offset, per_token_scale, activation_input,
               group_list, split_item, group_type, group_list_type, act_type);
  const DeviceSwitch on(DeviceSwitch::of(x));
  const auto out = results<int64_t>(c, output_dtype);
  const at::TensorList none;
  aclnn_grouped_matmul(x, weight, bias.value_or(none), scale.value_or(none), none,
                       antiquant_scale.value_or(none), antiquant_offset.value_or(none),
                       per_token_scale.value_or(none), group_list, none, none, none, c.split_item,
                       c.group_type, c.group_list_type, c.act_type, at::TensorList(out), none, none);
  return out;
}

std::vector<at::Tensor> npu_grouped_matmul_meta(
    at::TensorList x, at::TensorList weight, OptionalList, OptionalList scale, OptionalList offset,
    OptionalList antiquant_scale, OptionalList antiquant_offset, OptionalList per_token_scale,
    const Optional& group_list, OptionalList activation_input, OptionalList, OptionalList,
    OptionalInt split_item, OptionalInt group_type, OptionalInt group_list_type, OptionalInt act_type,
    at::OptionalIntArrayRef, OptionalInt output_dtype, OptionalInt, OptionalInt, OptionalInt, OptionalInt) {
  const Call c(x, weight, scale, offset, antiquant_scale, antiquant_offset, per_token_scale, activation_input,
               group_list, split_item, group_type, group_list_type, act_type);
  return results<c10::SymInt>(c, output_dtype);
}

}  // namespace torch_npu::ops
