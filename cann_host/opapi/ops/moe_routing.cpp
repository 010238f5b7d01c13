// Mixture of experts: rows of several ranks by expert, older forms of routing, the gradient of the gate.
#include "opapi/host_functions.h"

namespace cann_host::host {

using Optional = std::optional<at::Tensor>;

void MoeReRouting(const at::Tensor& tokens, const at::Tensor& expertTokenNumPerRank,
                  const Optional& perTokenScalesOptional, int64_t expertTokenNumType, int64_t idxType,
                  at::Tensor& permuteTokens, at::Tensor& permutePerTokenScales, at::Tensor& permuteTokenIdx,
                  at::Tensor& expertTokenNum) {
  const auto counts = expertTokenNumPerRank.to(at::kLong);  // of the blocks [ranks, experts]
  const auto by_rank = counts.flatten(), by_expert = counts.t().flatten();
  const auto came_from = (by_rank.cumsum(0) - by_rank).view_as(counts).t().flatten();
  const auto go_to = by_expert.cumsum(0) - by_expert;
  const int64_t rows = tokens.size(0);
  TORCH_CHECK(by_rank.sum().item<int64_t>() == rows, "expertTokenNumPerRank counts ",
              by_rank.sum().item<int64_t>(), " tokens; there are ", rows);
  const auto order = at::arange(rows) + (came_from - go_to).repeat_interleave(by_expert);
  permuteTokens.copy_(tokens.index_select(0, order));
  if (idxType == 0) {
    permuteTokenIdx.copy_(order);
  } else {
    permuteTokenIdx.index_copy_(0, order, at::arange(rows).to(permuteTokenIdx.scalar_type()));
  }
  if (perTokenScalesOptional.has_value()) {
    permutePerTokenScales.copy_(perTokenScalesOptional->index_select(0, order));
  } else {
    permutePerTokenScales.zero_();
  }
  const auto of_experts = counts.sum(0);
  expertTokenNum.copy_(expertTokenNumType == 0 ? of_experts.cumsum(0) : of_experts);
}

void MoeInitRouting(const at::Tensor& x, const at::Tensor& rowIdx, const at::Tensor& expertIdx, int64_t,
                    at::Tensor& expandedXOut, at::Tensor& expandedRowIdxOut,
                    at::Tensor& expandedExpertIdxOut) {
  const auto [experts, order] = expertIdx.flatten().sort(/*stable=*/true, 0, /*descending=*/false);
  const auto source = rowIdx.flatten().to(at::kLong).index_select(0, order);
  expandedExpertIdxOut.copy_(experts);
  expandedRowIdxOut.index_copy_(0, source, at::arange(source.numel()).to(expandedRowIdxOut.scalar_type()));
  const auto kept = source.slice(0, 0, expandedXOut.size(0));
  expandedXOut.copy_(x.index_select(0, kept.remainder(std::max<int64_t>(1, x.size(0)))));
}

void MoeInitRoutingV2(const at::Tensor& x, const at::Tensor& expertIdx, int64_t activeNum,
                      int64_t expertCapacity, int64_t expertNum, int64_t dropPadMode,
                      int64_t expertTokensCountOrCumsumFlag, bool expertTokensBeforeCapacityFlag,
                      at::Tensor& expandedXOut, at::Tensor& expandedRowIdxOut,
                      const Optional& expertTokensCountOrCumsumOut,
                      const Optional& expertTokensBeforeCapacityOut) {
  auto counts = at::empty({expertNum}, at::kLong);
  auto scales = at::empty({expandedXOut.numel() / std::max<int64_t>(1, x.size(1))}, at::kFloat);
  MoeInitRoutingV3(x, expertIdx, std::nullopt, std::nullopt, activeNum, expertCapacity, expertNum,
                   dropPadMode,
                   /*expertTokensNumType=*/1, /*expertTokensNumFlag=*/true, /*quantMode=*/-1, std::nullopt,
                   /*rowIdxType=*/0, expandedXOut, expandedRowIdxOut, counts, scales);
  if (expertTokensCountOrCumsumFlag != 0 && expertTokensCountOrCumsumOut.has_value()) {
    expertTokensCountOrCumsumOut->copy_(expertTokensCountOrCumsumFlag == 1 ? counts.cumsum(0) : counts);
  }
  if (expertTokensBeforeCapacityFlag && expertTokensBeforeCapacityOut.has_value()) {
    expertTokensBeforeCapacityOut->copy_(counts);
  }
}

void MoeGatingTopKBackward(const at::Tensor& xNorm, const at::Tensor& gradY, const at::Tensor& expertIdx,
                           int64_t renorm, int64_t normType, double routedScalingFactor, double eps,
                           at::Tensor& gradX) {
  const auto chosen = expertIdx.to(at::kLong);
  auto gradient = gradY.to(at::kFloat) * routedScalingFactor;  // of the weights, then of the scores
  if (normType == 1 || renorm == 1) {
    const auto scores = xNorm.gather(-1, chosen);
    const auto sum = scores.sum(-1, true) + eps;
    gradient = (gradient - (gradient * scores).sum(-1, true) / sum) / sum;
  }
  const auto of_scores = at::zeros_like(xNorm).scatter_add_(-1, chosen, gradient);
  if (normType == 1) {
    gradX.copy_(of_scores * xNorm * (1 - xNorm));
  } else {
    gradX.copy_(xNorm * (of_scores - (of_scores * xNorm).sum(-1, true)));
  }
}

}  // namespace cann_host::host
