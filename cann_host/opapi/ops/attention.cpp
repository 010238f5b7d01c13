// CANN's attention operators: layouts and sequences of different lengths, over cann_host/opapi/attention.h.
#include "cann_host/opapi/attention.h"

#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

Optional present(const Optional& t) { return t.has_value() && t->numel() > 0 ? t : std::nullopt; }

/// The size of a head of a tensor with `heads` heads, in a layout other than TND.
int64_t head_size_of(const at::Tensor& t, std::string_view layout, int64_t heads) {
  return layout == "BSH" || layout == "SBH" ? t.size(2) / heads : t.size(3);
}

/// What the training operators say beside query, key, value and their layout.
Attention options(const Optional& shift, const Optional& dropped, const Optional& hidden,
                  const Optional& sink, at::OptionalIntArrayRef prefix, double scale, double keep,
                  int64_t before, int64_t after, int64_t sparse_mode, int64_t pse_type) {
  TORCH_CHECK(pse_type == 0 || pse_type == 1, "pseType is ", pse_type,
              "; cann_host has 0 (added after scaling) and 1 (before)");
  Attention a;
  a.shift = present(shift);
  a.dropped = present(dropped);
  a.hidden = present(hidden);
  a.sink = present(sink);
  if (prefix.has_value()) a.prefix = prefix->vec();
  a.scale = scale;
  a.keep = keep;
  a.before = before;
  a.after = after;
  a.sparse_mode = sparse_mode;
  a.shift_is_scaled = pse_type == 1;
  return a;
}

void set_statistics(const at::Tensor& log_sum_exp, const Optional& maximum, const Optional& sum) {
  // Any pair with maximum + log(sum) = logsumexp serves the gradient.
  if (maximum.has_value()) maximum->copy_(log_sum_exp.unsqueeze(-1).expand_as(*maximum));
  if (sum.has_value()) sum->fill_(1);
}

at::Tensor log_sum_exp_of(const Optional& maximum, const Optional& sum) {
  TORCH_CHECK(maximum.has_value() && sum.has_value(),
              "the gradient of attention needs softmaxMax and softmaxSum");
  return maximum->select(-1, 0) + sum->select(-1, 0).log();
}

/// One sequence of layout TND: tokens [begin, end) of queries and keys.
struct Sequence {
  int64_t index, query_begin, query_end, key_begin, key_end;
  int64_t pairs;  // of queries and keys in the sequences before
};

std::vector<Sequence> sequences(at::OptionalIntArrayRef query_ends, at::OptionalIntArrayRef key_ends) {
  TORCH_CHECK(query_ends.has_value() && key_ends.has_value() && query_ends->size() == key_ends->size(),
              "layout TND needs actualSeqQLen and actualSeqKvLen of one length");
  std::vector<Sequence> result;
  int64_t query_begin = 0, key_begin = 0, pairs = 0;
  for (size_t i = 0; i < query_ends->size(); ++i) {
    result.push_back(
        {static_cast<int64_t>(i), query_begin, (*query_ends)[i], key_begin, (*key_ends)[i], pairs});
    pairs += ((*query_ends)[i] - query_begin) * ((*key_ends)[i] - key_begin);
    query_begin = (*query_ends)[i];
    key_begin = (*key_ends)[i];
  }
  return result;
}

/// [1, N, tokens, D] of [T, N, D].
at::Tensor tokens(const at::Tensor& t, int64_t begin, int64_t end) {
  return t.slice(0, begin, end).transpose(0, 1).unsqueeze(0);
}

/// What of a mask or bias belongs to one sequence: its own batch, and only as many queries and keys.
Optional of_sequence(const Optional& t, const Sequence& s, int64_t batch) {
  if (!t.has_value()) return t;
  auto part = *t;
  if (part.dim() == 4 && part.size(0) == batch && batch > 1) part = part.slice(0, s.index, s.index + 1);
  if (part.size(-2) > 1) part = part.slice(-2, 0, s.query_end - s.query_begin);
  if (part.size(-1) > 1) part = part.slice(-1, 0, s.key_end - s.key_begin);
  return part;
}

