// CANN's attention operators for inference: caches, sequences of different lengths, paged keys and values.
#include "cann_host/opapi/attention.h"
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// What int8 (or int4) keys or values stand for: (number + offset) * scale, each of them for
enum AntiquantMode : int64_t {
  kChannel = 0,    // one of [N, D], or all ([1])
  kToken = 1,      // a token: [B, S]
  kHead = 2,       // a head: [N]
  kTokenHead = 3,  // a token of a head: [B, N, S]
  kPage = 4,       // a token of a paged cache: [blocks, block size]
  kPageHead = 5,   // a token of a head of a paged cache: [blocks, N, block size]
};

struct Antiquant {
  Optional scale, offset;  // no scale: the numbers are not quantized
  int64_t mode = kChannel;
};

/// One call of the family, whatever the operator.
struct Inference {
  at::Tensor query;
  std::vector<at::Tensor> key, value;  // one for all sequences, or one each
  Optional shift, hidden, query_rope, key_rope, sink;
  Antiquant of_key, of_value;
  Optional key_prefix, value_prefix;  // [1, …] in the layout of keys: they come first in each sequence
  std::optional<int64_t> prefix_length;
  at::IntArrayRef query_lengths, key_lengths;  // empty: whole
  at::Tensor block_table;
  int64_t block_size = 0;
  int64_t heads = 1, key_heads = 1;
  double scale = 1;
  int64_t before = 0, after = 0, sparse_mode = 0;
  std::string_view layout;

  bool is_flat() const { return layout == "BSH"; }
  bool is_ragged() const { return layout == "TND"; }
  bool is_paged() const { return block_table.defined(); }
  int64_t batch() const { return is_ragged() ? static_cast<int64_t>(query_lengths.size()) : query.size(0); }
};

void refuse(std::initializer_list<std::pair<const char*, const Optional*>> arguments) {
  for (const auto& [name, tensor] : arguments) {
    TORCH_CHECK(!tensor->has_value(), name, " is not supported by cann_host; leave it out");
  }
}

/// [B, N, S, D] of a tensor that is not ragged.
at::Tensor by_heads(const at::Tensor& t, std::string_view layout, int64_t heads) {
  const auto plain = layout == "BNSD_BSND" ? std::string_view("BNSD") : layout;
  return heads_first(t, plain, plain == "BSH" ? t.size(2) / heads : 0);
}

/// [blocks, N, block size, D] of a paged cache.
at::Tensor blocks_by_heads(const at::Tensor& cache, int64_t heads) {
  if (cache.dim() == 4) return cache;
  TORCH_CHECK(cache.dim() == 3, "a paged cache is [blocks, blockSize, H] or [blocks, N, blockSize, D]; got ",
              cache.sizes());
  return cache.unflatten(2, {heads, -1}).transpose(1, 2);
}

/// Keys or values of one sequence, [1, N, length, D].
at::Tensor cached(const Inference& call, const std::vector<at::Tensor>& cache, int64_t sequence,
                  int64_t begin, int64_t length) {
  if (call.is_paged()) {
    const int64_t count = (length + call.block_size - 1) / call.block_size;
    const auto blocks = call.block_table[sequence].slice(0, 0, count);
    const auto gathered = blocks_by_heads(cache[0], call.key_heads).index_select(0, blocks);
    return gathered.transpose(0, 1).flatten(1, 2).slice(1, 0, length).unsqueeze(0);
  }
  if (call.is_ragged()) return cache[0].slice(0, begin, begin + length).transpose(0, 1).unsqueeze(0);
  const bool one_each = cache.size() > 1;
  const auto all = by_heads(cache[one_each ? sequence : 0], call.layout, call.key_heads);
  const int64_t place = one_each ? 0 : sequence;
  return all.slice(0, place, place + 1).slice(2, 0, length);
}

