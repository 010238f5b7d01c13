// Flash attention and its gradient: ATen's CPU flash kernels where they take the call, else plain matrix
// products.
#include <cmath>
#include <limits>

#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// What all versions of the operator say about one attention.
struct Attention {
  at::Tensor query, key, value;       // [B, N, S, D], views
  std::optional<at::Tensor> shift;    // added to the scores
  std::optional<at::Tensor> hidden;   // true hides a position
  std::optional<at::Tensor> dropped;  // one bit an element of the scores; 0 drops it
  double scale = 1;
  double keep = 1;
  int64_t sparse_mode = 0;
  int64_t before = 0, after = 0;  // the band of sparse mode 4
  bool shift_is_scaled = true;
  std::string_view layout;
  int64_t heads = 0;

  int64_t groups() const { return query.size(1) / key.size(1); }
};

/// [B, N, S, D] view of any layout.
at::Tensor heads_first(const at::Tensor& tensor, std::string_view layout, int64_t head_size) {
  if (layout == "BNSD") return tensor;
  if (layout == "BSND") return tensor.transpose(1, 2);
  TORCH_CHECK(layout == "BSH" || layout == "SBH", "inputLayout is '", layout,
              "'; known: BNSD, BSND, BSH, SBH");
  const auto batch_first = layout == "SBH" ? tensor.transpose(0, 1) : tensor;
  return batch_first.unflatten(2, {-1, head_size}).transpose(1, 2);
}

/// The positions that the sparse mode hides, or nothing.
at::Tensor hidden_by_mode(const Attention& a) {
  const int64_t rows = a.query.size(2), columns = a.key.size(2);
  const auto all = [&] { return at::ones({rows, columns}, at::kBool); };
  switch (a.sparse_mode) {
    case 0:
    case 1:
      return {};
    case 2:  // causal from the upper left corner
      return all().triu(1);
    case 3:  // causal from the lower right corner
      return all().triu(columns - rows + 1);
    case 4:  // a band along the diagonal of the lower right corner
      return all().triu(columns - rows + a.after + 1).logical_or_(all().tril(columns - rows - a.before - 1));
    default:
      TORCH_CHECK(false, "sparseMode is ", a.sparse_mode, "; cann_host has 0 to 4");
  }
}

/// Everything that is added to the scores after scaling, as one tensor; undefined if there is nothing.
at::Tensor bias_of(const Attention& a, at::ScalarType dtype, bool causal_is_done) {
  at::Tensor bias;
  if (a.shift.has_value()) bias = a.shift_is_scaled ? *a.shift * a.scale : *a.shift;
  at::Tensor hidden;
  if (a.sparse_mode < 2) {
    if (a.hidden.has_value()) hidden = a.hidden->to(at::kBool);
  } else if (!causal_is_done) {
    hidden = hidden_by_mode(a);
  }
  if (hidden.defined()) {
    if (!bias.defined()) bias = at::zeros(hidden.sizes(), dtype);
    bias = at::where(hidden, -std::numeric_limits<double>::infinity(), bias).to(dtype);
  }
  return bias.defined() ? bias.to(dtype) : bias;
}

bool flash_takes(const Attention& a) {
  for (const auto* t : {&a.query, &a.key, &a.value}) {
    if (t->stride(-1) != 1 || t->numel() == 0) return false;
  }
  return a.keep == 1 && a.query.size(3) == a.value.size(3) && a.value.size(1) == a.key.size(1);
}

/// A bias as the flash kernel wants it: two or four dimensions.
std::optional<at::Tensor> flash_bias(const Attention& a) {
  auto bias = bias_of(a, a.query.scalar_type(), a.sparse_mode == 2);
  if (!bias.defined()) return std::nullopt;
  return bias.dim() == 3 ? bias.unsqueeze(0) : bias;
}

/// Scores before softmax, in float32, with one key head for each query head.
at::Tensor scores(const Attention& a, const at::Tensor& key) {
  auto result = at::matmul(a.query.to(at::kFloat), key.transpose(-1, -2)).mul_(a.scale);
  if (const auto bias = bias_of(a, at::kFloat, false); bias.defined()) result = result + bias;
  return result;
}

at::Tensor per_query_head(const Attention& a, const at::Tensor& tensor) {
  const auto wide = tensor.to(at::kFloat);
  return a.groups() == 1 ? wide : wide.repeat_interleave(a.groups(), 1);
}

/// 0 where dropout drops, 1 / keep elsewhere.
at::Tensor dropout_factor(const Attention& a, at::IntArrayRef sizes) {
  const auto bits = a.dropped->contiguous().view(-1).unsqueeze(1);
  const auto shifts = at::arange(8, at::kByte);
  const auto kept = bits.bitwise_right_shift(shifts).bitwise_and_(1).view(-1);
  return kept.slice(0, 0, c10::multiply_integers(sizes)).view(sizes).to(at::kFloat).div_(a.keep);
}

