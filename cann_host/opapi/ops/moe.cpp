// Mixture of experts.
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// The k largest of each row, the first of equal ones first.
std::pair<at::Tensor, at::Tensor> largest(const at::Tensor& values, int64_t k) {
  const auto [sorted, order] = values.sort(/*stable=*/true, -1, /*descending=*/true);
  return {sorted.slice(-1, 0, k), order.slice(-1, 0, k)};
}

/// Where each element of a permutation stands.
at::Tensor inverse_of(const at::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.numel(), order.options()));
}

/// The order that sorts experts, tokens of one expert in their own order.
at::Tensor by_expert(const at::Tensor& experts) {
  return experts.flatten().argsort(/*stable=*/true, 0, /*descending=*/false);
}

}  // namespace

void MoeGatingTopKSoftmax(const at::Tensor& x, const Optional& finishedOptional, int64_t k, at::Tensor& yOut,
                          at::Tensor& expertIdxOut, at::Tensor& rowIdxOut) {
  const int64_t experts = x.size(-1);
  auto [weights, chosen] = largest(x.to(at::kFloat).softmax(-1), k);
  if (finishedOptional.has_value()) chosen = chosen.masked_fill(finishedOptional->unsqueeze(-1), experts);
  yOut.copy_(weights);
  expertIdxOut.copy_(chosen);
  const int64_t rows = x.numel() / std::max<int64_t>(1, experts);
  rowIdxOut.copy_(at::arange(rows * k, at::kLong).view({k, rows}).t().reshape(rowIdxOut.sizes()));
}