Attention of_sequence(const Attention& all, const Sequence& s, int64_t batch, const at::Tensor& query,
                      const at::Tensor& key, const at::Tensor& value) {
  Attention a = all;
  a.query = tokens(query, s.query_begin, s.query_end);
  a.key = tokens(key, s.key_begin, s.key_end);
  a.value = tokens(value, s.key_begin, s.key_end);
  a.shift = of_sequence(all.shift, s, batch);
  a.hidden = all.sparse_mode < 2 ? of_sequence(all.hidden, s, batch) : all.hidden;
  if (!all.prefix.empty()) a.prefix = {all.prefix.at(s.index)};
  a.first_dropped = a.query.size(1) * s.pairs;
  return a;
}

}  // namespace

void FlashAttentionScoreV3(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const Optional& realShift, const Optional& dropMask, const Optional&,
                           const Optional& attenMask, const Optional& sink, at::OptionalIntArrayRef prefix,
                           at::OptionalIntArrayRef, at::OptionalIntArrayRef, double scaleValue,
                           double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum,
                           std::string_view inputLayout, int64_t, int64_t sparseMode, int64_t pseType,
                           const Optional& softmaxMax, const Optional& softmaxSum, const Optional&,
                           at::Tensor& attentionOut) {
  auto a = options(realShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens, nextTokens,
                   sparseMode, pseType);
  const int64_t size = head_size_of(query, inputLayout, headNum);
  a.query = heads_first(query, inputLayout, size);
  a.key = heads_first(key, inputLayout, size);
  a.value = heads_first(value, inputLayout, head_size_of(value, inputLayout, a.key.size(1)));
  const Placement placement({attentionOut});
  const auto result = attend(a);
  assign(heads_first(attentionOut, inputLayout, result.out.size(3)), result.out);
  set_statistics(result.log_sum_exp, softmaxMax, softmaxSum);
}

void FlashAttentionVarLenScoreV5(
    const at::Tensor& query, const Optional& queryRope, const at::Tensor& key, const Optional& keyRope,
    const at::Tensor& value, const Optional& realShift, const Optional& dropMask, const Optional&,
    const Optional& attenMask, const Optional& sink, at::OptionalIntArrayRef prefix,
    at::OptionalIntArrayRef actualSeqQLen, at::OptionalIntArrayRef actualSeqKvLen, at::OptionalIntArrayRef,
    at::OptionalIntArrayRef, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
    int64_t, std::string_view inputLayout, int64_t, int64_t sparseMode, int64_t pseType, std::string_view,
    const Optional& softmaxMax, const Optional& softmaxSum, const Optional&, at::Tensor& attentionOut) {
  TORCH_CHECK(inputLayout == "TND", "inputLayout is '", inputLayout, "'; expected TND");
  const auto all = options(realShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens,
                           nextTokens, sparseMode, pseType);
  const auto with_rope = [](const at::Tensor& t, const Optional& rope) {
    return rope.has_value() ? at::cat({t, *rope}, -1) : t;
  };
  const auto whole_query = with_rope(query, queryRope), whole_key = with_rope(key, keyRope);
  const auto parts = sequences(actualSeqQLen, actualSeqKvLen);
  for (const auto& s : parts) {
    const auto a = of_sequence(all, s, static_cast<int64_t>(parts.size()), whole_query, whole_key, value);
    if (a.query.numel() == 0) continue;
    const auto result = attend(a);
    tokens(attentionOut, s.query_begin, s.query_end).copy_(result.out);
    const auto of = [&](const Optional& statistic) {
      return statistic.has_value() ? Optional(tokens(*statistic, s.query_begin, s.query_end)) : std::nullopt;
    };
    set_statistics(result.log_sum_exp, of(softmaxMax), of(softmaxSum));
  }
}

