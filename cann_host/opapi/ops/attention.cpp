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

/// pseType 2 and 3: pse holds slopes of heads, [N] or [B, N]. A slope times the distance of a query and a key
/// in their sequence, or times its square root, is taken off the score.
struct Alibi {
  Optional slopes;  // nothing: another pseType
  bool of_roots = false;
  int64_t query_start = 0, key_start = 0;  // places of the first ones, where a sequence was cut

  Alibi(const Optional& pse, int64_t pse_type, at::OptionalIntArrayRef query_starts,
        at::OptionalIntArrayRef key_starts)
      : of_roots(pse_type == 3), query_start(first_of(query_starts)), key_start(first_of(key_starts)) {
    TORCH_CHECK(0 <= pse_type && pse_type <= 3, "pseType is ", pse_type, "; known: 0 to 3");
    if (pse_type < 2) return;
    slopes = present(pse);
    TORCH_CHECK(slopes.has_value(), "pseType ", pse_type, " needs pse, the slopes of heads");
  }

  /// What is added to the scores of `a`, all sequences or (TND) one, whose number is `sequence`.
  Optional shift(const Attention& a, std::optional<int64_t> sequence) const {
    if (!slopes.has_value()) return a.shift;
    auto of_heads = slopes->to(at::kFloat).reshape({-1, a.query.size(1), 1, 1});
    if (of_heads.size(0) > 1 && sequence.has_value()) of_heads = of_heads.slice(0, *sequence, *sequence + 1);
    const auto queries = at::arange(query_start, query_start + a.query.size(2), at::kFloat).unsqueeze(1);
    const auto keys = at::arange(key_start, key_start + a.key.size(2), at::kFloat);
    const auto distance = (queries - keys).abs_();
    return of_heads.neg() * (of_roots ? distance.sqrt() : distance);
  }

 private:
  static int64_t first_of(at::OptionalIntArrayRef numbers) {
    return numbers.has_value() && !numbers->empty() ? numbers->front() : 0;
  }
};