/// Numbers of an Antiquant for the keys or values of one sequence, to be combined with [1, N, length, D].
at::Tensor numbers_for(const Inference& call, const at::Tensor& numbers, int64_t mode, int64_t sequence,
                       int64_t length) {
  const auto wide = numbers.to(at::kFloat);
  const auto of_batch = [&](at::IntArrayRef sizes) { return wide.reshape(sizes)[sequence]; };
  const auto paged = [&](const at::Tensor& by_block) {  // [blocks, N, block size]
    TORCH_CHECK(call.is_paged(), "antiquant mode ", mode, " is for paged keys and values");
    const auto blocks =
        call.block_table[sequence].slice(0, 0, (length + call.block_size - 1) / call.block_size);
    return by_block.index_select(0, blocks).transpose(0, 1).flatten(1, 2).slice(1, 0, length);
  };
  TORCH_CHECK(!call.is_ragged() || mode == kChannel || mode == kHead, "antiquant mode ", mode,
              " is not for layout TND; cann_host has 0 and 2 there");
  switch (mode) {
    case kChannel:
      return wide.numel() == 1 ? wide.reshape({1, 1, 1, 1}) : wide.reshape({1, call.key_heads, 1, -1});
    case kToken:
      return of_batch({call.batch(), -1}).slice(0, 0, length).view({1, 1, length, 1});
    case kHead:
      return wide.reshape({1, call.key_heads, 1, 1});
    case kTokenHead:
      return of_batch({call.batch(), call.key_heads, -1}).slice(1, 0, length).unsqueeze(0).unsqueeze(-1);
    case kPage:
      return paged(wide.reshape({-1, 1, call.block_size})).unsqueeze(0).unsqueeze(-1);
    case kPageHead:
      return paged(wide.reshape({-1, call.key_heads, call.block_size})).unsqueeze(0).unsqueeze(-1);
    default:
      TORCH_CHECK(false, "antiquant mode is ", mode, "; known: 0 to 5");
  }
}

at::Tensor dequantized(const Inference& call, const at::Tensor& stored, const Antiquant& quant,
                       int64_t sequence) {
  if (!quant.scale.has_value()) return stored;
  const int64_t length = stored.size(2);
  auto values = as_int8(stored.contiguous()).to(at::kFloat);
  if (quant.offset.has_value())
    values = values + numbers_for(call, *quant.offset, quant.mode, sequence, length);
  return (values * numbers_for(call, *quant.scale, quant.mode, sequence, length))
      .to(call.query.scalar_type());
}

/// Keys or values of one sequence, as numbers and behind the prefix that all share.
at::Tensor complete(const Inference& call, const at::Tensor& stored, const Antiquant& quant,
                    const Optional& prefix, int64_t sequence) {
  const at::Tensor own = dequantized(call, stored, quant, sequence);
  if (!prefix.has_value()) return own;
  TORCH_CHECK(!quant.scale.has_value() || quant.mode == kChannel || quant.mode == kHead, "antiquant mode ",
              quant.mode, " has no numbers for a shared prefix; cann_host takes one with modes 0 and 2");
  auto first = by_heads(*prefix, call.layout, call.key_heads);
  if (call.prefix_length.has_value()) first = first.slice(2, 0, *call.prefix_length);
  return at::cat({dequantized(call, first, quant, 0), own}, 2);
}

Attention options(const Inference& call) {
  Attention a;
  a.shift = call.shift;
  a.hidden = call.hidden;
  if (a.hidden.has_value()) a.hidden = a.hidden->to(at::kBool);
  a.sink = call.sink;
  a.scale = call.scale;
  a.before = call.before;
  a.after = call.after;
  a.sparse_mode = call.sparse_mode;
  a.shift_is_scaled = false;
  return a;
}

/// Where sequence number i of all lies.
struct Span {
  int64_t query_begin, query_length, key_begin, key_length;
};