void FlashAttentionScoreGradV3(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& dy, const Optional& pseShift, const Optional& dropMask,
                               const Optional&, const Optional& attenMask, const Optional& softmaxMax,
                               const Optional& softmaxSum, const Optional&, const Optional& attentionIn,
                               const Optional& sink, at::OptionalIntArrayRef prefix, at::OptionalIntArrayRef,
                               at::OptionalIntArrayRef, double scaleValue, double keepProb, int64_t preTokens,
                               int64_t nextTokens, int64_t headNum, std::string_view inputLayout, int64_t,
                               int64_t sparseMode, int64_t pseType, at::Tensor& dq, at::Tensor& dk,
                               at::Tensor& dv, const Optional& dpse, const Optional& dsink) {
  auto a = options(pseShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens, nextTokens,
                   sparseMode, pseType);
  const int64_t size = head_size_of(query, inputLayout, headNum);
  a.query = heads_first(query, inputLayout, size);
  a.key = heads_first(key, inputLayout, size);
  const int64_t value_size = head_size_of(value, inputLayout, a.key.size(1));
  a.value = heads_first(value, inputLayout, value_size);
  TORCH_CHECK(attentionIn.has_value(), "the gradient of attention needs attentionIn");
  const auto wants = [](const Optional& t) { return t.has_value() && t->numel() > 0; };
  const Placement placement({dq, dk, dv});
  const AttentionResult result{heads_first(*attentionIn, inputLayout, value_size),
                               log_sum_exp_of(softmaxMax, softmaxSum)};
  const auto gradient = attend_backward(a, heads_first(dy, inputLayout, value_size), result, wants(dpse),
                                        wants(dsink) && a.sink.has_value());
  detail::assign_all({heads_first(dq, inputLayout, size), heads_first(dk, inputLayout, size),
                      heads_first(dv, inputLayout, value_size)},
                     {gradient.query, gradient.key, gradient.value});
  if (gradient.shift.defined()) dpse->copy_(gradient.shift.sum_to_size(dpse->sizes()));
  if (gradient.sink.defined()) dsink->copy_(gradient.sink);
}

void FlashAttentionUnpaddingScoreGradV5(
    const at::Tensor& query, const Optional& queryRope, const at::Tensor& key, const Optional& keyRope,
    const at::Tensor& value, const at::Tensor& dy, const Optional& pseShift, const Optional& dropMask,
    const Optional&, const Optional& attenMask, const Optional& softmaxMax, const Optional& softmaxSum,
    const Optional&, const Optional& attentionIn, const Optional& sink, at::OptionalIntArrayRef prefix,
    at::OptionalIntArrayRef actualSeqQLen, at::OptionalIntArrayRef actualSeqKvLen, at::OptionalIntArrayRef,
    at::OptionalIntArrayRef, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
    int64_t, std::string_view, int64_t, int64_t sparseMode, int64_t pseType, std::string_view, at::Tensor& dq,
    const Optional&, at::Tensor& dk, const Optional&, at::Tensor& dv, const Optional& dpse,
    const Optional& dsink) {
  TORCH_CHECK(!queryRope.has_value() && !keyRope.has_value(),
              "gradients to queryRope and keyRope are not in cann_host");
  TORCH_CHECK(attentionIn.has_value(), "the gradient of attention needs attentionIn");
  const auto all = options(pseShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens,
                           nextTokens, sparseMode, pseType);
  const auto log_sum_exp = log_sum_exp_of(softmaxMax, softmaxSum);  // [T, N]
  const bool wants_sink = dsink.has_value() && dsink->numel() > 0 && all.sink.has_value();
  const bool wants_shift = dpse.has_value() && dpse->numel() > 0;
  for (auto* t : {&dq, &dk, &dv}) t->zero_();
  if (wants_sink) dsink->zero_();
  if (wants_shift) dpse->zero_();
  const auto parts = sequences(actualSeqQLen, actualSeqKvLen);
  for (const auto& s : parts) {
    const auto a = of_sequence(all, s, static_cast<int64_t>(parts.size()), query, key, value);
    if (a.query.numel() == 0) continue;
    const AttentionResult result{tokens(*attentionIn, s.query_begin, s.query_end),
                                 log_sum_exp.slice(0, s.query_begin, s.query_end).t().unsqueeze(0)};
    const auto gradient =
        attend_backward(a, tokens(dy, s.query_begin, s.query_end), result, wants_shift, wants_sink);
    tokens(dq, s.query_begin, s.query_end).copy_(gradient.query);
    tokens(dk, s.key_begin, s.key_end).copy_(gradient.key);
    tokens(dv, s.key_begin, s.key_end).copy_(gradient.value);
    if (wants_sink) dsink->add_(gradient.sink);
    if (wants_shift) {
      const auto part = *of_sequence(dpse, s, static_cast<int64_t>(parts.size()));
      part.add_(gradient.shift.sum_to_size(part.sizes()));
    }
  }
}