void MoeGatingTopK(const at::Tensor& x, const Optional& biasOptional, int64_t k, int64_t kGroup,
                   int64_t groupCount, int64_t groupSelectMode, int64_t renorm, int64_t normType,
                   bool outFlag, double routedScalingFactor, double eps, at::Tensor& yOut,
                   at::Tensor& expertIdxOut, at::Tensor& out) {
  const auto scores = normType == 0 ? x.to(at::kFloat).softmax(-1) : x.to(at::kFloat).sigmoid();
  auto ranked = biasOptional.has_value() ? scores + *biasOptional : scores;
  if (groupCount > 1) {
    const auto groups = ranked.unflatten(-1, {groupCount, -1});
    const auto strength = groupSelectMode == 0 ? groups.amax(-1) : largest(groups, 2).first.sum(-1);
    const auto hidden =
        at::ones_like(strength, at::kBool).scatter_(-1, largest(strength, kGroup).second, false);
    ranked = groups.masked_fill(hidden.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(-2);
  }
  const auto chosen = largest(ranked, k).second;
  auto weights = scores.gather(-1, chosen);
  if (normType == 1 || renorm == 1) weights = weights / (weights.sum(-1, true) + eps);
  yOut.copy_(weights * routedScalingFactor);
  expertIdxOut.copy_(chosen);
  if (outFlag) out.copy_(scores);
}

void MoeComputeExpertTokens(const at::Tensor& sortedExperts, int64_t numExperts, at::Tensor& out) {
  const auto experts = at::arange(numExperts, sortedExperts.options());
  out.copy_(at::searchsorted(sortedExperts.contiguous(), experts, /*out_int32=*/true, /*right=*/true));
}

void MoeTokenPermute(const at::Tensor& tokens, const at::Tensor& indices, int64_t numOutTokens,
                     bool paddedMode, at::Tensor& permuteTokensOut, at::Tensor& sortedIndicesOut) {
  TORCH_CHECK(!paddedMode, "paddedMode is not in cann_host");
  const int64_t copies = indices.dim() == 1 ? 1 : indices.size(1);
  const auto order = by_expert(indices);
  const auto kept = order.slice(0, 0, numOutTokens);
  permuteTokensOut.copy_(tokens.index_select(0, at::div(kept, copies, "floor")));
  sortedIndicesOut.copy_(inverse_of(order));
}

void MoeTokenPermuteGrad(const at::Tensor& permutedOutputGrad, const at::Tensor& sortedIndices,
                         int64_t numTopk, bool, at::Tensor& out) {
  const auto places = sortedIndices.to(at::kLong);
  const int64_t rows = permutedOutputGrad.size(0);
  // Tokens that were cut off have no gradient.
  const auto there = places.lt(rows).to(at::kFloat).unsqueeze(1);
  const auto gathered =
      permutedOutputGrad.to(at::kFloat).index_select(0, places.clamp_max(std::max<int64_t>(0, rows - 1))) *
      there;
  out.copy_(gathered.view({-1, numTopk, permutedOutputGrad.size(1)}).sum(1));
}

void MoeTokenUnpermute(const at::Tensor& permutedTokens, const at::Tensor& sortedIndices,
                       const Optional& probs, bool paddedMode, at::OptionalIntArrayRef, at::Tensor& out) {
  TORCH_CHECK(!paddedMode, "paddedMode is not in cann_host");
  const int64_t copies = probs.has_value() && probs->dim() > 1 ? probs->size(1) : 1;
  auto rows = permutedTokens.to(at::kFloat).index_select(0, sortedIndices.to(at::kLong));
  rows = rows.view({-1, copies, permutedTokens.size(1)});
  if (probs.has_value()) rows = rows * probs->to(at::kFloat).view({-1, copies, 1});
  out.copy_(rows.sum(1));
}

void MoeTokenUnpermuteGrad(const at::Tensor& permutedTokens, const at::Tensor& unpermutedOutputGrad,
                           const at::Tensor& sortedIndices, const Optional& probs, bool,
                           at::OptionalIntArrayRef, at::Tensor& permutedTokensGradOut,
                           const Optional& probsGradOut) {
  const int64_t copies = probs.has_value() && probs->dim() > 1 ? probs->size(1) : 1;
  const auto places = sortedIndices.to(at::kLong);
  const auto gradient = unpermutedOutputGrad.to(at::kFloat).unsqueeze(1).expand({-1, copies, -1});
  auto of_rows = gradient;
  if (probs.has_value()) {
    of_rows = gradient * probs->to(at::kFloat).view({-1, copies, 1});
    if (probsGradOut.has_value()) {
      const auto rows = permutedTokens.to(at::kFloat).index_select(0, places).view(gradient.sizes());
      probsGradOut->copy_((rows * gradient).sum(-1).view(probsGradOut->sizes()));
    }
  }
  const auto result = at::zeros(permutedTokens.sizes(), of_rows.options());
  result.index_copy_(0, places, of_rows.reshape({places.numel(), -1}));
  permutedTokensGradOut.copy_(result);
}

void MoeInitRoutingV3(const at::Tensor& x, const at::Tensor& expertIdx, const Optional&, const Optional&,
                      int64_t activeNum, int64_t, int64_t expertNum, int64_t dropPadMode,
                      int64_t expertTokensNumType, bool expertTokensNumFlag, int64_t quantMode,
                      at::OptionalIntArrayRef activeExpertRange, int64_t rowIdxType, at::Tensor& expandedXOut,
                      at::Tensor& expandedRowIdxOut, at::Tensor& expertTokensOut,
                      at::Tensor& expandedScaleOut) {
  TORCH_CHECK(dropPadMode == 0 && quantMode == -1, "dropPadMode ", dropPadMode, " and quantMode ", quantMode,
              " are not in cann_host; it has 0 and -1");
  const int64_t copies = expertIdx.size(1);
  const bool ranged = activeExpertRange.has_value() && activeExpertRange->size() == 2;
  const int64_t first = ranged ? (*activeExpertRange)[0] : 0,
                last = ranged ? (*activeExpertRange)[1] : expertNum;
  const auto experts = expertIdx.flatten();
  const auto active = experts.ge(first).logical_and(experts.lt(last));
  // Rows of experts of others come behind.
  const auto order = experts.masked_fill(active.logical_not(), expertNum).argsort(/*stable=*/true, 0, false);
  const int64_t rows = std::min(active.sum().item<int64_t>(), activeNum > 0 ? activeNum : experts.numel());
  expandedXOut.zero_();
  const auto kept = order.slice(0, 0, std::min(rows, expandedXOut.size(0)));
  expandedXOut.slice(0, 0, kept.numel()).copy_(x.index_select(0, at::div(kept, copies, "floor")));
  const auto numbers = at::arange(order.numel(), order.options());
  const auto valid = numbers.lt(rows);
  const auto placed = rowIdxType == 1 ? order : inverse_of(order);
  const auto known = rowIdxType == 1 ? valid : inverse_of(order).lt(rows);
  expandedRowIdxOut.copy_(placed.masked_fill(known.logical_not(), -1));
  expandedScaleOut.zero_();
  if (!expertTokensNumFlag) return;
  auto counts = at::bincount(experts.masked_select(active) - first, {}, last - first);
  expertTokensOut.copy_(expertTokensNumType == 0 ? counts.cumsum(0) : counts);
}

void MoeFinalizeRoutingV2(const at::Tensor& expandedX, const at::Tensor& expandedRowIdx, const Optional& x1,
                          const Optional& x2, const Optional& bias, const Optional& scales,
                          const Optional& expertIdx, int64_t dropPadMode, at::Tensor& out) {
  const int64_t rows = out.size(0), copies = expandedRowIdx.numel() / std::max<int64_t>(1, rows);
  const int64_t width = out.size(1);
  // Modes 0 and 1: all first copies, then all second ones; 2 and 3: copies of a row beside each other.
  auto places = expandedRowIdx.to(at::kLong);
  places = dropPadMode < 2 ? places.view({copies, rows}).t() : places.view({rows, copies});
  const auto source = expandedX.to(at::kFloat).reshape({-1, width});
  auto values = source.index_select(0, places.clamp_min(0).reshape({-1})).view({rows, copies, width});
  values = values.masked_fill(places.lt(0).unsqueeze(-1), 0);
  if (bias.has_value()) {
    TORCH_CHECK(expertIdx.has_value(), "bias needs expertIdx, the expert of each row");
    values =
        values + bias->to(at::kFloat).index_select(0, expertIdx->flatten().to(at::kLong)).view_as(values);
  }
  if (scales.has_value()) values = values * scales->to(at::kFloat).view({rows, copies, 1});
  auto sum = values.sum(1);
  if (x1.has_value()) sum = sum + *x1;
  if (x2.has_value()) sum = sum + *x2;
  out.copy_(sum);
}

void GroupedMatmulV4(const std::vector<at::Tensor>& x, const std::vector<at::Tensor>& weight,
                     const std::vector<at::Tensor>& bias, const std::vector<at::Tensor>& scale,
                     const std::vector<at::Tensor>& offset, const std::vector<at::Tensor>& antiquantScale,
                     const std::vector<at::Tensor>& antiquantOffset,
                     const std::vector<at::Tensor>& perTokenScale, const Optional& groupList,
                     const std::vector<at::Tensor>&, const std::vector<at::Tensor>&,
                     const std::vector<at::Tensor>&, int64_t, int64_t groupType, int64_t groupListType,
                     int64_t actType, std::vector<at::Tensor>& out, std::vector<at::Tensor>&,
                     std::vector<at::Tensor>&) {
  TORCH_CHECK(scale.empty() && offset.empty() && antiquantScale.empty() && antiquantOffset.empty() &&
                  perTokenScale.empty(),
              "quantized grouped products are not in cann_host");
  TORCH_CHECK(actType == 0, "actType is ", actType, "; cann_host has 0 (none)");
  const auto product = [&](const at::Tensor& a, const at::Tensor& b, size_t group, const at::Tensor& target) {
    if (target.numel() == 0) return;
    auto result = at::matmul(a, b);
    if (!bias.empty()) {
      result = result +
               (bias.size() == 1 && bias[0].dim() == 2 ? bias[0][static_cast<int64_t>(group)] : bias[group]);
    }
    target.copy_(result);
  };
  if (groupType == -1) {
    for (size_t i = 0; i < x.size(); ++i) product(x[i], weight[i], i, out[i]);
    return;
  }
  TORCH_CHECK(groupType == 0 || groupType == 2, "groupType is ", groupType,
              "; cann_host has -1, 0 (rows) and 2 (columns)");
  TORCH_CHECK(groupList.has_value(), "groupType ", groupType, " needs groupList");
  const auto ends_tensor = groupListType == 1 ? groupList->cumsum(0) : *groupList;
  const auto ends = ends_tensor.contiguous();
  const int64_t* end = ends.const_data_ptr<int64_t>();
  const bool one_weight = weight.size() == 1;
  int64_t begin = 0;
  for (int64_t g = 0; g < ends.numel(); begin = end[g++]) {
    if (groupType == 2) {  // a product for each group of the inner dimension
      product(x[0].slice(1, begin, end[g]), weight[0].slice(0, begin, end[g]), g, out[0][g]);
      continue;
    }
    const auto rows = x.size() == 1 ? x[0].slice(0, begin, end[g]) : x[g];
    const auto matrix = one_weight && weight[0].dim() == 3 ? weight[0][g] : weight[g];
    product(rows, matrix, g, out.size() == 1 ? out[0].slice(0, begin, end[g]) : out[g]);
  }
  if (groupType == 0 && out.size() == 1) out[0].slice(0, begin).zero_();  // rows of no group
}

}  // namespace cann_host::host