std::vector<Span> spans(const Inference& call) {
  std::vector<Span> result;
  int64_t query_begin = 0, key_begin = 0;
  const auto pick = [](at::IntArrayRef list, int64_t i, int64_t otherwise) {
    return list.empty() ? otherwise : list[list.size() == 1 ? 0 : i];
  };
  for (int64_t i = 0; i < call.batch(); ++i) {
    Span s{};
    if (call.is_ragged()) {
      s.query_begin = query_begin;
      s.query_length = call.query_lengths[i] - query_begin;
      query_begin = call.query_lengths[i];
      TORCH_CHECK(static_cast<int64_t>(call.key_lengths.size()) == call.batch(),
                  "layout TND needs as many key lengths as query lengths");
      // A paged cache has a length each, a ragged one ends.
      s.key_begin = call.is_paged() ? 0 : key_begin;
      s.key_length = call.is_paged() ? call.key_lengths[i] : call.key_lengths[i] - key_begin;
      key_begin = call.key_lengths[i];
    } else {
      s.query_length = pick(call.query_lengths, i, by_heads(call.query, call.layout, call.heads).size(2));
      const int64_t whole =
          call.is_paged()
              ? call.block_table.size(1) * call.block_size
              : by_heads(call.key[call.key.size() > 1 ? i : 0], call.layout, call.key_heads).size(2);
      s.key_length = pick(call.key_lengths, i, whole);
    }
    result.push_back(s);
  }
  return result;
}

/// The part of a mask that belongs to one sequence.
Optional part_of(const Optional& t, int64_t i, int64_t batch, int64_t queries, int64_t keys) {
  if (!t.has_value()) return t;
  auto part = *t;
  if (part.dim() >= 3 && part.size(0) == batch && batch > 1) part = part.slice(0, i, i + 1);
  if (part.dim() == 3) part = part.unsqueeze(1);
  if (part.dim() >= 2 && part.size(-2) > 1) part = part.slice(-2, 0, queries);
  if (part.size(-1) > 1) part = part.slice(-1, 0, keys);
  return part;
}

/// All sequences by the decode kernel at once, where that takes them.
std::optional<AttentionResult> decode_all(const Inference& call, const std::vector<Span>& parts) {
  if (call.is_ragged() || call.key.size() > 1 || call.query_rope.has_value() || parts.empty()) return {};
  if (call.of_key.scale.has_value() || call.key_prefix.has_value()) return {};
  if (call.sparse_mode == 2 || call.sparse_mode == 4) return {};
  Attention a = options(call);
  a.query = by_heads(call.query, call.layout, call.heads);
  for (const auto& s : parts) {
    if (s.query_length != a.query.size(2)) return {};
  }
  a.key = call.is_paged() ? blocks_by_heads(call.key[0], call.key_heads)
                          : by_heads(call.key[0], call.layout, call.key_heads);
  a.value = call.is_paged() ? blocks_by_heads(call.value[0], call.key_heads)
                            : by_heads(call.value[0], call.layout, call.key_heads);
  if (!decodes(a) || (call.sparse_mode == 0 && a.hidden.has_value() && call.before < INT32_MAX)) return {};
  for (auto* t : {&a.shift, &a.hidden}) {
    if (t->has_value() && (*t)->dim() == 3) *t = (*t)->unsqueeze(1);
  }
  KeyCache cache;
  for (const auto& s : parts) cache.lengths.push_back(s.key_length);
  cache.block_table = call.block_table;
  cache.block_size = call.block_size;
  return decode(a, cache);
}

/// A view of an output as [B, N, S, …]; D is its last dimension.
at::Tensor output_by_heads(const Inference& call, const at::Tensor& out) {
  return call.layout == "BNSD_BSND" ? out.transpose(1, 2) : by_heads(out, call.layout, call.heads);
}

