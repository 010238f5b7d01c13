#include "torch_npu/csrc/ops/fusion_attention.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "adapter/npu_calls.h"
#include "cann/aclnn/random.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/dispatch/aclnn.h"

namespace torch_npu {
namespace {

Aclnn<decltype(::aclnnDropoutGenMaskV2GetWorkspaceSize)> aclnn_dropout_mask("aclnnDropoutGenMaskV2");
Aclnn<decltype(::aclnnDropoutGenMaskV2TensorGetWorkspaceSize)> aclnn_dropout_mask_tensor(
    "aclnnDropoutGenMaskV2Tensor");

/// The dimension of the heads; only for layouts that have one.
int64_t head_dimension(std::string_view layout) { return layout == "BSND" ? 2 : 1; }

/// Whether a call is taken down for later: seen by Python's dispatch modes (fake tensors, FX), by function
/// transforms, or by a capture.
bool is_taken_down(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         c10::impl::tls_local_dispatch_key_set().included_.has(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         (tensor.is_privateuseone() && device::is_capturing(device::current_stream(tensor.device().index())));
}

/// Whether a dropout mask can be drawn; if not, attention says what does not fit.
bool fits_mask(const at::Tensor& query, const at::Tensor& key, std::string_view layout,
               at::OptionalIntArrayRef query_ends, at::OptionalIntArrayRef key_ends) {
  if (layout == "TND") return same_length(query_ends, key_ends);
  const int64_t dimensions = layout == "BSND" || layout == "BNSD" ? 4 : 3;
  return (dimensions == 4 || is_flat(layout)) && query.dim() == dimensions && key.dim() == dimensions;
}

PhiloxInputs draw(const at::Tensor& like) {
  constexpr uint64_t numbers_a_thread = 10;  // what one CANN operator may use
  return generator_or_default(std::nullopt, like.device().index()).philox_inputs(numbers_a_thread);
}

}  // namespace

int64_t pairs_of(at::IntArrayRef query_ends, at::IntArrayRef key_ends) {
  int64_t pairs = 0, query = 0, key = 0;
  for (size_t i = 0; i < query_ends.size(); ++i) {
    pairs += (query_ends[i] - query) * (key_ends[i] - key);
    query = query_ends[i];
    key = key_ends[i];
  }
  return pairs;
}

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
  const auto numel = scores_of<int64_t>(query, key, head_num, layout, query_ends, key_ends);
  AttentionDropout dropout{given.value_or(at::Tensor()), seed, offset, numel};
  TORCH_CHECK_VALUE(!given.has_value() || given->numel() * 8 >= numel,
                    "dropout_mask must have one bit for each score; it has ",
                    given.has_value() ? given->numel() : 0, " bytes for ", numel, " scores");
  if (given.has_value()) return dropout;
  if (seed == 0 && offset == 0) {
    const PhiloxInputs drawn = draw(query);
    if (drawn.recorded()) {
      dropout.mask = new_output({mask_bytes<int64_t>({numel})}, at::kByte, query);
      aclnn_dropout_mask_tensor(at::IntArrayRef{numel}, 1 - keep_prob, drawn.seed_tensor, drawn.offset_tensor,
                                static_cast<int64_t>(drawn.offset), at::kFloat, dropout.mask);
      return dropout;
    }
    dropout.seed = static_cast<int64_t>(drawn.seed);
    dropout.offset = static_cast<int64_t>(drawn.offset);
  }
  dropout.mask = dropout_mask_again(query, keep_prob, dropout.seed, dropout.offset, numel);
  return dropout;
}

std::optional<at::Tensor> mask_ahead(const at::Tensor& query, const at::Tensor& key, int64_t head_num,
                                     std::string_view layout, at::OptionalIntArrayRef query_ends,
                                     at::OptionalIntArrayRef key_ends, double keep_prob, int64_t seed,
                                     int64_t offset, const std::optional<at::Tensor>& given) {
  const bool draws = keep_prob < 1 && !given.has_value() && seed == 0 && offset == 0;
  if (!draws || !is_taken_down(query) || !fits_mask(query, key, layout, query_ends, key_ends)) return given;
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto [drawn_seed, drawn_offset] = call::_npu_dropout_state(query);
  return call::_npu_attention_dropout_mask(query, key, drawn_seed, drawn_offset, head_num, layout, keep_prob,
                                           query_ends, key_ends);
}

namespace ops {

std::tuple<at::Tensor, at::Tensor> _npu_dropout_state(const at::Tensor& self) {
  const PhiloxInputs drawn = draw(self);
  if (drawn.recorded()) {
    return {drawn.seed_tensor.view({1}).clone(),
            at::add(drawn.offset_tensor.view({1}), static_cast<int64_t>(drawn.offset))};
  }
  const auto options = self.options().dtype(at::kLong);
  return {at::full({1}, static_cast<int64_t>(drawn.seed), options),
          at::full({1}, static_cast<int64_t>(drawn.offset), options)};
}

}  // namespace ops

}  // namespace torch_npu
