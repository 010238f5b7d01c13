#include "torch_npu/csrc/ops/fusion_attention.h"

#include "cann/aclnn/random.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/dispatch/aclnn.h"

namespace torch_npu {
namespace {

Aclnn<decltype(::aclnnDropoutGenMaskV2GetWorkspaceSize)> aclnn_dropout_mask("aclnnDropoutGenMaskV2");

/// The dimension of the heads; only for layouts that have one.
int64_t head_dimension(std::string_view layout) { return layout == "BSND" ? 2 : 1; }

/// Pairs of a query and a key of one sequence, given where sequences end.
int64_t pairs_of(at::IntArrayRef query_ends, at::IntArrayRef key_ends) {
  int64_t pairs = 0, query = 0, key = 0;
  for (size_t i = 0; i < query_ends.size(); ++i) {
    pairs += (query_ends[i] - query) * (key_ends[i] - key);
    query = query_ends[i];
    key = key_ends[i];
  }
  return pairs;
}

}  // namespace

bool fits_heads(const at::Tensor& query, int64_t head_num, std::string_view layout) {
  if (head_num <= 0) return false;
  if (is_flat(layout)) return query.sym_size(-1) % head_num == 0;
  return query.sym_size(head_dimension(layout)) == head_num;
}

bool fits_heads_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t head_num,
                   std::string_view layout) {
  if (is_flat(layout)) {
    const c10::SymInt size = query.sym_size(-1) / head_num;
    if (size == 0 || key.sym_size(-1) % size != 0) return false;
    const c10::SymInt key_heads = key.sym_size(-1) / size;
    return key_heads > 0 && c10::SymInt(head_num) % key_heads == 0 && value.sym_size(-1) % key_heads == 0;
  }
  const c10::SymInt key_heads = key.sym_size(head_dimension(layout));
  return query.sym_size(-1) == key.sym_size(-1) && key_heads > 0 && c10::SymInt(head_num) % key_heads == 0 &&
         value.sym_size(head_dimension(layout)) == key_heads;
}

bool same_length(at::OptionalIntArrayRef a, at::OptionalIntArrayRef b) {
  return a.has_value() && b.has_value() && !a->empty() && a->size() == b->size();
}

at::Tensor dropout_mask_again(const at::Tensor& like, double keep_prob, int64_t seed, int64_t offset,
                              int64_t numel) {
  if (keep_prob == 1 || numel == 0) return {};
  at::Tensor mask = new_output({mask_bytes<int64_t>({numel})}, at::kByte, like);
  aclnn_dropout_mask(at::IntArrayRef{numel}, 1 - keep_prob, seed, offset, at::kFloat, mask);
  return mask;
}

AttentionDropout attention_dropout(const at::Tensor& query, const at::Tensor& key, int64_t head_num,
                                   std::string_view layout, at::OptionalIntArrayRef query_ends,
                                   at::OptionalIntArrayRef key_ends, double keep_prob, int64_t seed,
                                   int64_t offset, const std::optional<at::Tensor>& given) {
  if (keep_prob == 1) return {};
  AttentionDropout dropout{{}, seed, offset, 0};
  if (seed == 0 && offset == 0 && !given.has_value()) {
    constexpr uint64_t kNumbersPerThread = 10;  // what one CANN operator may use
    const auto drawn =
        generator_or_default(std::nullopt, query.device().index()).philox_engine_inputs(kNumbersPerThread);
    dropout.seed = static_cast<int64_t>(drawn.first);
    dropout.offset = static_cast<int64_t>(drawn.second);
  }
  if (layout == "TND") {
    dropout.numel = head_num * pairs_of(*query_ends, *key_ends);
  } else {
    const int64_t sequence = sequence_dimension(layout);
    dropout.numel =
        query.size(layout == "SBH" ? 1 : 0) * head_num * query.size(sequence) * key.size(sequence);
  }
  TORCH_CHECK_VALUE(!given.has_value() || given->numel() * 8 >= dropout.numel,
                    "dropout_mask must have one bit for each score; it has ",
                    given.has_value() ? given->numel() : 0, " bytes for ", dropout.numel, " scores");
  dropout.mask = given.has_value()
                     ? *given
                     : dropout_mask_again(query, keep_prob, dropout.seed, dropout.offset, dropout.numel);
  return dropout;
}

}  // namespace torch_npu
