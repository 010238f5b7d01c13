// Mixture of experts: gating, and tokens to their experts and back.
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// The k largest of each row, the first of equal ones first.
std::pair<at::Tensor, at::Tensor> largest(const at::Tensor& values, int64_t k) {
  const auto [sorted, order] = values.sort(/*stable=*/true, -1, /*descending=*/true);
  return {sorted.slice(-1, 0, k), order.slice(-1, 0, k)};
}

/// Scores of the `kept` best of `count` groups of experts, -inf in the others. mode 0: a group counts by its
/// best expert, 1: by its two best.
at::Tensor within_groups(const at::Tensor& scores, int64_t count, int64_t kept, int64_t mode) {
  if (count <= 1) return scores;
  const auto groups = scores.unflatten(-1, {count, -1});
  const auto strength = mode == 0 ? groups.amax(-1) : largest(groups, 2).first.sum(-1);
  const auto hidden = at::ones_like(strength, at::kBool).scatter_(-1, largest(strength, kept).second, false);
  return groups.masked_fill(hidden.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(-2);
}

/// Where each element of a permutation stands.
at::Tensor inverse_of(const at::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.numel(), order.options()));
}

/// The order that sorts experts, tokens of one expert in their own order.
at::Tensor by_expert(const at::Tensor& experts) {
  return experts.flatten().argsort(/*stable=*/true, 0, /*descending=*/false);
}

// ---- Routing: which copy of a token (token * copies + choice) each row of the result holds, -1 for none.

/// The first copies of an order, as many as there are places.
at::Tensor leading(const at::Tensor& order, int64_t limit, int64_t places) {
  const auto kept = order.slice(0, 0, std::min(limit, places));
  return at::constant_pad_nd(kept, {0, places - kept.numel()}, -1);
}

/// `capacity` places for each expert; what does not fit is dropped.
at::Tensor by_capacity(const at::Tensor& order, const at::Tensor& experts, const at::Tensor& counts,
                       int64_t capacity) {
  const auto owner = experts.index_select(0, order).to(at::kLong);
  const auto begin = counts.cumsum(0) - counts;
  const auto rank = at::arange(order.numel()) - begin.index_select(0, owner);
  const auto fits = rank.lt(capacity);
  const auto source = at::full({counts.numel() * capacity}, -1, at::kLong);
  source.index_put_({(owner * capacity + rank).masked_select(fits)}, order.masked_select(fits));
  return source;
}

/// The row of each copy, -1 for none.
void write_places(const at::Tensor& source, const at::Tensor& out) {
  out.fill_(-1);
  const auto held = source.ge(0);
  out.index_put_({source.masked_select(held)},
                 at::arange(source.numel()).masked_select(held).to(out.scalar_type()));
}

