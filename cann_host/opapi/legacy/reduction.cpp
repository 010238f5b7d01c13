// Reductions, sorting and moments.
#include <cmath>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Sizes = std::vector<int64_t>;
using Reduction = at::Tensor (*)(const at::Tensor&, at::IntArrayRef dims, bool keep);

/// Dimensions come in an input; none of them means all.
template <Reduction f>
void reduce(const Arguments& a) {
  const auto x = a.wide(0);
  Sizes dims = a.list(1);
  if (dims.empty()) {
    for (int64_t i = 0; i < x.dim(); ++i) dims.push_back(i);
  }
  a.set(0, dims.empty() ? x : f(x, dims, a.flag("keep_dims")));
}

at::Tensor sum(const at::Tensor& x, at::IntArrayRef dims, bool keep) { return x.sum(dims, keep); }
at::Tensor mean(const at::Tensor& x, at::IntArrayRef dims, bool keep) { return x.mean(dims, keep); }
at::Tensor largest(const at::Tensor& x, at::IntArrayRef dims, bool keep) { return x.amax(dims, keep); }
at::Tensor smallest(const at::Tensor& x, at::IntArrayRef dims, bool keep) { return x.amin(dims, keep); }
at::Tensor all(const at::Tensor& x, at::IntArrayRef dims, bool keep) { return x.all(dims, keep); }
at::Tensor any(const at::Tensor& x, at::IntArrayRef dims, bool keep) { return x.any(dims, keep); }
at::Tensor log_sum_exp(const at::Tensor& x, at::IntArrayRef dims, bool keep) {
  return x.logsumexp(dims, keep);
}

at::Tensor product(const at::Tensor& x, at::IntArrayRef dims, bool keep) {
  Sizes descending = dims.vec();
  for (int64_t& dim : descending) dim = at::maybe_wrap_dim(dim, x.dim());
  std::sort(descending.rbegin(), descending.rend());
  auto result = x;
  for (int64_t dim : descending) result = result.prod(dim, keep);
  return result;
}

/// Outputs: indices, values.
template <bool is_max>
void extreme_with_index(const Arguments& a) {
  const auto dim = a.attribute<int64_t>("dimension");
  const bool keep = a.flag("keep_dims");
  const auto [values, indices] = is_max ? a[0].max(dim, keep) : a[0].min(dim, keep);
  a.set(0, indices);
  a.set(1, values);
}

void sort(const Arguments& a) {
  const auto [values, indices] = a[0].sort(a.attribute<int64_t>("axis", -1), a.flag("descending"));
  a.set(0, values);
  a.set(1, indices);
}

void sort_values(const Arguments& a) {
  a.set(0, std::get<0>(a[0].sort(a.attribute<int64_t>("axis", -1), a.flag("descending"))));
}

/// The exponent of a distance; -1 stands for infinity.
float exponent(const Arguments& a) {
  const auto p = a.attribute<float>("p", 2);
  return p < 0 ? INFINITY : p;
}

/// Inputs: both sets of rows, broadcast against each other.
void distance(const Arguments& a) { a.set(0, (a.wide(0) - a.wide(1)).norm(exponent(a), -1)); }

/// Inputs: gradient (broadcast along the rows), both sets of rows, distances.
void distance_gradient(const Arguments& a) {
  const float p = exponent(a);
  const auto difference = a.wide(1) - a.wide(2), size = difference.abs();
  auto length = a.wide(3);
  if (length.dim() < size.dim()) length = length.unsqueeze(-1);
  auto slope = difference.sign();
  if (p == 0) {
    slope = at::zeros_like(slope);
  } else if (std::isinf(p)) {
    slope = slope * (size == length);
  } else if (p != 1) {
    slope = at::where(length == 0, at::zeros_like(slope), slope * (size / length).pow(p - 1));
  }
  a.set(0, (a.wide(0) * slope).sum(-2));
}

/// Inputs: tensor, dimension. Outputs: distinct slices, where each was first, how often, and which of them
/// each slice is.
void unique_slices(const Arguments& a) {
  const auto x = a[0];
  const int64_t dim = a.list(1).at(0);
  const auto [values, inverse, counts] = at::unique_dim(x, dim, true, true, true);
  const int64_t n = x.size(dim);
  const auto first = at::full({values.size(dim)}, n, at::kLong)
                         .scatter_reduce(0, inverse, at::arange(n, at::kLong), "amin", true);
  a.set_found(0, values);
  a.set_found(1, first);
  a.set_found(2, counts);
  a.set_found(3, inverse);
}

/// The exponent of a norm; the ends of int32 stand for infinities.
float norm_exponent(const Arguments& a) {
  const auto p = a.attribute<float>("p", 2);
  return std::abs(p) >= 2147483647.0F ? std::copysign(INFINITY, p) : p;
}

/// Sums of powers, or what takes their place.
void norm_reduce(const Arguments& a) {
  const float p = norm_exponent(a);
  const auto axes = a.attribute<std::vector<int64_t>>("axes", {});
  const bool keep = a.flag("keepdim");
  const auto size = a.wide(0).abs();
  if (std::isinf(p)) return a.set(0, p > 0 ? size.amax(axes, keep) : size.amin(axes, keep));
  a.set(0, (p == 0 ? (size != 0).to(at::kFloat) : size.pow(p)).sum(axes, keep));
}

void norm_update(const Arguments& a) {
  const float p = norm_exponent(a);
  a.set(0, p == 0 || std::isinf(p) ? a.wide(0) : a.wide(0).pow(1 / p));
}

/// Outputs: y, mean, 1 / standard deviation, over the dimensions from begin_norm_axis on.
void layer_norm(const Arguments& a) {
  const auto x = a.wide(0);
  const auto axis = at::maybe_wrap_dim(a.attribute<int64_t>("begin_norm_axis", 0), x.dim());
  const auto [y, average, scale] = at::native_layer_norm(x, x.sizes().slice(axis), a.optional(1),
                                                         a.optional(2), a.attribute<float>("epsilon"));
  a.set(0, y);
  a.set(1, average);
  a.set(2, scale);
}

}  // namespace

Table reduction_operators() {
  return {
      {"ReduceSum", reduce<sum>},
      {"ReduceMean", reduce<mean>},
      {"ReduceMax", reduce<largest>},
      {"ReduceMin", reduce<smallest>},
      {"ReduceProd", reduce<product>},
      {"ReduceAll", reduce<all>},
      {"ReduceAny", reduce<any>},
      {"ReduceLogSumExp", reduce<log_sum_exp>},
      {"ArgMaxWithValue", extreme_with_index<true>},
      {"ArgMinWithValue", extreme_with_index<false>},
      {"ArgMaxV2", [](const Arguments& a) { a.set(0, a[0].argmax(a.list(1).at(0), a.flag("keep_dims"))); }},
      {"ArgMin", [](const Arguments& a) { a.set(0, a[0].argmin(a.list(1).at(0), a.flag("keep_dims"))); }},
      {"Cdist", distance},
      {"CdistGrad", distance_gradient},
      {"Sort", sort},
      {"SortV2", sort_values},
      {"LpNormReduceV2", norm_reduce},
      {"LpNormUpdateV2", norm_update},
      {"LayerNormV3", layer_norm},
      {"NonZero",
       [](const Arguments& a) {
         const auto found = a[0].nonzero();
         a.set_found(0, a.flag("transpose") ? found.t() : found);
       }},
      {"UniqueWithCountsExt2", unique_slices},
  };
}

}  // namespace cann_host::legacy
