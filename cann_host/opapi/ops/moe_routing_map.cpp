// Tokens to experts and back by a map [tokens, experts] that marks who goes where. Rows of experts stand one
// after the other; dropAndPad: as many for each expert, those of its tokens first, else one for each mark.
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// The map with one row an expert.
at::Tensor by_expert(const at::Tensor& map) { return map.to(at::kBool).t().contiguous(); }

/// The map where it says which rows there are.
at::Tensor needed(const Optional& map) {
  TORCH_CHECK(map.has_value(), "without padding routingMap is needed");
  return by_expert(*map);
}

/// Of numbers [tokens, experts] the one of each row; `tokens`: the token of each row.
at::Tensor of_rows(const at::Tensor& numbers, const Optional& map, const at::Tensor& tokens, bool padded) {
  const auto experts = numbers.to(at::kFloat).t();
  if (padded) return experts.gather(1, tokens.view({experts.size(0), -1})).flatten();
  return experts.masked_select(needed(map));
}

/// The inverse: numbers of rows as [tokens, experts], zeros elsewhere.
at::Tensor as_map(const at::Tensor& numbers, const Optional& map, const at::Tensor& tokens, bool padded,
                  at::IntArrayRef sizes) {
  const auto experts = at::zeros({sizes[1], sizes[0]});
  if (padded) {
    const auto shape = std::array<int64_t, 2>{sizes[1], numbers.numel() / std::max<int64_t>(1, sizes[1])};
    experts.scatter_(1, tokens.view(shape), numbers.to(at::kFloat).view(shape));
  } else {
    experts.masked_scatter_(needed(map), numbers.to(at::kFloat));
  }
  return experts.t();
}

int64_t rows_of_a_token(int64_t rows, int64_t tokens) { return tokens == 0 ? 0 : rows / tokens; }

}  // namespace

void MoeTokenPermuteWithRoutingMap(const at::Tensor& tokens, const at::Tensor& routingMap,
                                   const Optional& probsOptional, int64_t, bool dropAndPad,
                                   at::Tensor& permuteTokensOut, const Optional& permuteProbsOutOptional,
                                   at::Tensor& sortedIndicesOut) {
  const auto map = by_expert(routingMap);
  const int64_t rows = permuteTokensOut.size(0), experts = map.size(0);
  at::Tensor source;  // the token of each row
  if (dropAndPad) {
    const int64_t capacity = experts == 0 ? 0 : rows / experts;
    TORCH_CHECK(capacity <= tokens.size(0), "an expert has place for ", capacity, " tokens; there are ",
                tokens.size(0));
    const auto order = map.to(at::kChar).argsort(/*stable=*/true, 1, /*descending=*/true);
    source = order.slice(1, 0, capacity).flatten();
    sortedIndicesOut.copy_(source);
  } else {
    source = map.nonzero().select(1, 1);
    TORCH_CHECK(source.numel() == rows, "routingMap marks ", source.numel(),
                " copies of tokens; numOutTokens gives ", rows, " rows");
    sortedIndicesOut.copy_(source.argsort(/*stable=*/true, 0, /*descending=*/false));
  }
  permuteTokensOut.copy_(tokens.index_select(0, source));
  if (probsOptional.has_value() && permuteProbsOutOptional.has_value()) {
    permuteProbsOutOptional->copy_(of_rows(*probsOptional, routingMap, source, dropAndPad));
  }
}

