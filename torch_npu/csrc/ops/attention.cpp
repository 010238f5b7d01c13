#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_cpu_dispatch.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "torch_npu/csrc/dispatch/unfused.h"
#include "torch_npu/csrc/ops/kernel.h"

namespace torch_npu::ops {
namespace {

Aclnn<decltype(::aclnnFlashAttentionScoreV2GetWorkspaceSize)> aclnn_flash_attention(
    "aclnnFlashAttentionScoreV2");
Aclnn<decltype(::aclnnFlashAttentionScoreGradV2GetWorkspaceSize)> aclnn_flash_attention_grad(
    "aclnnFlashAttentionScoreGradV2");

using Optional = std::optional<at::Tensor>;

constexpr int64_t kAllTokens = std::numeric_limits<int32_t>::max();
constexpr int64_t kHighPrecision = 0;
constexpr int64_t kAddAfterScaling = 0;  // pseType
constexpr const char* kLayout = "BNSD";
enum SparseMode : int64_t { kNone = 0, kCausal = 2 };

/// CANN wants the compressed mask of a causal attention as an argument, always the same one: made once a
/// device.
at::Tensor causal_mask(const at::Device& device) {
  static std::mutex mutex;
  static auto& masks = *new std::map<c10::DeviceIndex, at::Tensor>();  // outlives the devices' shut-down
  const std::lock_guard lock(mutex);
  at::Tensor& mask = masks[device.index()];
  if (!mask.defined())
    mask = at::ones({2048, 2048}, at::TensorOptions().dtype(at::kBool).device(device)).triu_(1);
  return mask;
}

/// [B, N, S, D] whose memory is [B, S, N, D], as PyTorch's CPU kernel lays out gradients: what follows is a
/// transposition back, which then costs nothing.
at::Tensor sequence_first(at::IntArrayRef sizes, const at::Tensor& like) {
  return new_output({sizes[0], sizes[2], sizes[1], sizes[3]}, like.scalar_type(), like).transpose(1, 2);
}

struct Masks {
  Optional shift, hidden;
  SparseMode mode;
};

Masks masks_of(const at::Tensor& query, const at::Tensor& key, const Optional& bias, bool is_causal) {
  Masks masks{std::nullopt, std::nullopt, is_causal ? kCausal : kNone};
  if (is_causal) masks.hidden = causal_mask(query.device());
  if (bias.has_value() && bias->defined()) {
    masks.shift = bias->expand({query.size(0), query.size(1), query.size(2), key.size(2)});
  }
  return masks;
}

/// CANN keeps the maximum and the sum of each row of the softmax, eight times each. PyTorch keeps the
/// logarithm of the sum of exponentials: a maximum with the sum 1.
constexpr int64_t kCopies = 8;

at::Tensor logsumexp_of(const at::Tensor& maximum, const at::Tensor& sum) {
  return sum.select(-1, 0).log().add_(maximum.select(-1, 0));
}

at::Tensor maximum_of(const at::Tensor& logsumexp) {
  return logsumexp.unsqueeze(-1).expand({-1, -1, -1, kCopies}).contiguous();
}

/// Stands for the state of the random number generator, of which attention without dropout has no use.
at::Tensor no_random_state(const at::Tensor& like) { return new_output({}, at::kLong, like); }

double scale_of(const at::Tensor& query, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
}

/// Why the fused operator does not take an attention; null where it does. It takes what PyTorch's CPU flash
/// attention takes.
const char* why_unfused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const Optional& attn_mask, double dropout_p, bool is_causal,
                        std::optional<double> scale, bool enable_gqa) {
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) {
    return "query, key and value must have 4 dimensions: batch, heads, sequence, head size";
  }
  for (const auto* t : {&query, &key, &value}) {
    if (!takes(kHalfAndFloat, *t)) return "query, key and value must be float16, bfloat16 or float32";
  }
  if (!native(aclnn_flash_attention, kHalfAndFloat, query, key, value) ||
      !aclnn_flash_attention_grad.available()) {
    return "CANN lacks aclnnFlashAttentionScoreV2 or its gradient, or a tensor is not on the device";
  }
  if (at::cpu::_fused_sdp_choice(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa) ==
      static_cast<int64_t>(sdp::SDPBackend::flash_attention)) {
    return nullptr;
  }
  if (!at::globalContext().userEnabledFlashSDP()) return "flash attention is switched off";
  if (dropout_p > 0) return "dropout_p must be 0; npu_fusion_attention drops";
  if (attn_mask.has_value() && attn_mask->requires_grad()) {
    return "attn_mask must not need a gradient; npu_fusion_attention gives one to pse";
  }
  const auto size = query.sym_size(3);
  if (size != key.sym_size(3) || size != value.sym_size(3)) {
    return "query, key and value must have heads of one size";
  }
  if (!enable_gqa && query.sym_size(1) != key.sym_size(1)) {
    return "key and value must have query's number of heads, or enable_gqa must be set";
  }
  return "batches must be equal, heads must divide, nothing may be empty, a head's elements must be "
         "neighbours, "
         "and attn_mask must broadcast to [batch, heads, queries, keys]";
}

}  // namespace

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const Optional& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  const char* reason = why_unfused(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa);
  if (reason == nullptr) return static_cast<int64_t>(sdp::SDPBackend::overrideable);
  note_unfused("scaled_dot_product_attention", reason);
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t, int64_t, at::Tensor, at::Tensor,
           at::Tensor>
fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const Optional& attn_bias, double dropout_p, bool is_causal, bool return_debug_mask,
                std::optional<double> scale) {
  same_device("scaled_dot_product_attention", query, "query", key, "key", value, "value", attn_bias,
              "attn_bias");
  TORCH_CHECK(dropout_p == 0 && !return_debug_mask,
              "npu: fused attention was called with dropout_p=", dropout_p,
              " and return_debug_mask=", return_debug_mask,
              "; it has neither, scaled_dot_product_attention chooses another way for them");
  const DeviceSwitch on(DeviceSwitch::of(query));
  const auto masks = masks_of(query, key, attn_bias, is_causal);
  at::Tensor out = new_output_like(query, query.scalar_type());  // laid out as the query, as on the CPU
  const at::DimVector statistics{query.size(0), query.size(1), query.size(2), kCopies};
  at::Tensor maximum = new_output(statistics, at::kFloat, query);
  at::Tensor sum = new_output(statistics, at::kFloat, query);
  aclnn_flash_attention(query, key, value, masks.shift, nullptr, nullptr, masks.hidden, nullptr, nullptr,
                        nullptr, scale_of(query, scale), 1.0, kAllTokens,
                        masks.mode == kCausal ? 0 : kAllTokens, query.size(1), kLayout, kHighPrecision,
                        static_cast<int64_t>(masks.mode), kAddAfterScaling, maximum, sum, nullptr, out);
  return {std::move(out), logsumexp_of(maximum, sum), at::Tensor(),           at::Tensor(), query.size(2),
          key.size(2),    no_random_state(query),     no_random_state(query), at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_attention_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& attn_bias, std::array<bool, 4> grad_input_mask, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor& cum_seq_q, const at::Tensor& cum_seq_k, int64_t max_q,
    int64_t max_k, double dropout_p, bool is_causal, const at::Tensor& philox_seed,
    const at::Tensor& philox_offset, std::optional<double> scale) {
  const DeviceSwitch on(DeviceSwitch::of(query));
  const auto masks = masks_of(query, key, attn_bias, is_causal);
  at::Tensor grad_query = sequence_first(query.sizes(), query);
  at::Tensor grad_key = sequence_first(key.sizes(), key);
  at::Tensor grad_value = sequence_first(value.sizes(), value);
  const at::Tensor maximum = maximum_of(logsumexp);
  aclnn_flash_attention_grad(query, key, value, grad_out, masks.shift, nullptr, nullptr, masks.hidden,
                             maximum, at::ones_like(maximum), nullptr, out, nullptr, nullptr, nullptr,
                             scale_of(query, scale), 1.0, kAllTokens, masks.mode == kCausal ? 0 : kAllTokens,
                             query.size(1), kLayout, kHighPrecision, static_cast<int64_t>(masks.mode),
                             kAddAfterScaling, grad_query, grad_key, grad_value, nullptr);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value), at::Tensor()};
}

}  // namespace torch_npu::ops

namespace at::native {
// scaled_dot_product_attention asks through this stub, not through the operator.
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_npu::ops::fused_sdp_choice)
}  // namespace at::native
