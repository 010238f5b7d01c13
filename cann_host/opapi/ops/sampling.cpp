// What may be drawn: the likeliest k classes, or those that make up a share p.
#include <limits>

#include "opapi/host_functions.h"

namespace cann_host::host {
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