void set_statistic(const std::optional<at::Tensor>& out, const at::Tensor& value) {
  if (out.has_value() && out->numel() > 0) out->copy_(value.unsqueeze(-1).expand_as(*out));
}

void store(at::Tensor& out, const at::Tensor& result, const Attention& a) {
  assign(heads_first(out, a.layout, result.size(3)), result);
}

void forward(const Attention& a, const std::optional<at::Tensor>& maximum,
             const std::optional<at::Tensor>& sum, const std::optional<at::Tensor>& probabilities,
             at::Tensor& out) {
  const Placement placement({out});
  if (flash_takes(a)) {
    const auto [result, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        a.query, a.key, a.value, 0.0, a.sparse_mode == 2, flash_bias(a), a.scale);
    store(out, result, a);
    // Any pair with maximum + log(sum) = logsumexp serves the gradient.
    set_statistic(maximum, logsumexp);
    if (sum.has_value()) sum->fill_(1);
    return;
  }
  const auto raw = scores(a, per_query_head(a, a.key));
  const auto top = raw.amax(-1);
  auto weights = raw.softmax(-1);
  set_statistic(maximum, top);
  set_statistic(sum, (raw - top.unsqueeze(-1)).exp_().sum(-1));
  if (a.keep != 1 && a.dropped.has_value()) weights = weights * dropout_factor(a, weights.sizes());
  if (probabilities.has_value() && probabilities->numel() > 0) probabilities->copy_(weights);
  store(out, at::matmul(weights, per_query_head(a, a.value)), a);
}

void backward(const Attention& a, const at::Tensor& dy, const std::optional<at::Tensor>& maximum,
              const std::optional<at::Tensor>& sum, const std::optional<at::Tensor>& out, at::Tensor& dq,
              at::Tensor& dk, at::Tensor& dv, const std::optional<at::Tensor>& dshift) {
  const Placement placement({dq, dk, dv});
  const auto grad = heads_first(dy, a.layout, a.value.size(3));
  const bool wants_shift = dshift.has_value() && dshift->numel() > 0;
  if (flash_takes(a) && !wants_shift && maximum.has_value() && sum.has_value() && out.has_value()) {
    // The layout of the forward kernel: [B, S, N] transposed.
    const auto logsumexp =
        (maximum->select(-1, 0) + sum->select(-1, 0).log()).transpose(1, 2).contiguous().transpose(1, 2);
    const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, a.query, a.key, a.value, heads_first(*out, a.layout, a.value.size(3)), logsumexp, 0.0,
        a.sparse_mode == 2, flash_bias(a), a.scale);
    detail::assign_all({heads_first(dq, a.layout, a.query.size(3)), heads_first(dk, a.layout, a.key.size(3)),
                        heads_first(dv, a.layout, a.value.size(3))},
                       {q, k, v});
    return;
  }
  const auto key = per_query_head(a, a.key);
  auto weights = scores(a, key).softmax(-1);
  const auto wide_grad = grad.to(at::kFloat);
  auto dweights = at::matmul(wide_grad, per_query_head(a, a.value).transpose(-1, -2));
  auto dropped = weights;
  if (a.keep != 1 && a.dropped.has_value()) {
    const auto factor = dropout_factor(a, weights.sizes());
    dropped = weights * factor;
    dweights = dweights * factor;
  }
  const auto dscores = weights * (dweights - (dweights * weights).sum(-1, true));
  const auto of_key_head = [&](const at::Tensor& t) {
    return a.groups() == 1 ? t : t.unflatten(1, {a.key.size(1), a.groups()}).sum(2);
  };
  store(dq, at::matmul(dscores, key).mul_(a.scale), a);
  store(dk, of_key_head(at::matmul(dscores.transpose(-1, -2), a.query.to(at::kFloat)).mul_(a.scale)), a);
  store(dv, of_key_head(at::matmul(dropped.transpose(-1, -2), wide_grad)), a);
  if (wants_shift)
    dshift->copy_((a.shift_is_scaled ? dscores * a.scale : dscores).sum_to_size(dshift->sizes()));
}