void run(const Inference& call, const at::Tensor& out, const at::Tensor& log_sum_exp) {
  const auto parts = spans(call);
  if (const auto result = decode_all(call, parts)) {
    output_by_heads(call, out).copy_(result->out);
    if (log_sum_exp.defined()) log_sum_exp.copy_(result->log_sum_exp.unsqueeze(-1));
    return;
  }
  if (!call.is_ragged()) out.zero_();  // queries beyond a sequence's length
  for (int64_t i = 0; i < call.batch(); ++i) {
    const Span& s = parts[i];
    if (s.query_length == 0) continue;
    Attention a = options(call);
    const auto queries_of = [&](const at::Tensor& t) {
      if (call.is_ragged())
        return t.slice(0, s.query_begin, s.query_begin + s.query_length).transpose(0, 1).unsqueeze(0);
      return by_heads(t, call.layout, call.heads).slice(0, i, i + 1).slice(2, 0, s.query_length);
    };
    a.query = queries_of(call.query);
    a.key =
        complete(call, cached(call, call.key, i, s.key_begin, s.key_length), call.of_key, call.key_prefix, i);
    a.value = complete(call, cached(call, call.value, i, s.key_begin, s.key_length), call.of_value,
                       call.value_prefix, i);
    if (call.query_rope.has_value()) {
      a.query = at::cat({a.query, queries_of(*call.query_rope)}, -1);
      a.key = at::cat({a.key, cached(call, {*call.key_rope}, i, s.key_begin, s.key_length)}, -1);
    }
    const bool whole_mask = call.sparse_mode < 2;
    a.hidden = whole_mask ? part_of(a.hidden, i, call.batch(), s.query_length, a.key.size(2)) : a.hidden;
    a.shift = part_of(a.shift, i, call.batch(), s.query_length, a.key.size(2));
    const auto result = attend(a, /*wants_maximum=*/false);
    const auto place = [&](const at::Tensor& t) {
      if (call.is_ragged())
        return t.slice(0, s.query_begin, s.query_begin + s.query_length).transpose(0, 1).unsqueeze(0);
      return t.slice(0, i, i + 1).slice(2, 0, s.query_length);
    };
    place(call.is_ragged() ? out : output_by_heads(call, out)).copy_(result.out);
    if (log_sum_exp.defined()) place(log_sum_exp).copy_(result.log_sum_exp.unsqueeze(-1));
  }
}

/// Scales (and offsets) of keys and of values: tensors of their own, or both in one.
void set_antiquant(Inference& call, const Optional& scale, const Optional& offset, int64_t mode,
                   Antiquant key, Antiquant value) {
  if (scale.has_value()) {
    const auto part = [](const Optional& both, int64_t i) {
      return both.has_value() ? Optional((*both)[i]) : std::nullopt;
    };
    key = {part(scale, 0), part(offset, 0), mode};
    value = {part(scale, 1), part(offset, 1), mode};
  }
  const bool is_quantized = !call.key[0].is_floating_point();  // int8, or int4 in int32
  TORCH_CHECK(is_quantized == key.scale.has_value() && is_quantized == value.scale.has_value(),
              "scales of keys and values belong to int8 and int4, and these need them; keys are ",
              call.key[0].scalar_type());
  call.of_key = key;
  call.of_value = value;
}

/// What every operator of the family says; fields that only some have follow.
Inference inference(const at::Tensor& query, std::vector<at::Tensor> key, std::vector<at::Tensor> value,
                    const Optional& shift, const Optional& hidden, at::OptionalIntArrayRef key_lengths,
                    int64_t heads, int64_t key_heads, double scale, std::string_view layout) {
  Inference call;
  call.query = query;
  call.key = std::move(key);
  call.value = std::move(value);
  call.shift = shift;
  call.hidden = hidden;
  call.key_lengths = key_lengths.value_or(at::IntArrayRef());
  call.heads = heads;
  call.key_heads = key_heads == 0 ? heads : key_heads;
  call.scale = scale;
  call.before = call.after = INT32_MAX;
  call.layout = layout;
  return call;
}

}  // namespace

