// What may be drawn: the likeliest k classes, or those that make up a share p; and what is drawn.
#include <limits>

#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// Candidates of each row, [rows, classes]: the likeliest first, those that dropped out behind.
struct Candidates {
  at::Tensor classes, probabilities, kept;

  /// What is not kept goes behind what is.
  void close_ranks() {
    const auto order = kept.logical_not().to(at::kChar).argsort(/*stable=*/true, 1, /*descending=*/false);
    for (auto* t : {&classes, &probabilities, &kept}) *t = t->gather(1, order);
  }
};

Candidates candidates_of(const at::Tensor& logits, const at::Tensor& top_k, const at::Tensor& top_p,
                         const Optional& min_p, int64_t most_k, bool are_logits) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto column = [](const at::Tensor& t) { return t.reshape({-1, 1}); };
  const auto values = logits.to(at::kFloat);
  const auto rank = at::arange(values.size(1)).unsqueeze(0);
  const auto k = column(top_k.to(at::kLong)), p = column(top_p.to(at::kFloat));
  const auto limits_k = k.ge(1).logical_and(k.le(std::min(most_k, values.size(1)))), limits_p = p.lt(1);
  const auto threshold = min_p.has_value() ? column(min_p->to(at::kFloat)) : at::full_like(p, -1);
  // A row without limits keeps the order of its classes.
  const auto sorts = limits_k.logical_or(limits_p).logical_or(threshold.ge(1));
  const auto order = at::where(sorts, values.argsort(/*stable=*/true, 1, /*descending=*/true), rank);
  auto kept = rank.lt(k).logical_or(limits_k.logical_not());
  auto share = values.gather(1, order).masked_fill(kept.logical_not(), are_logits ? -infinity : 0);
  if (are_logits) share = share.softmax(1);
  const auto first = rank.eq(0), nothing = p.le(0);
  const auto within = at::where(nothing, first, (share.cumsum(1) - share).lt(p));
  kept = kept.logical_and(within.logical_or(limits_p.logical_not()));
  if (are_logits) share = share.masked_fill(nothing.logical_and(first), 1);
  const auto strong = share.ge(share.masked_fill(kept.logical_not(), 0).amax(1, true) * threshold);
  kept = kept.logical_and(at::where(threshold.ge(1), first, strong.logical_or(threshold.le(0))));
  Candidates result{order, share, kept};
  result.close_ranks();
  return result;
}

}  // namespace

void TopKTopPSample(const at::Tensor& logits, const at::Tensor& topK, const at::Tensor& topP,
                    const Optional& q, double eps, bool isNeedLogits, int64_t topKGuess,
                    at::Tensor& logitsSelectIdx, at::Tensor& logitsTopKPSelect) {
  auto classes = at::empty(logits.sizes(), at::kLong), masked = at::empty(logits.sizes(), at::kFloat);
  TopKTopPSampleV2(logits, topK, topP, q, std::nullopt, eps, isNeedLogits, topKGuess, /*ksMax=*/1024,
                   /*inputIsLogits=*/true, /*isNeedSampleResult=*/false, logitsSelectIdx, logitsTopKPSelect,
                   classes, masked);
}

void TopKTopPSampleV2(const at::Tensor& logits, const at::Tensor& topK, const at::Tensor& topP,
                      const Optional& q, const Optional& minPs, double eps, bool isNeedLogits, int64_t,
                      int64_t ksMax, bool inputIsLogits, bool isNeedSampleResult, at::Tensor& logitsSelectIdx,
                      at::Tensor& logitsTopKPSelect, at::Tensor& logitsIdx, at::Tensor& logitsSortMasked) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const int64_t most_k = std::min<int64_t>((ksMax + 7) / 8 * 8, 1024);
  const auto found = candidates_of(logits, topK, topP, minPs, most_k, inputIsLogits);
  const auto dropped = found.kept.logical_not();
  logitsIdx.copy_(found.classes.masked_fill(dropped, 0));
  logitsSortMasked.copy_(found.probabilities.masked_fill(dropped, 0));
  if (isNeedLogits) {
    const auto visible = at::zeros_like(dropped).scatter_(1, found.classes, found.kept);
    logitsTopKPSelect.copy_(logits.masked_fill(visible.logical_not(), inputIsLogits ? -infinity : 0));
  } else {
    logitsTopKPSelect.zero_();
  }
  if (isNeedSampleResult) {  // the caller draws
    logitsSelectIdx.zero_();
    return;
  }
  const auto score = q.has_value() ? found.probabilities / (q->abs() + eps) : found.probabilities;
  const auto best = score.masked_fill(dropped, -infinity).argmax(1, true);
  logitsSelectIdx.copy_(found.classes.gather(1, best).view(logitsSelectIdx.sizes()));
}

void ApplyTopKTopP(const at::Tensor& logits, const std::optional<at::Tensor>& p,
                   const std::optional<at::Tensor>& k, at::Tensor& out) {
  auto [sorted, order] = logits.to(at::kFloat).sort(/*stable=*/true, -1, /*descending=*/false);
  const double hidden = -std::numeric_limits<double>::infinity();
  const int64_t size = logits.size(-1);
  if (k.has_value()) {
    const auto place = (size - k->to(at::kLong)).clamp_(0, size - 1).unsqueeze(-1);
    sorted = sorted.masked_fill(sorted.lt(sorted.gather(-1, place)), hidden);
  }
  if (p.has_value()) {
    auto beyond = sorted.softmax(-1).cumsum(-1).le((1 - p->to(at::kFloat)).unsqueeze(-1));
    beyond.select(-1, size - 1).fill_(false);  // the likeliest stays
    sorted = sorted.masked_fill(beyond, hidden);
  }
  out.copy_(at::empty_like(sorted).scatter_(-1, order, sorted));
}

}  // namespace cann_host::host