Attention describe(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const std::optional<at::Tensor>& shift, const std::optional<at::Tensor>& dropMask,
                   const std::optional<at::Tensor>& attenMask, double scale, double keep, int64_t before,
                   int64_t after, int64_t heads, std::string_view layout, int64_t sparse_mode,
                   int64_t pse_type) {
  const auto present = [](const std::optional<at::Tensor>& t) {
    return t.has_value() && t->numel() > 0 ? t : std::nullopt;
  };
  TORCH_CHECK(pse_type == 0 || pse_type == 1, "pseType is ", pse_type,
              "; cann_host has 0 (added after scaling) and 1 (before)");
  Attention a;
  a.layout = layout;
  a.heads = heads;
  const bool flat = layout == "BSH" || layout == "SBH";
  const int64_t head_size = flat ? query.size(2) / heads : query.size(3);
  a.query = heads_first(query, layout, head_size);
  a.key = heads_first(key, layout, head_size);
  a.value = heads_first(value, layout, flat ? value.size(2) / a.key.size(1) : value.size(3));
  a.shift = present(shift);
  a.dropped = present(dropMask);
  a.hidden = present(attenMask);
  a.scale = scale;
  a.keep = keep;
  a.before = before;
  a.after = after;
  a.sparse_mode = sparse_mode;
  a.shift_is_scaled = pse_type == 1;
  return a;
}

}  // namespace

void FlashAttentionScore(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& realShift,
                         const std::optional<at::Tensor>& dropMask, const std::optional<at::Tensor>&,
                         const std::optional<at::Tensor>& attenMask, at::OptionalIntArrayRef,
                         double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
                         int64_t headNum, std::string_view inputLayout, int64_t, int64_t sparseMode,
                         const std::optional<at::Tensor>& softmaxMax,
                         const std::optional<at::Tensor>& softmaxSum,
                         const std::optional<at::Tensor>& softmaxOut, at::Tensor& attentionOut) {
  forward(describe(query, key, value, realShift, dropMask, attenMask, scaleValue, keepProb, preTokens,
                   nextTokens, headNum, inputLayout, sparseMode, /*pse_type=*/1),
          softmaxMax, softmaxSum, softmaxOut, attentionOut);
}

void FlashAttentionScoreV2(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const std::optional<at::Tensor>& realShift,
                           const std::optional<at::Tensor>& dropMask, const std::optional<at::Tensor>&,
                           const std::optional<at::Tensor>& attenMask, at::OptionalIntArrayRef,
                           at::OptionalIntArrayRef, at::OptionalIntArrayRef, double scaleValue,
                           double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum,
                           std::string_view inputLayout, int64_t, int64_t sparseMode, int64_t pseType,
                           const std::optional<at::Tensor>& softmaxMax,
                           const std::optional<at::Tensor>& softmaxSum,
                           const std::optional<at::Tensor>& softmaxOut, at::Tensor& attentionOut) {
  forward(describe(query, key, value, realShift, dropMask, attenMask, scaleValue, keepProb, preTokens,
                   nextTokens, headNum, inputLayout, sparseMode, pseType),
          softmaxMax, softmaxSum, softmaxOut, attentionOut);
}

void FlashAttentionScoreGrad(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const at::Tensor& dy, const std::optional<at::Tensor>& pseShift,
                             const std::optional<at::Tensor>& dropMask, const std::optional<at::Tensor>&,
                             const std::optional<at::Tensor>& attenMask,
                             const std::optional<at::Tensor>& softmaxMax,
                             const std::optional<at::Tensor>& softmaxSum, const std::optional<at::Tensor>&,
                             const std::optional<at::Tensor>& attentionIn, at::OptionalIntArrayRef,
                             double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
                             int64_t headNum, std::string_view inputLayout, int64_t, int64_t sparseMode,
                             at::Tensor& dq, at::Tensor& dk, at::Tensor& dv,
                             const std::optional<at::Tensor>& dpse) {
  backward(describe(query, key, value, pseShift, dropMask, attenMask, scaleValue, keepProb, preTokens,
                    nextTokens, headNum, inputLayout, sparseMode, /*pse_type=*/1),
           dy, softmaxMax, softmaxSum, attentionIn, dq, dk, dv, dpse);
}

void FlashAttentionScoreGradV2(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& dy,
    const std::optional<at::Tensor>& pseShift, const std::optional<at::Tensor>& dropMask,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>& attenMask,
    const std::optional<at::Tensor>& softmaxMax, const std::optional<at::Tensor>& softmaxSum,
    const std::optional<at::Tensor>&, const std::optional<at::Tensor>& attentionIn, at::OptionalIntArrayRef,
    at::OptionalIntArrayRef, at::OptionalIntArrayRef, double scaleValue, double keepProb, int64_t preTokens,
    int64_t nextTokens, int64_t headNum, std::string_view inputLayout, int64_t, int64_t sparseMode,
    int64_t pseType, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const std::optional<at::Tensor>& dpse) {
  backward(describe(query, key, value, pseShift, dropMask, attenMask, scaleValue, keepProb, preTokens,
                    nextTokens, headNum, inputLayout, sparseMode, pseType),
           dy, softmaxMax, softmaxSum, attentionIn, dq, dk, dv, dpse);
}

}  // namespace cann_host::host
