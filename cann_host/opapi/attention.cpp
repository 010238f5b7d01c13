// Flash attention and its gradient: own kernel for few queries, ATen's CPU flash kernels where they take the
// call, else plain matrix products.
#include "cann_host/opapi/attention.h"

#include <ATen/CPUFunctions.h>

#include <cmath>
#include <limits>

#include "cann_host/kernels/attention.h"
#include "cann_host/opapi/attention_blocks.h"
#include "cann_host/opapi/fused.h"

namespace cann_host {
namespace {

constexpr int64_t kAllTokens = std::numeric_limits<int32_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Where a query must not see a key, as far as numbers say so and not a mask; or nothing.
at::Tensor hidden_by_numbers(const Attention& a) {
  const int64_t rows = a.query.size(2), columns = a.key.size(2);
  const auto all = [&] { return at::ones({rows, columns}, at::kBool); };
  // A band about the diagonal that starts `shift` columns to the right.
  const auto band = [&](int64_t shift) {
    return all().triu(shift + a.after + 1).logical_or_(all().tril(shift - a.before - 1));
  };
  switch (a.sparse_mode) {
    case 0:  // the band counts only beside a mask, from the upper left corner
      return a.hidden.has_value() && (a.before < kAllTokens || a.after < kAllTokens) ? band(0) : at::Tensor();
    case 1:
    case 5:
      return {};
    case 2:
      return all().triu(1);
    case 3:
      return all().triu(columns - rows + 1);
    case 4:
      return band(columns - rows);
    case 6: {
      TORCH_CHECK(static_cast<int64_t>(a.prefix.size()) == a.query.size(0), "sparseMode 6 needs prefix with ",
                  a.query.size(0), " numbers, one for each sequence; got ", a.prefix.size());
      const auto seen = at::arange(columns).lt(at::tensor(a.prefix, at::kLong).view({-1, 1, 1, 1}));
      return all().triu(columns - rows + 1).logical_and(seen.logical_not());
    }
    default:
      TORCH_CHECK(false, "sparseMode is ", a.sparse_mode, "; cann_host has 0 to 6");
  }
}

/// Everything that hides; undefined if nothing does. From mode 2 on masks are compressed and not read.
at::Tensor hidden_of(const Attention& a, bool causal_is_done) {
  at::Tensor hidden = causal_is_done && a.is_causal() ? at::Tensor() : hidden_by_numbers(a);
  const bool reads_mask = a.sparse_mode < 2 || a.sparse_mode == 5;
  if (!reads_mask || !a.hidden.has_value()) return hidden;
  const auto mask = a.hidden->to(at::kBool);
  return hidden.defined() ? hidden.logical_or(mask) : mask;
}

/// What is added to the scores after scaling; undefined if nothing is.
at::Tensor bias_of(const Attention& a, at::ScalarType dtype, bool causal_is_done) {
  at::Tensor bias;
  if (a.shift.has_value())
    bias = (a.shift_is_scaled ? a.shift->to(at::kFloat) * a.scale : *a.shift).to(dtype);
  const auto hidden = hidden_of(a, causal_is_done);
  if (!hidden.defined()) return bias;
  if (!bias.defined()) bias = at::zeros({1}, dtype);
  return at::where(hidden, at::scalar_tensor(-kInfinity, dtype), bias);
}

bool flash_takes(const Attention& a) {
  for (const auto* t : {&a.query, &a.key, &a.value}) {
    if (t->stride(-1) != 1 || t->numel() == 0) return false;
  }
  // Its bias has query's dtype; distances would lose too much in 16 bits.
  const bool bias_fits = !a.shift.has_value() || a.shift->scalar_type() == a.query.scalar_type();
  return a.keep == 1 && bias_fits && a.query.size(3) == a.value.size(3) && a.value.size(1) == a.key.size(1);
}

/// A bias as the flash kernel wants it: two or four dimensions.
std::optional<at::Tensor> flash_bias(const Attention& a) {
  auto bias = bias_of(a, a.query.scalar_type(), /*causal_is_done=*/true);
  if (!bias.defined()) return std::nullopt;
  return bias.dim() == 3 ? bias.unsqueeze(0) : bias;
}

/// Softmax where a row that sees nothing is zero.
at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& log_sum_exp) {
  const auto visible = log_sum_exp.isneginf().logical_not_().unsqueeze(-1);
  return (scores - log_sum_exp.unsqueeze(-1)).exp_().where(visible, at::scalar_tensor(0.0f));
}

at::Tensor per_query_head(const Attention& a, const at::Tensor& tensor) {
  const auto wide = tensor.to(at::kFloat);
  return a.groups() == 1 ? wide : wide.repeat_interleave(a.groups(), 1);
}

/// Scores before softmax, in float32, with one key head for each query head.
at::Tensor scores_of(const Attention& a, const at::Tensor& key) {
  auto result = at::matmul(a.query.to(at::kFloat), key.transpose(-1, -2)).mul_(a.scale);
  if (const auto bias = bias_of(a, at::kFloat, false); bias.defined()) result = result + bias;
  return result;
}

/// The largest score of each query, of some queries at a time.
at::Tensor maxima_of(const Attention& a) {
  constexpr int64_t together = 128;
  const auto key = per_query_head(a, a.key).transpose(-1, -2);
  const auto bias = bias_of(a, at::kFloat, false);
  std::vector<at::Tensor> maxima;
  for (int64_t first = 0; first < a.query.size(2); first += together) {
    const auto rows = [&](const at::Tensor& t) { return t.slice(-2, first, first + together); };
    auto scores = at::matmul(rows(a.query).to(at::kFloat), key).mul_(a.scale);
    if (bias.defined()) scores.add_(bias.dim() > 1 && bias.size(-2) > 1 ? rows(bias) : bias);
    maxima.push_back(scores.amax(-1));
  }
  return at::cat(maxima, -1);
}

/// 0 where dropout drops, 1 / keep elsewhere.
at::Tensor dropout_factor(const Attention& a, at::IntArrayRef sizes) {
  const auto bits = a.dropped->contiguous().view(-1).unsqueeze(1);
  const auto shifts = at::arange(8, at::kByte);
  const auto kept = bits.bitwise_right_shift(shifts).bitwise_and_(1).view(-1);
  const int64_t begin = a.first_dropped, end = begin + c10::multiply_integers(sizes);
  return kept.slice(0, begin, end).view(sizes).to(at::kFloat).div_(a.keep);
}

/// A sink takes its share of a finished softmax.
AttentionResult with_sink(const Attention& a, AttentionResult result) {
  if (!a.sink.has_value()) return result;
  const auto sink = a.sink->to(at::kFloat).view({1, -1, 1});
  const auto log_sum_exp = at::logaddexp(result.log_sum_exp, sink);
  const auto share = (result.log_sum_exp - log_sum_exp).exp_().unsqueeze(-1);
  return {(result.out * share).to(result.out.scalar_type()), log_sum_exp, at::maximum(result.maximum, sink)};
}

AttentionResult attend_by_products(const Attention& a) {
  const auto scores = scores_of(a, per_query_head(a, a.key));
  const auto log_sum_exp = scores.logsumexp(-1);
  auto weights = weights_of(scores, log_sum_exp);
  if (a.keep != 1 && a.dropped.has_value()) weights = weights * dropout_factor(a, weights.sizes());
  const auto out = at::matmul(weights, per_query_head(a, a.value)).to(a.query.scalar_type());
  return with_sink(a, {out, log_sum_exp, scores.amax(-1)});
}

void set_strides(int64_t (&target)[3], const at::Tensor& t) { std::copy_n(t.strides().begin(), 3, target); }

at::Tensor dense_heads(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

}  // namespace

at::Tensor heads_first(const at::Tensor& tensor, std::string_view layout, int64_t head_size) {
  if (layout == "BNSD") return tensor;
  if (layout == "BSND") return tensor.transpose(1, 2);
  TORCH_CHECK(layout == "BSH" || layout == "SBH", "inputLayout is '", layout,
              "'; known: BNSD, BSND, BSH, SBH, TND");
  const auto batch_first = layout == "SBH" ? tensor.transpose(0, 1) : tensor;
  return batch_first.unflatten(2, {-1, head_size}).transpose(1, 2);
}

bool decodes(const Attention& a) {
  return a.keep == 1 && a.query.numel() > 0 && a.key.numel() > 0 &&
         a.query.size(2) <= kernels::most_decode_queries &&
         a.query.size(2) * a.groups() <= kernels::most_decode_rows;
}

AttentionResult decode(const Attention& a, const KeyCache& cache) {
  const int64_t batch = a.query.size(0), heads = a.query.size(1), queries = a.query.size(2);
  const bool paged = cache.block_table.defined();
  const int64_t keys = paged ? cache.block_table.size(1) * cache.block_size : a.key.size(2);
  const at::Tensor query = dense_heads(a.query), key = dense_heads(a.key), value = dense_heads(a.value);
  const auto rows = [&] { return at::empty({batch, heads, queries}, query.options().dtype(at::kFloat)); };
  AttentionResult result{at::empty({batch, heads, queries, value.size(3)}, query.options()), rows(), rows()};
  const bool causal = a.sparse_mode == 3 || (a.sparse_mode == 2 && queries == keys);
  Attention others = a;
  if (causal) {  // its mask is compressed and not read
    others.sparse_mode = 0;
    others.hidden.reset();
  }
  at::Tensor bias = bias_of(others, at::kFloat, /*causal_is_done=*/false);
  if (bias.defined()) {
    const int64_t columns = bias.size(-1) == 1 ? keys : bias.size(-1);
    bias = bias.expand({batch, heads, queries, columns});
    if (columns > 1 && bias.stride(-1) != 1) bias = bias.contiguous();
  }
  const at::Tensor sink = dense(a.sink, at::kFloat),
                   table = paged ? cache.block_table.contiguous() : at::Tensor();
  kernels::DecodeAttention call{};
  call.type = kernel_type(query);
  call.query = query.const_data_ptr();
  call.key = key.const_data_ptr();
  call.value = value.const_data_ptr();
  call.out = result.out.mutable_data_ptr();
  call.log_sum_exp = result.log_sum_exp.mutable_data_ptr<float>();
  call.maximum = result.maximum.mutable_data_ptr<float>();
  set_strides(call.query_strides, query);
  set_strides(call.key_strides, key);
  set_strides(call.value_strides, value);
  set_strides(call.out_strides, result.out);
  call.batch = batch;
  call.heads = heads;
  call.key_heads = key.size(1);
  call.queries = queries;
  call.keys = keys;
  call.head_size = query.size(3);
  call.value_size = value.size(3);
  call.scale = static_cast<float>(a.scale);
  call.key_lengths = cache.lengths.empty() ? nullptr : cache.lengths.data();
  call.block_table = paged ? table.const_data_ptr<int32_t>() : nullptr;
  call.blocks_per_sequence = paged ? table.size(1) : 0;
  call.block_size = cache.block_size;
  call.bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  if (bias.defined()) set_strides(call.bias_strides, bias);
  call.causal = causal;
  call.sinks = sink.defined() ? sink.const_data_ptr<float>() : nullptr;
  kernels::decode_attention(call);
  return result;
}

AttentionResult attend(const Attention& a, bool wants_maximum) {
  TORCH_CHECK(a.key.size(1) > 0 && a.query.size(1) % a.key.size(1) == 0, "query has ", a.query.size(1),
              " heads and key ", a.key.size(1), "; the first must be a multiple of the second");
  if (decodes(a)) return decode(a, {});
  if (a.keep == 1 && takes_blocks(a, wants_maximum)) {
    auto bias = bias_of(a, at::kFloat, /*causal_is_done=*/true);
    if (bias.defined()) {
      bias = bias.expand({a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)});
      if (bias.stride(3) != 1) bias = bias.contiguous();
    }
    return with_sink(a, attend_in_blocks(a, bias));
  }
  if (!flash_takes(a)) return attend_by_products(a);
  const auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      a.query, a.key, a.value, 0.0, a.is_causal(), flash_bias(a), a.scale);
  return with_sink(a, {out, log_sum_exp, wants_maximum ? maxima_of(a) : log_sum_exp});
}