/// What the training operators say beside query, key, value and their layout.
Attention options(const Optional& shift, const Optional& dropped, const Optional& hidden,
                  const Optional& sink, at::OptionalIntArrayRef prefix, double scale, double keep,
                  int64_t before, int64_t after, int64_t sparse_mode, int64_t pse_type) {
  Attention a;
  if (pse_type < 2) a.shift = present(shift);
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

/// The true maximum and sum, or any pair with maximum + log(sum) = log_sum_exp, which serves the gradient.
void set_statistics(const AttentionResult& result, bool wants_maximum, const Optional& maximum,
                    const Optional& sum) {
  const auto store = [](const at::Tensor& to, const at::Tensor& rows) {
    to.copy_(rows.unsqueeze(-1).expand_as(to));
  };
  if (maximum.has_value()) store(*maximum, wants_maximum ? result.maximum : result.log_sum_exp);
  if (!sum.has_value()) return;
  if (!wants_maximum) {
    sum->fill_(1);
    return;
  }
  const auto sums = (result.log_sum_exp - result.maximum).exp_();
  store(*sum, sums.masked_fill_(result.maximum.isneginf(), 0));
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

/// Heads followed by their rotated part, which came as a tensor of its own.
at::Tensor with_rope(const at::Tensor& t, const Optional& rope) {
  return rope.has_value() ? at::cat({t, *rope}, -1) : t;
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

/// Modes 7 and 8 of a sequence that was cut among devices: a band in the last sequence, and mode 3 in the
/// others; or one in the first, and mode 2.
int64_t sparse_mode_of(const Attention& all, const Sequence& s, const std::vector<Sequence>& parts) {
  if (all.sparse_mode != 7 && all.sparse_mode != 8) return all.sparse_mode;
  const bool is_cut = all.sparse_mode == 7 ? s.query_end == parts.back().query_end : s.query_begin == 0;
  return is_cut ? 4 : all.sparse_mode == 7 ? 3 : 2;
}

Attention of_sequence(const Attention& all, const Alibi& alibi, const Sequence& s,
                      const std::vector<Sequence>& parts, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value) {
  const auto batch = static_cast<int64_t>(parts.size());
  Attention a = all;
  a.query = tokens(query, s.query_begin, s.query_end);
  a.key = tokens(key, s.key_begin, s.key_end);
  a.value = tokens(value, s.key_begin, s.key_end);
  a.shift = of_sequence(all.shift, s, batch);
  a.shift = alibi.shift(a, s.index);
  a.sparse_mode = sparse_mode_of(all, s, parts);
  a.hidden = all.sparse_mode < 2 ? of_sequence(all.hidden, s, batch) : all.hidden;
  if (!all.prefix.empty()) a.prefix = {all.prefix.at(s.index)};
  a.first_dropped = a.query.size(1) * s.pairs;
  return a;
}

}  // namespace

void FlashAttentionScoreV3(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const Optional& realShift, const Optional& dropMask, const Optional&,
                           const Optional& attenMask, const Optional& sink, at::OptionalIntArrayRef prefix,
                           at::OptionalIntArrayRef qStartIdx, at::OptionalIntArrayRef kvStartIdx,
                           double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
                           int64_t headNum, std::string_view inputLayout, int64_t, int64_t sparseMode,
                           int64_t pseType, const Optional& softmaxMax, const Optional& softmaxSum,
                           const Optional& softmaxOut, at::Tensor& attentionOut) {
  auto a = options(realShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens, nextTokens,
                   sparseMode, pseType);
  const int64_t size = head_size_of(query, inputLayout, headNum);
  a.query = heads_first(query, inputLayout, size);
  a.key = heads_first(key, inputLayout, size);
  a.value = heads_first(value, inputLayout, head_size_of(value, inputLayout, a.key.size(1)));
  a.shift = Alibi(realShift, pseType, qStartIdx, kvStartIdx).shift(a, std::nullopt);
  const Placement placement({attentionOut});
  const auto result = attend(a, softmaxOut.has_value());
  assign(heads_first(attentionOut, inputLayout, result.out.size(3)), result.out);
  set_statistics(result, softmaxOut.has_value(), softmaxMax, softmaxSum);
}

void FlashAttentionVarLenScoreV5(const at::Tensor& query, const Optional& queryRope, const at::Tensor& key,
                                 const Optional& keyRope, const at::Tensor& value, const Optional& realShift,
                                 const Optional& dropMask, const Optional&, const Optional& attenMask,
                                 const Optional& sink, at::OptionalIntArrayRef prefix,
                                 at::OptionalIntArrayRef actualSeqQLen,
                                 at::OptionalIntArrayRef actualSeqKvLen, at::OptionalIntArrayRef qStartIdx,
                                 at::OptionalIntArrayRef kvStartIdx, double scaleValue, double keepProb,
                                 int64_t preTokens, int64_t nextTokens, int64_t, std::string_view inputLayout,
                                 int64_t, int64_t sparseMode, int64_t pseType, std::string_view,
                                 const Optional& softmaxMax, const Optional& softmaxSum,
                                 const Optional& softmaxOut, at::Tensor& attentionOut) {
  TORCH_CHECK(inputLayout == "TND", "inputLayout is '", inputLayout, "'; expected TND");
  const auto all = options(realShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens,
                           nextTokens, sparseMode, pseType);
  const Alibi alibi(realShift, pseType, qStartIdx, kvStartIdx);
  const auto whole_query = with_rope(query, queryRope), whole_key = with_rope(key, keyRope);
  const auto parts = sequences(actualSeqQLen, actualSeqKvLen);
  for (const auto& s : parts) {
    const auto a = of_sequence(all, alibi, s, parts, whole_query, whole_key, value);
    if (a.query.numel() == 0) continue;
    const auto result = attend(a, softmaxOut.has_value());
    tokens(attentionOut, s.query_begin, s.query_end).copy_(result.out);
    const auto of = [&](const Optional& statistic) {
      return statistic.has_value() ? Optional(tokens(*statistic, s.query_begin, s.query_end)) : std::nullopt;
    };
    set_statistics(result, softmaxOut.has_value(), of(softmaxMax), of(softmaxSum));
  }
}

void FlashAttentionScoreGradV3(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& dy, const Optional& pseShift, const Optional& dropMask,
                               const Optional&, const Optional& attenMask, const Optional& softmaxMax,
                               const Optional& softmaxSum, const Optional&, const Optional& attentionIn,
                               const Optional& sink, at::OptionalIntArrayRef prefix,
                               at::OptionalIntArrayRef qStartIdx, at::OptionalIntArrayRef kvStartIdx,
                               double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
                               int64_t headNum, std::string_view inputLayout, int64_t, int64_t sparseMode,
                               int64_t pseType, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv,
                               const Optional& dpse, const Optional& dsink) {
  auto a = options(pseShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens, nextTokens,
                   sparseMode, pseType);
  const int64_t size = head_size_of(query, inputLayout, headNum);
  a.query = heads_first(query, inputLayout, size);
  a.key = heads_first(key, inputLayout, size);
  const int64_t value_size = head_size_of(value, inputLayout, a.key.size(1));
  a.value = heads_first(value, inputLayout, value_size);
  const Alibi alibi(pseShift, pseType, qStartIdx, kvStartIdx);
  a.shift = alibi.shift(a, std::nullopt);
  TORCH_CHECK(attentionIn.has_value(), "the gradient of attention needs attentionIn");
  const auto wants = [](const Optional& t) { return t.has_value() && t->numel() > 0; };
  const Placement placement({dq, dk, dv});
  const AttentionResult result{
      heads_first(*attentionIn, inputLayout, value_size), log_sum_exp_of(softmaxMax, softmaxSum), {}};
  const bool wants_shift = wants(dpse) && !alibi.slopes.has_value();
  if (wants(dpse) && !wants_shift) dpse->zero_();  // slopes are constants
  const auto gradient = attend_backward(a, heads_first(dy, inputLayout, value_size), result, wants_shift,
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
    at::OptionalIntArrayRef actualSeqQLen, at::OptionalIntArrayRef actualSeqKvLen,
    at::OptionalIntArrayRef qStartIdx, at::OptionalIntArrayRef kvStartIdx, double scaleValue, double keepProb,
    int64_t preTokens, int64_t nextTokens, int64_t, std::string_view, int64_t, int64_t sparseMode,
    int64_t pseType, std::string_view, at::Tensor& dq, const Optional& dqRope, at::Tensor& dk,
    const Optional& dkRope, at::Tensor& dv, const Optional& dpse, const Optional& dsink) {
  TORCH_CHECK(queryRope.has_value() == (dqRope.has_value() && dqRope->numel() > 0) &&
                  keyRope.has_value() == (dkRope.has_value() && dkRope->numel() > 0),
              "dqRope and dkRope belong to queryRope and keyRope");
  TORCH_CHECK(attentionIn.has_value(), "the gradient of attention needs attentionIn");
  const auto all = options(pseShift, dropMask, attenMask, sink, prefix, scaleValue, keepProb, preTokens,
                           nextTokens, sparseMode, pseType);
  const auto log_sum_exp = log_sum_exp_of(softmaxMax, softmaxSum);  // [T, N]
  const bool wants_sink = dsink.has_value() && dsink->numel() > 0 && all.sink.has_value();
  const Alibi alibi(pseShift, pseType, qStartIdx, kvStartIdx);
  const bool has_shift = dpse.has_value() && dpse->numel() > 0;
  const bool wants_shift = has_shift && !alibi.slopes.has_value();  // slopes are constants
  for (auto* t : {&dq, &dk, &dv}) t->zero_();
  for (const auto* t : {&dqRope, &dkRope}) {
    if (t->has_value()) (*t)->zero_();
  }
  if (wants_sink) dsink->zero_();
  if (has_shift) dpse->zero_();
  const auto whole_query = with_rope(query, queryRope), whole_key = with_rope(key, keyRope);
  // The gradient of heads with a rotated part goes to both of its tensors.
  const auto put = [](const at::Tensor& gradient, const at::Tensor& to, const Optional& to_rope,
                      int64_t begin, int64_t end) {
    const int64_t size = to.size(-1);
    tokens(to, begin, end).copy_(gradient.slice(-1, 0, size));
    if (to_rope.has_value() && to_rope->numel() > 0)
      tokens(*to_rope, begin, end).copy_(gradient.slice(-1, size));
  };
  const auto parts = sequences(actualSeqQLen, actualSeqKvLen);
  for (const auto& s : parts) {
    const auto a = of_sequence(all, alibi, s, parts, whole_query, whole_key, value);
    if (a.query.numel() == 0) continue;
    const AttentionResult result{tokens(*attentionIn, s.query_begin, s.query_end),
                                 log_sum_exp.slice(0, s.query_begin, s.query_end).t().unsqueeze(0),
                                 {}};
    const auto gradient =
        attend_backward(a, tokens(dy, s.query_begin, s.query_end), result, wants_shift, wants_sink);
    put(gradient.query, dq, dqRope, s.query_begin, s.query_end);
    put(gradient.key, dk, dkRope, s.key_begin, s.key_end);
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
