// Products of groups: floating, with int8 or int4 weights, or all of it in int8.
#include "cann_host/opapi/groups.h"
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using List = std::vector<at::Tensor>;

/// What of a parameter belongs to a group: its own tensor of a list, or its row of one tensor for all.
std::optional<at::Tensor> of_group(const List& parameter, int64_t group, int64_t rank) {
  if (parameter.empty()) return std::nullopt;
  if (parameter.size() == 1 && parameter[0].dim() > rank) return parameter[0][group];
  return parameter[parameter.size() == 1 ? 0 : group];
}

at::Tensor activated(const at::Tensor& x, int64_t type) {
  switch (type) {
    case 0:
      return x;
    case 1:
      return x.relu();
    case 2:
      return at::gelu(x, "tanh");
    case 3:
      return at::gelu(x);
    case 4:
      return x * (x * 1.702).sigmoid();
    case 5:
      return at::silu(x);
    default:
      TORCH_CHECK(false, "actType is ", type,
                  "; known: 0 none, 1 relu, 2 gelu (tanh), 3 gelu, 4 fast gelu, 5 silu");
  }
}

/// The products of one call, whatever their groups.
struct Products {
  const List &weight, &bias, &scale, &antiquant_scale, &antiquant_offset;
  int64_t activation;

  /// (weight + offset) * scale; scales are [n], or [k / size of a group, n].
  at::Tensor restored(const at::Tensor& matrix, int64_t group) const {
    auto values = as_int8(matrix).to(at::kFloat);
    const auto scales = of_group(antiquant_scale, group, antiquant_scale.size() == 1 ? 1 : 2);
    TORCH_CHECK(scales.has_value(), "an integer weight beside floating x needs antiquantScale");
    const auto per_element = [&](const at::Tensor& t) {
      const auto wide = t.to(at::kFloat);
      return wide.dim() < 2 ? wide : wide.repeat_interleave(values.size(0) / wide.size(0), 0);
    };
    if (const auto offsets = of_group(antiquant_offset, group, antiquant_offset.size() == 1 ? 1 : 2)) {
      values = values + per_element(*offsets);
    }
    return values * per_element(*scales);
  }

  at::Tensor of_integers(const at::Tensor& a, const at::Tensor& b, int64_t group,
                         const at::Tensor& token_scale, at::ScalarType dtype) const {
    auto product = int_product(as_int8(a), as_int8(b));
    const auto added = of_group(bias, group, 1);
    const bool integer_bias = added.has_value() && added->scalar_type() == at::kInt;
    if (integer_bias) product = product + *added;
    if (dtype == at::kInt) return product;
    auto result = product.to(at::kFloat);
    const auto scales = of_group(scale, group, 1);
    TORCH_CHECK(scales.has_value(), "x in int8 needs scale");
    result = result * plain_scale(*scales);
    if (token_scale.defined()) result = result * token_scale.to(at::kFloat).unsqueeze(-1);
    if (added.has_value() && !integer_bias) result = result + added->to(at::kFloat);
    return result;
  }

  void run(const at::Tensor& a, const at::Tensor& b, int64_t group, const at::Tensor& token_scale,
           const at::Tensor& out) const {
    if (out.numel() == 0) return;
    at::Tensor result;
    if (!a.is_floating_point()) {
      result = of_integers(a, b, group, token_scale, out.scalar_type());
    } else {
      const bool integers = !b.is_floating_point();
      result = integers ? at::matmul(a.to(at::kFloat), restored(b, group)) : at::matmul(exact(a), exact(b));
      if (const auto added = of_group(bias, group, 1)) result = result + *added;
    }
    result = activated(result, activation);
    if (out.scalar_type() == at::kChar) {
      store_rounded(result, at::kChar, out);
    } else {
      out.copy_(result);
    }
  }
};

}  // namespace

void GroupedMatmulV4(const List& x, const List& weight, const List& bias, const List& scale,
                     const List& offset, const List& antiquantScale, const List& antiquantOffset,
                     const List& perTokenScale, const std::optional<at::Tensor>& groupList, const List&,
                     const List&, const List&, int64_t, int64_t groupType, int64_t groupListType,
                     int64_t actType, List& out, List&, List&) {
  TORCH_CHECK(offset.empty(), "offset is not supported by CANN; leave it out");
  const Products products{weight, bias, scale, antiquantScale, antiquantOffset, actType};
  const auto scale_of_tokens = [&](size_t i) {
    return perTokenScale.empty() ? at::Tensor() : perTokenScale[perTokenScale.size() == 1 ? 0 : i];
  };
  // Lists of as many x as weights are groups by themselves.
  if (groupType == -1 || (groupType == 0 && !groupList.has_value() && x.size() == weight.size())) {
    TORCH_CHECK(x.size() == weight.size() && (out.size() == 1 || out.size() == x.size()), x.size(), " x, ",
                weight.size(), " weights, ", out.size(), " results; expected as many, or one result");
    int64_t begin = 0;  // of the rows of one result
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t end = begin + x[i].size(0);
      const auto target = out.size() == x.size() ? out[i] : out[0].slice(0, begin, end);
      products.run(x[i], weight[i], static_cast<int64_t>(i), scale_of_tokens(i), target);
      begin = end;
    }
    return;
  }
  TORCH_CHECK(groupType == 0 || groupType == 2, "groupType is ", groupType,
              "; cann_host has -1, 0 (rows) and 2 (the inner dimension)");
  TORCH_CHECK(groupList.has_value(), "groupType ", groupType, " needs groupList");
  const auto groups = groups_of(*groupList, groupListType);
  if (groupType == 2) {
    for (const auto& g : groups) {
      const auto target = out[0][g.number];
      if (g.begin == g.end) target.zero_();
      products.run(x[0].slice(1, g.begin, g.end), weight[0].slice(0, g.begin, g.end), g.number, {}, target);
    }
    return;
  }
  for (const auto& g : groups) {
    const auto rows = [&](const at::Tensor& t) { return t.defined() ? t.slice(0, g.begin, g.end) : t; };
    const bool one_x = x.size() == 1, one_out = out.size() == 1;
    const auto matrix = of_group(weight, g.number, 2);
    const auto token_scale = scale_of_tokens(g.number);
    products.run(one_x ? rows(x[0]) : x[g.number], *matrix, g.number, one_x ? rows(token_scale) : token_scale,
                 one_out ? rows(out[0]) : out[g.number]);
  }
  if (out.size() == 1) out[0].slice(0, groups.empty() ? 0 : groups.back().end).zero_();  // rows of no group
}

void GroupedMatmul(const List& x, const List& weight, const List& bias, const List& scale, const List& offset,
                   const List& antiquantScale, const List& antiquantOffset,
                   at::OptionalIntArrayRef groupListOptional, int64_t splitItem, List& out) {
  const auto list = groupListOptional.has_value() && !groupListOptional->empty()
                        ? std::optional(at::tensor(*groupListOptional, at::kLong))
                        : std::nullopt;
  List none;
  GroupedMatmulV4(x, weight, bias, scale, offset, antiquantScale, antiquantOffset, {}, list, {}, {}, {},
                  splitItem, list.has_value() ? 0 : -1, 0, 0, out, none, none);
}

}  // namespace cann_host::host