AttentionGradient attend_backward(const Attention& a, const at::Tensor& grad, const AttentionResult& result,
                                  bool wants_shift, bool wants_sink) {
  AttentionGradient gradient;
  if (wants_sink) {
    const auto share = (a.sink->to(at::kFloat).view({1, -1, 1}) - result.log_sum_exp).exp_();
    const auto along = (grad.to(at::kFloat) * result.out.to(at::kFloat)).sum(-1);
    gradient.sink = (share * along).sum(at::IntArrayRef{0, 2}).neg_();
  }
  if (a.keep == 1 && !wants_shift && takes_blocks(a) &&
      !bias_of(a, at::kFloat, /*causal_is_done=*/true).defined()) {
    const auto sink = gradient.sink;
    gradient = attend_backward_in_blocks(a, grad, result);
    gradient.sink = sink;
    return gradient;
  }
  if (flash_takes(a) && !wants_shift) {
    // Rows that see nothing (-inf) have no gradient: exp(-inf - inf) is 0, where exp(-inf + inf) is not a
    // number.
    const auto finite = result.log_sum_exp.masked_fill(result.log_sum_exp.isneginf(), kInfinity);
    // The layout of the forward kernel: [B, S, N] transposed.
    const auto log_sum_exp = finite.transpose(1, 2).contiguous().transpose(1, 2);
    std::tie(gradient.query, gradient.key, gradient.value) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, a.query, a.key, a.value, result.out,
                                                                 log_sum_exp, 0.0, a.is_causal(),
                                                                 flash_bias(a), a.scale);
    return gradient;
  }
  const auto key = per_query_head(a, a.key);
  const auto weights = weights_of(scores_of(a, key), result.log_sum_exp);
  const auto wide_grad = grad.to(at::kFloat);
  auto dweights = at::matmul(wide_grad, per_query_head(a, a.value).transpose(-1, -2));
  auto dropped = weights;
  if (a.keep != 1 && a.dropped.has_value()) {
    const auto factor = dropout_factor(a, weights.sizes());
    dropped = weights * factor;
    dweights = dweights * factor;
  }
  const auto along = (wide_grad * result.out.to(at::kFloat)).sum(-1, true);
  const auto dscores = weights * (dweights - along);
  const auto of_key_head = [&](const at::Tensor& t) {
    return a.groups() == 1 ? t : t.unflatten(1, {a.key.size(1), a.groups()}).sum(2);
  };
  gradient.query = at::matmul(dscores, key).mul_(a.scale);
  gradient.key = of_key_head(at::matmul(dscores.transpose(-1, -2), a.query.to(at::kFloat)).mul_(a.scale));
  gradient.value = of_key_head(at::matmul(dropped.transpose(-1, -2), wide_grad));
  if (wants_shift) gradient.shift = a.shift_is_scaled ? dscores * a.scale : dscores;
  return gradient;
}

}  // namespace cann_host
