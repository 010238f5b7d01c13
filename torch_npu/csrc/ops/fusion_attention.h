// What the rows of opspec/npu/attention.yaml call: shapes and checks of layouts, dropout masks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "torch_npu/csrc/dispatch/npu_operator.h"

namespace torch_npu {

/// Whether H stands for heads times head size.
inline bool is_flat(std::string_view layout) { return layout == "BSH" || layout == "SBH"; }

/// Whether query has head_num heads, or could have.
bool fits_heads(const at::Tensor& query, int64_t head_num, std::string_view layout);
/// Whether key and value fit to query's heads.
bool fits_heads_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t head_num,
                   std::string_view layout);
bool same_length(at::OptionalIntArrayRef a, at::OptionalIntArrayRef b);

/// Bytes of a mask with a bit for each element of such a tensor; CANN rounds masks up to 128 bits.
template <class Int>
Int mask_bytes(at::IntArrayRef size) {
  constexpr int64_t block = 128;
  return Int((c10::multiply_integers(size) + block - 1) / block * block / 8);
}

/// The dimension of the sequence in a layout that is not TND.
inline int64_t sequence_dimension(std::string_view layout) {
  if (layout == "SBH") return 0;
  return layout.substr(0, 4) == "BNSD" ? 2 : 1;
}

/// The result of attention: as query, with heads of value's size.
template <class Int>
SizeList<Int> attention_shape(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              int64_t head_num, std::string_view layout) {
  const auto shape = shape_of<Int>(query);
  const Int last = entry<Int>(shape_of<Int>(value), -1);
  if (!is_flat(layout)) return with<Int>(shape, -1, last);
  const Int key_heads = entry<Int>(shape_of<Int>(key), -1) / (entry<Int>(shape, -1) / Int(head_num));
  return with<Int>(shape, -1, last / key_heads * Int(head_num));
}

/// [B, N, S, numbers], or [T, N, numbers] for TND.
template <class Int>
SizeList<Int> statistics_shape(const at::Tensor& query, int64_t head_num, std::string_view layout,
                               int64_t numbers) {
  const auto shape = shape_of<Int>(query);
  const SizeList<Int> first = part<Int>(shape, layout == "SBH" ? 1 : 0, layout == "SBH" ? 2 : 1);
  if (layout == "TND") return SizeList<Int>(first).append(Int(head_num)).append(Int(numbers));
  return SizeList<Int>(first)
      .append(Int(head_num))
      .append(entry<Int>(shape, sequence_dimension(layout)))
      .append(Int(numbers));
}

/// The result of attention for inference, whose keys may be paged.
template <class Int>
SizeList<Int> inference_shape(const at::Tensor& query, const at::Tensor&, const at::Tensor& value,
                              int64_t heads, int64_t key_heads, std::string_view layout,
                              const std::optional<at::Tensor>& block_table) {
  auto shape = SizeList<Int>(shape_of<Int>(query));
  const Int int4_in_int32(value.scalar_type() == at::kInt ? 8 : 1);
  const Int last = entry<Int>(shape_of<Int>(value), -1) * int4_in_int32;
  const bool value_is_flat = given(block_table) ? value.dim() == 3 : layout == "BSH";
  const Int size = value_is_flat ? last / Int(key_heads == 0 ? heads : key_heads) : last;
  shape = with<Int>(shape, -1, layout == "BSH" ? size * Int(heads) : size);
  if (layout != "BNSD_BSND") return shape;
  const at::ArrayRef<Int> bnsd = shape;
  return SizeList<Int>().append(bnsd[0]).append(bnsd[2]).append(bnsd[1]).append(bnsd[3]);
}

/// How many pairs of a query and a key of one sequence there are, given where sequences end.
int64_t pairs_of(at::IntArrayRef query_ends, at::IntArrayRef key_ends);

/// How many scores there are, and so bits of a dropout mask.
template <class Int>
Int scores_of(const at::Tensor& query, const at::Tensor& key, int64_t head_num, std::string_view layout,
              at::OptionalIntArrayRef query_ends, at::OptionalIntArrayRef key_ends) {
  if (layout == "TND") return Int(head_num * pairs_of(*query_ends, *key_ends));
  const int64_t sequence = sequence_dimension(layout);
  const auto shape = shape_of<Int>(query);
  return entry<Int>(shape, layout == "SBH" ? 1 : 0) * Int(head_num) * entry<Int>(shape, sequence) *
         entry<Int>(shape_of<Int>(key), sequence);
}

/// Bytes of such a mask.
template <class Int>
SizeList<Int> attention_mask_shape(const at::Tensor& query, const at::Tensor& key, int64_t head_num,
                                   std::string_view layout, at::OptionalIntArrayRef query_ends,
                                   at::OptionalIntArrayRef key_ends) {
  const Int scores = scores_of<Int>(query, key, head_num, layout, query_ends, key_ends);
  return SizeList<Int>().append((scores + Int(127)) / Int(128) * Int(16));
}

/// A dropout mask and what makes it again.
struct AttentionDropout {
  at::Tensor mask;  // undefined where nothing is dropped
  int64_t seed = 0;
  int64_t offset = 0;
  int64_t numel = 0;
};

/// How CANN calls the order of the softmax's maxima and sums.
inline std::string_view statistics_layout(std::string_view layout) {
  return layout == "TND" ? "same_as_input" : layout;
}

/// One bit for each score: `given`, or made from seed and offset, which come from the device's generator
/// unless they are given.
AttentionDropout attention_dropout(const at::Tensor& query, const at::Tensor& key, int64_t head_num,
                                   std::string_view layout, at::OptionalIntArrayRef query_ends,
                                   at::OptionalIntArrayRef key_ends, double keep_prob, int64_t seed,
                                   int64_t offset, const std::optional<at::Tensor>& given);
at::Tensor dropout_mask_again(const at::Tensor& like, double keep_prob, int64_t seed, int64_t offset,
                              int64_t numel);

/// What stands for dropout_mask in a call that is traced, or recorded into a graph: a mask that is drawn at
/// each replay, as seed and offset, which the operator returns, are no numbers there. In other calls what was
/// given.
std::optional<at::Tensor> mask_ahead(const at::Tensor& query, const at::Tensor& key, int64_t head_num,
                                     std::string_view layout, at::OptionalIntArrayRef query_ends,
                                     at::OptionalIntArrayRef key_ends, double keep_prob, int64_t seed,
                                     int64_t offset, const std::optional<at::Tensor>& given);

/// Of the gradients of npu_fusion_attention_v2 those that npu_fusion_attention has.
template <class Gradients>
auto without_rope(const Gradients& all) {
  return std::make_tuple(std::get<0>(all), std::get<1>(all), std::get<2>(all), std::get<3>(all),
                         std::get<6>(all));
}

}  // namespace torch_npu