void PromptFlashAttentionV3(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const Optional& pseShift, const Optional& attenMask,
                            at::OptionalIntArrayRef actualSeqLengths,
                            at::OptionalIntArrayRef actualSeqLengthsKv, const Optional& deqScale1,
                            const Optional& quantScale1, const Optional& deqScale2,
                            const Optional& quantScale2, const Optional& quantOffset2, int64_t numHeads,
                            double scaleValue, int64_t preTokens, int64_t nextTokens,
                            std::string_view inputLayout, int64_t numKeyValueHeads, int64_t sparseMode,
                            int64_t, at::Tensor& attentionOut) {
  refuse({{"deqScale1", &deqScale1},
          {"quantScale1", &quantScale1},
          {"deqScale2", &deqScale2},
          {"quantScale2", &quantScale2},
          {"quantOffset2", &quantOffset2}});
  auto call = inference(query, {key}, {value}, pseShift, attenMask, actualSeqLengthsKv, numHeads,
                        numKeyValueHeads, scaleValue, inputLayout);
  call.query_lengths = actualSeqLengths.value_or(at::IntArrayRef());
  call.before = preTokens;
  call.after = nextTokens;
  call.sparse_mode = sparseMode;
  run(call, attentionOut, {});
}

void IncreFlashAttentionV4(const at::Tensor& query, const std::vector<at::Tensor>& key,
                           const std::vector<at::Tensor>& value, const Optional& pseShift,
                           const Optional& attenMask, at::OptionalIntArrayRef actualSeqLengths,
                           const Optional& dequantScale1, const Optional& quantScale1,
                           const Optional& dequantScale2, const Optional& quantScale2,
                           const Optional& quantOffset2, const Optional& antiquantScale,
                           const Optional& antiquantOffset, const Optional& blockTable,
                           const Optional& kvPaddingSize, int64_t numHeads, double scaleValue,
                           std::string_view inputLayout, int64_t numKeyValueHeads, int64_t blockSize, int64_t,
                           at::Tensor& attentionOut) {
  refuse({{"dequantScale1", &dequantScale1},
          {"quantScale1", &quantScale1},
          {"dequantScale2", &dequantScale2},
          {"quantScale2", &quantScale2},
          {"quantOffset2", &quantOffset2},
          {"kvPaddingSize", &kvPaddingSize}});
  auto call = inference(query, key, value, pseShift, attenMask, actualSeqLengths, numHeads, numKeyValueHeads,
                        scaleValue, inputLayout);
  set_antiquant(call, antiquantScale, antiquantOffset, kChannel, {}, {});
  call.block_table = blockTable.value_or(at::Tensor());
  call.block_size = blockSize;
  run(call, attentionOut, {});
}