void MoeTokenPermuteWithRoutingMapGrad(const at::Tensor& permutedTokenOutputGrad,
                                       const Optional& permutedProbsOutputGradOptional,
                                       const at::Tensor& sortedIndices, const at::Tensor& routingMap,
                                       int64_t expertsNum, int64_t tokensNum, bool dropAndPad,
                                       at::Tensor& tokensGradOut, const Optional& probsGradOutOptional) {
  const auto gradient = permutedTokenOutputGrad.to(at::kFloat), places = sortedIndices.to(at::kLong);
  const int64_t width = gradient.size(1);
  if (dropAndPad) {
    tokensGradOut.copy_(at::zeros({tokensNum, width}).index_add_(0, places, gradient));
  } else {
    const auto copies = std::array<int64_t, 3>{tokensNum, rows_of_a_token(places.numel(), tokensNum), width};
    tokensGradOut.copy_(gradient.index_select(0, places).view(copies).sum(1));
  }
  if (permutedProbsOutputGradOptional.has_value() && probsGradOutOptional.has_value()) {
    probsGradOutOptional->copy_(as_map(*permutedProbsOutputGradOptional, routingMap, places, dropAndPad,
                                       std::array<int64_t, 2>{tokensNum, expertsNum}));
  }
}

void MoeTokenUnpermuteWithRoutingMap(const at::Tensor& permutedTokens, const at::Tensor& sortedIndices,
                                     const Optional& routingMapOptional, const Optional& probsOptional,
                                     bool paddedMode, at::OptionalIntArrayRef, at::Tensor& unpermutedTokens,
                                     at::Tensor& outIndex, at::Tensor& permuteTokenId,
                                     const Optional& permuteProbs) {
  const int64_t tokens = unpermutedTokens.size(0), width = unpermutedTokens.size(1);
  const auto places = sortedIndices.to(at::kLong);
  auto rows = permutedTokens.to(at::kFloat);
  if (probsOptional.has_value()) {
    const auto weights = of_rows(*probsOptional, routingMapOptional, places, paddedMode);
    rows = rows * weights.unsqueeze(1);
    if (permuteProbs.has_value()) permuteProbs->copy_(weights);
  }
  if (paddedMode) {
    const auto [token, order] = places.sort(/*stable=*/true, 0, /*descending=*/false);
    permuteTokenId.copy_(token);
    outIndex.copy_(order);
    unpermutedTokens.copy_(at::zeros({tokens, width}).index_add_(0, places, rows));
    return;
  }
  const int64_t copies = rows_of_a_token(places.numel(), tokens);
  permuteTokenId.copy_(at::arange(places.numel()).floor_divide(std::max<int64_t>(1, copies)));
  outIndex.copy_(places);
  unpermutedTokens.copy_(rows.index_select(0, places).view({tokens, copies, width}).sum(1));
}

void MoeTokenUnpermuteWithRoutingMapGrad(const at::Tensor& unpermutedTokensGrad, const at::Tensor& outIndex,
                                         const at::Tensor& permuteTokenId, const Optional& routingMapOptional,
                                         const Optional& permutedTokensOptional,
                                         const Optional& probsOptional, bool paddedMode,
                                         at::OptionalIntArrayRef, at::Tensor& permutedTokensGradOut,
                                         const Optional& probsGradOut) {
  const int64_t tokens = unpermutedTokensGrad.size(0), rows = outIndex.numel();
  // Without padding the copies of a token stand beside each other, whatever permuteTokenId says.
  const auto token = paddedMode
                         ? permuteTokenId.to(at::kLong)
                         : at::arange(rows).floor_divide(std::max<int64_t>(1, rows_of_a_token(rows, tokens)));
  const auto source = at::zeros({rows}, at::kLong).index_copy_(0, outIndex.to(at::kLong), token);
  auto gradient = unpermutedTokensGrad.to(at::kFloat).index_select(0, source);
  if (probsOptional.has_value()) {
    if (probsGradOut.has_value()) {
      TORCH_CHECK(permutedTokensOptional.has_value(), "the gradient of probs needs permutedTokens");
      const auto products = (gradient * permutedTokensOptional->to(at::kFloat)).sum(1);
      probsGradOut->copy_(as_map(products, routingMapOptional, source, paddedMode, probsOptional->sizes()));
    }
    gradient = gradient * of_rows(*probsOptional, routingMapOptional, source, paddedMode).unsqueeze(1);
  }
  permutedTokensGradOut.copy_(gradient);
}

}  // namespace cann_host::host