/// expertTokensNumType 0: where experts end; 1: how many rows each has; 2: [expert, rows] of those with some.
void write_counts(const at::Tensor& counts, int64_t first, int64_t type, const at::Tensor& out) {
  if (type != 2) {
    out.copy_(type == 0 ? counts.cumsum(0) : counts);
    return;
  }
  const auto used = counts.nonzero().flatten();
  out.zero_();
  out.slice(0, 0, used.numel()).copy_(at::stack({used + first, counts.index_select(0, used)}, 1));
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

void MoeGatingTopKSoftmaxV2(const at::Tensor& x, const Optional& finishedOptional, int64_t k, int64_t renorm,
                            bool outputSoftmaxResultFlag, at::Tensor& yOut, at::Tensor& expertIdxOut,
                            at::Tensor& softmaxOut) {
  const auto wide = x.to(at::kFloat);
  const auto scores = renorm == 0 ? wide.softmax(-1) : wide;
  auto [weights, chosen] = largest(scores, k);
  if (renorm != 0) weights = weights.softmax(-1);
  if (finishedOptional.has_value()) chosen = chosen.masked_fill(finishedOptional->unsqueeze(-1), x.size(-1));
  yOut.copy_(weights);
  expertIdxOut.copy_(chosen);
  if (outputSoftmaxResultFlag && renorm == 0) softmaxOut.copy_(scores);
}

void MoeGatingTopK(const at::Tensor& x, const Optional& biasOptional, int64_t k, int64_t kGroup,
                   int64_t groupCount, int64_t groupSelectMode, int64_t renorm, int64_t normType,
                   bool outFlag, double routedScalingFactor, double eps, at::Tensor& yOut,
                   at::Tensor& expertIdxOut, at::Tensor& out) {
  MoeGatingTopKV2(x, biasOptional, std::nullopt, std::nullopt, k, kGroup, groupCount, groupSelectMode, renorm,
                  normType, outFlag, routedScalingFactor, eps, yOut, expertIdxOut, out);
}

void MoeGatingTopKV2(const at::Tensor& x, const Optional& biasOptional, const Optional& inputIdsOptional,
                     const Optional& tid2eidOptional, int64_t k, int64_t kGroup, int64_t groupCount,
                     int64_t groupSelectMode, int64_t renorm, int64_t normType, bool outFlag,
                     double routedScalingFactor, double eps, at::Tensor& yOut, at::Tensor& expertIdxOut,
                     at::Tensor& out) {
  TORCH_CHECK(inputIdsOptional.has_value() == tid2eidOptional.has_value(),
              "inputIds and tid2eid belong together");
  const auto scores = normType == 0 ? x.to(at::kFloat).softmax(-1) : x.to(at::kFloat).sigmoid();
  at::Tensor chosen;
  if (tid2eidOptional.has_value()) {
    chosen = tid2eidOptional->index_select(0, inputIdsOptional->to(at::kLong)).to(at::kLong);
  } else {
    const auto ranked = biasOptional.has_value() ? scores + *biasOptional : scores;
    chosen = largest(within_groups(ranked, groupCount, kGroup, groupSelectMode), k).second;
  }
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

void MoeInitRoutingV3(const at::Tensor& x, const at::Tensor& expertIdx, const Optional& scaleOptional,
                      const Optional& offsetOptional, int64_t activeNum, int64_t expertCapacity,
                      int64_t expertNum, int64_t dropPadMode, int64_t expertTokensNumType,
                      bool expertTokensNumFlag, int64_t quantMode, at::OptionalIntArrayRef activeExpertRange,
                      int64_t rowIdxType, at::Tensor& expandedXOut, at::Tensor& expandedRowIdxOut,
                      at::Tensor& expertTokensOut, at::Tensor& expandedScaleOut) {
  TORCH_CHECK(-1 <= quantMode && quantMode <= 1, "quantMode is ", quantMode,
              "; cann_host has -1 (none), 0 (static) and 1 (dynamic)");
  const bool ranged = activeExpertRange.has_value() && activeExpertRange->size() == 2;
  const int64_t first = ranged ? (*activeExpertRange)[0] : 0,
                last = ranged ? (*activeExpertRange)[1] : expertNum;
  const auto experts = expertIdx.flatten();
  const auto active = experts.ge(first).logical_and(experts.lt(last));
  // Copies of experts of others come behind, first those of later ones.
  const auto order = by_expert(experts.masked_fill(experts.lt(first), std::numeric_limits<int32_t>::max()));
  const int64_t count = active.sum().item<int64_t>();
  const auto chosen = order.slice(0, 0, count);
  const auto counts = at::bincount(experts.masked_select(active) - first, {}, last - first);
  const auto source = dropPadMode == 0
                          ? leading(chosen, activeNum > 0 ? activeNum : count, expandedXOut.size(0))
                          : by_capacity(chosen, experts, counts, expertCapacity);
  const auto held = source.ge(0);
  const auto tokens = at::div(source.clamp_min(0), expertIdx.size(1), "floor");
  const int64_t width = x.size(1);
  auto rows = x.index_select(0, tokens).masked_fill(held.logical_not().unsqueeze(1), 0);
  const auto out = expandedXOut.view({-1, width});
  if (quantMode == -1) {
    out.copy_(rows);
    if (scaleOptional.has_value()) {
      expandedScaleOut.copy_(scaleOptional->index_select(0, tokens).masked_fill(held.logical_not(), 0));
    } else {
      expandedScaleOut.zero_();
    }
  } else if (quantMode == 0) {
    TORCH_CHECK(scaleOptional.has_value() && offsetOptional.has_value(),
                "quantMode 0 needs scale and offset");
    const auto values = rows.to(at::kFloat) * *scaleOptional + *offsetOptional;
    store_rounded(values.masked_fill(held.logical_not().unsqueeze(1), 0), at::kChar, out);
    expandedScaleOut.zero_();
  } else {
    rows = rows.to(at::kFloat);
    if (scaleOptional.has_value() && rows.numel() > 0) {
      const auto own = experts.index_select(0, source.clamp_min(0)).sub(first).clamp_(0, last - first - 1);
      rows = rows * (scaleOptional->size(0) == 1 ? *scaleOptional : scaleOptional->index_select(0, own));
    }
    quantize_rows(rows, out, expandedScaleOut);
  }
  if (dropPadMode == 0 && rowIdxType == 1) {
    expandedRowIdxOut.copy_(order);
  } else {
    write_places(source, expandedRowIdxOut);
  }
  if (expertTokensNumFlag) write_counts(counts, first, expertTokensNumType, expertTokensOut);
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

}  // namespace cann_host::host