void FlashAttentionScoreV4(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const Optional& realShift, const Optional& dropMask, const Optional& paddingMask,
                           const Optional& attenMask, const Optional&, const Optional&, const Optional&,
                           const Optional&, const Optional&, const Optional&, at::OptionalIntArrayRef prefix,
                           at::OptionalIntArrayRef actualSeqQLen, at::OptionalIntArrayRef actualSeqKvLen,
                           at::OptionalIntArrayRef qStartIdx, at::OptionalIntArrayRef kvStartIdx,
                           double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
                           int64_t headNum, std::string_view inputLayout, int64_t innerPrecise,
                           int64_t sparseMode, int64_t, int64_t pseType, std::string_view softmaxOutLayout,
                           int64_t, int64_t, const Optional& softmaxMax, const Optional& softmaxSum,
                           const Optional& softmaxOut, at::Tensor& attentionOut) {
  if (inputLayout == "TND") {
    return FlashAttentionVarLenScoreV5(query, std::nullopt, key, std::nullopt, value, realShift, dropMask,
                                       paddingMask, attenMask, std::nullopt, prefix, actualSeqQLen,
                                       actualSeqKvLen, qStartIdx, kvStartIdx, scaleValue, keepProb, preTokens,
                                       nextTokens, headNum, inputLayout, innerPrecise, sparseMode, pseType,
                                       softmaxOutLayout, softmaxMax, softmaxSum, softmaxOut, attentionOut);
  }
  FlashAttentionScoreV3(query, key, value, realShift, dropMask, paddingMask, attenMask, std::nullopt, prefix,
                        qStartIdx, kvStartIdx, scaleValue, keepProb, preTokens, nextTokens, headNum,
                        inputLayout, innerPrecise, sparseMode, pseType, softmaxMax, softmaxSum, softmaxOut,
                        attentionOut);
}

void FlashAttentionScoreGradV4(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& dy, const Optional& pseShift, const Optional& dropMask,
                               const Optional& paddingMask, const Optional& attenMask,
                               const Optional& softmaxMax, const Optional& softmaxSum,
                               const Optional& softmaxIn, const Optional& attentionIn, const Optional& sink,
                               const Optional&, const Optional&, const Optional&, const Optional&,
                               const Optional&, const Optional&, const Optional&,
                               at::OptionalIntArrayRef prefix, at::OptionalIntArrayRef actualSeqQLen,
                               at::OptionalIntArrayRef actualSeqKvLen, at::OptionalIntArrayRef qStartIdx,
                               at::OptionalIntArrayRef kvStartIdx, double scaleValue, double keepProb,
                               int64_t preTokens, int64_t nextTokens, int64_t headNum,
                               std::string_view inputLayout, std::string_view softmaxInLayout,
                               int64_t innerPrecise, int64_t sparseMode, int64_t pseType, int64_t, int64_t,
                               int64_t, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const Optional&,
                               const Optional&, const Optional& dpse, const Optional& dsink) {
  if (inputLayout == "TND") {
    return FlashAttentionUnpaddingScoreGradV5(
        query, std::nullopt, key, std::nullopt, value, dy, pseShift, dropMask, paddingMask, attenMask,
        softmaxMax, softmaxSum, softmaxIn, attentionIn, sink, prefix, actualSeqQLen, actualSeqKvLen,
        qStartIdx, kvStartIdx, scaleValue, keepProb, preTokens, nextTokens, headNum, inputLayout,
        innerPrecise, sparseMode, pseType, softmaxInLayout, dq, std::nullopt, dk, std::nullopt, dv, dpse,
        dsink);
  }
  FlashAttentionScoreGradV3(query, key, value, dy, pseShift, dropMask, paddingMask, attenMask, softmaxMax,
                            softmaxSum, softmaxIn, attentionIn, sink, prefix, qStartIdx, kvStartIdx,
                            scaleValue, keepProb, preTokens, nextTokens, headNum, inputLayout, innerPrecise,
                            sparseMode, pseType, dq, dk, dv, dpse, dsink);
}

}  // namespace cann_host::host