void FusedInferAttentionScoreV4(
    const at::Tensor& query, const std::vector<at::Tensor>& key, const std::vector<at::Tensor>& value,
    const Optional& pseShift, const Optional& attenMask, at::OptionalIntArrayRef actualSeqLengths,
    at::OptionalIntArrayRef actualSeqLengthsKv, const Optional& deqScale1, const Optional& quantScale1,
    const Optional& deqScale2, const Optional& quantScale2, const Optional& quantOffset2,
    const Optional& antiquantScale, const Optional& antiquantOffset, const Optional& blockTable,
    const Optional& queryPaddingSize, const Optional& kvPaddingSize, const Optional& keyAntiquantScale,
    const Optional& keyAntiquantOffset, const Optional& valueAntiquantScale,
    const Optional& valueAntiquantOffset, const Optional& keySharedPrefix, const Optional& valueSharedPrefix,
    at::OptionalIntArrayRef actualSharedPrefixLen, const Optional& queryRope, const Optional& keyRope,
    const Optional& keyRopeAntiquantScale, const Optional& dequantScaleQuery, const Optional& learnableSink,
    int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, std::string_view inputLayout,
    int64_t numKeyValueHeads, int64_t sparseMode, int64_t, int64_t blockSize, int64_t antiquantMode,
    bool softmaxLseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode, int64_t,
    at::Tensor& attentionOut, at::Tensor& softmaxLse) {
  refuse({{"deqScale1", &deqScale1},
          {"quantScale1", &quantScale1},
          {"deqScale2", &deqScale2},
          {"quantScale2", &quantScale2},
          {"quantOffset2", &quantOffset2},
          {"queryPaddingSize", &queryPaddingSize},
          {"kvPaddingSize", &kvPaddingSize},
          {"keyRopeAntiquantScale", &keyRopeAntiquantScale},
          {"dequantScaleQuery", &dequantScaleQuery}});
  auto call = inference(query, key, value, pseShift, attenMask, actualSeqLengthsKv, numHeads,
                        numKeyValueHeads, scaleValue, inputLayout);
  call.query_lengths = actualSeqLengths.value_or(at::IntArrayRef());
  set_antiquant(call, antiquantScale, antiquantOffset, antiquantMode,
                {keyAntiquantScale, keyAntiquantOffset, keyAntiquantMode},
                {valueAntiquantScale, valueAntiquantOffset, valueAntiquantMode});
  call.key_prefix = keySharedPrefix;
  call.value_prefix = valueSharedPrefix;
  if (actualSharedPrefixLen.has_value() && !actualSharedPrefixLen->empty())
    call.prefix_length = actualSharedPrefixLen->front();
  call.query_rope = queryRope;
  call.key_rope = keyRope;
  call.sink = learnableSink;
  call.block_table = blockTable.value_or(at::Tensor());
  call.block_size = blockSize;
  call.before = preTokens;
  call.after = nextTokens;
  call.sparse_mode = sparseMode;
  run(call, attentionOut, softmaxLseFlag ? softmaxLse : at::Tensor());
}

void FusedInferAttentionScoreV3(
    const at::Tensor& query, const std::vector<at::Tensor>& key, const std::vector<at::Tensor>& value,
    const Optional& pseShift, const Optional& attenMask, at::OptionalIntArrayRef actualSeqLengths,
    at::OptionalIntArrayRef actualSeqLengthsKv, const Optional& deqScale1, const Optional& quantScale1,
    const Optional& deqScale2, const Optional& quantScale2, const Optional& quantOffset2,
    const Optional& antiquantScale, const Optional& antiquantOffset, const Optional& blockTable,
    const Optional& queryPaddingSize, const Optional& kvPaddingSize, const Optional& keyAntiquantScale,
    const Optional& keyAntiquantOffset, const Optional& valueAntiquantScale,
    const Optional& valueAntiquantOffset, const Optional& keySharedPrefix, const Optional& valueSharedPrefix,
    at::OptionalIntArrayRef prefixLen, const Optional& queryRope, const Optional& keyRope,
    const Optional& keyRopeAntiquantScale, int64_t numHeads, double scaleValue, int64_t preTokens,
    int64_t nextTokens, std::string_view inputLayout, int64_t numKeyValueHeads, int64_t sparseMode,
    int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode, bool softmaxLseFlag,
    int64_t keyAntiquantMode, int64_t valueAntiquantMode, at::Tensor& attentionOut, at::Tensor& softmaxLse) {
  FusedInferAttentionScoreV4(
      query, key, value, pseShift, attenMask, actualSeqLengths, actualSeqLengthsKv, deqScale1, quantScale1,
      deqScale2, quantScale2, quantOffset2, antiquantScale, antiquantOffset, blockTable, queryPaddingSize,
      kvPaddingSize, keyAntiquantScale, keyAntiquantOffset, valueAntiquantScale, valueAntiquantOffset,
      keySharedPrefix, valueSharedPrefix, prefixLen, queryRope, keyRope, keyRopeAntiquantScale, std::nullopt,
      std::nullopt, numHeads, scaleValue, preTokens, nextTokens, inputLayout, numKeyValueHeads, sparseMode,
      innerPrecise, blockSize, antiquantMode, softmaxLseFlag, keyAntiquantMode, valueAntiquantMode, 0,
      attentionOut, softmaxLse);
}

}  // namespace cann_host::host
