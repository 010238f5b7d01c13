// What rows of opspec/npu/*.yaml call: argument codes, output shapes, gradients made of ATen operators.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>

#include "torch_npu/csrc/dispatch/npu_operator.h"

namespace torch_npu {

template <class Int>
SizeList<Int> repeat_one(int64_t count) {
  return repeat<Int>(1, count);
}

/// The shape with half as many elements along dim.
template <class Int>
SizeList<Int> halved(const at::Tensor& self, int64_t dim) {
  const auto shape = shape_of<Int>(self);
  return with<Int>(shape, dim, entry<Int>(shape, dim) / 2);
}

inline at::ScalarType common_dtype(const at::Tensor& a, const at::Tensor& b) {
  return at::promote_types(a.scalar_type(), b.scalar_type());
}

inline at::Tensor zeros_unless_given(const std::optional<at::Tensor>& tensor, const at::Tensor& like) {
  return given(tensor) ? *tensor : at::zeros_like(like);
}

/// CANN's number of a layout of rotary embedding.
inline int64_t rotary_layout(std::string_view layout) {
  if (layout == "SBND") return 2;
  if (layout == "BNSD") return 3;
  return layout == "TND" ? 4 : 1;
}

/// The block of self that starts at offsets.
at::Tensor slice_block(const at::Tensor& self, at::IntArrayRef offsets, at::IntArrayRef size);

inline bool is_true(const std::optional<bool>& flag) { return flag.value_or(false); }

inline int64_t number_or_zero(const std::optional<int64_t>& number) { return number.value_or(0); }

/// A positive number as a size, else the other size.
template <class Int>
Int positive_or(const std::optional<int64_t>& number, Int other) {
  return number_or_zero(number) > 0 ? Int(*number) : std::move(other);
}

/// An entry of a list of sizes that is an argument.
template <class Int>
Int size_at(at::IntArrayRef list, int64_t index) {
  return Int(entry<int64_t>(list, index));
}

inline bool is_or_none(const std::optional<at::ScalarType>& dtype, at::ScalarType expected) {
  return !dtype.has_value() || *dtype == expected;
}

template <class... Text>
bool is_one_of(const std::optional<c10::string_view>& text, Text... known) {
  return text.has_value() && ((*text == known) || ...);
}

/// Whether npu_scatter_pa_kv_cache knows the layout of a cache.
inline bool scatters_to(const std::optional<c10::string_view>& mode) {
  return !mode.has_value() || *mode == "Norm" || *mode == "PA_NZ";
}

/// What an operator returns that writes two caches and returns them, too.
template <class Write>
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> with_caches(at::Tensor k_cache,
                                                                       at::Tensor ckv_cache, Write write) {
  auto [k_rope, c_kv] = write(k_cache, ckv_cache);
  return {k_cache, ckv_cache, k_rope, c_kv};
}

// ---- Mixture of experts

/// How many rows npu_moe_token_permute keeps: a positive number is a limit, a negative one drops rows.
template <class Int>
Int kept_tokens(const at::Tensor& indices, std::optional<int64_t> num_out_tokens) {
  const Int all = count_of<Int>(indices);
  const int64_t wanted = num_out_tokens.value_or(0);
  if (wanted <= 0) return all + Int(wanted);
  return all < Int(wanted) ? all : Int(wanted);
}

/// How many rows npu_moe_init_routing_v2 gives.
template <class Int>
Int active_rows(const at::Tensor& expert_idx, int64_t active_num) {
  const Int all = count_of<Int>(expert_idx);
  return active_num > 0 && Int(active_num) < all ? Int(active_num) : all;
}

/// [first, last) of the experts that count.
inline std::array<int64_t, 2> expert_range(at::IntArrayRef range, int64_t experts) {
  return range.size() == 2 ? std::array<int64_t, 2>{range[0], range[1]} : std::array<int64_t, 2>{0, experts};
}
inline int64_t active_experts(at::IntArrayRef range, int64_t experts) {
  const auto [first, last] = expert_range(range, experts);
  return last - first;
}

template <class Int>
Int finalized_rows(const at::Tensor& rows, const std::optional<at::Tensor>& scales) {
  return given(scales) ? shape_of<Int>(*scales)[0] : count_of<Int>(rows);
}

/// How many rows npu_moe_token_permute_with_routing_map gives: a multiple of the tokens, or of the experts.
template <class Int>
Int routed_rows(const at::Tensor& tokens, const at::Tensor& routing_map,
                const std::optional<int64_t>& num_out_tokens, bool drop_and_pad) {
  const Int step = entry<Int>(shape_of<Int>(routing_map), drop_and_pad ? 1 : 0);
  const Int wanted = num_out_tokens.has_value() ? Int(*num_out_tokens) : entry<Int>(shape_of<Int>(tokens), 0);
  return step == Int(0) ? Int(0) : wanted / step * step;
}

/// A list of one tensor with so many dimensions, or so many.
inline bool one_of_rank(at::TensorList list, int64_t rank, int64_t other) {
  return list.size() == 1 && (list[0].dim() == rank || list[0].dim() == other);
}
inline const at::Tensor& first_of(at::TensorList list) { return list[0]; }
inline bool has_assistant(const std::optional<at::TensorList>& list) {
  return list.has_value() && list->size() == 1;
}

/// Numbers that an element stands for: int32 holds eight int4.
inline int64_t numbers_in(const at::Tensor& t) { return t.scalar_type() == at::kInt ? 8 : 1; }

/// [groups, inner size, columns] of matrices [G, K, N], or of their blocks [G, N / c, K / 16, 16, c].
inline std::array<c10::SymInt, 3> sizes_of_matrices(const at::Tensor& weight) {
  const auto s = weight.sym_sizes();
  if (weight.dim() == 5) return {s[0], s[2] * s[3], s[1] * s[4] * numbers_in(weight)};
  return {s[0], s[1], s[2] * numbers_in(weight)};
}
inline bool rows_fit_matrices(const at::Tensor& x, const at::Tensor& weight) {
  return (weight.dim() == 3 || weight.dim() == 5) &&
         x.sym_size(1) * numbers_in(x) == sizes_of_matrices(weight)[1];
}
inline bool scales_fit_matrices(const at::Tensor& scale, const at::Tensor& weight) {
  const auto [groups, inner, columns] = sizes_of_matrices(weight);
  if (scale.dim() == 3 && (numbers_in(weight) == 1 || inner % scale.sym_size(1) != 0)) return false;
  return (scale.dim() == 2 || scale.dim() == 3) && scale.sym_size(0) == groups &&
         scale.sym_size(-1) == columns && columns % 2 == 0;
}
/// [G, N / 2] or [G] for scales whose columns are N.
inline bool smooth_fits(const std::optional<at::Tensor>& given, const at::Tensor& scale) {
  const at::Tensor& smooth = *given;
  return smooth.dim() <= 2 && smooth.dim() >= 1 && smooth.sym_size(0) == scale.sym_size(0) &&
         (smooth.dim() == 1 || smooth.sym_size(1) * 2 == scale.sym_size(-1));
}
/// Mode 1 for scales of parts of the inner dimension, else 0.
inline bool dequantizes(const std::optional<int64_t>& mode, const at::Tensor& scale) {
  return number_or_zero(mode) == (scale.dim() == 3 ? 1 : 0);
}
/// 0 or torch.float32, or none.
inline bool is_float32_or_none(const std::optional<int64_t>& dtype) {
  return number_or_zero(dtype) == 0 || *dtype == static_cast<int64_t>(at::kFloat);
}
template <class Int>
Int last_size(at::TensorList list) {
  return entry<Int>(shape_of<Int>(list[0]), -1);
}

// ---- npu_transpose_batchmatmul

/// Whether the order (none: that of the dimensions) is a, b, c.
inline bool permutes(at::OptionalIntArrayRef order, int64_t a, int64_t b, int64_t c) {
  const std::array<int64_t, 3> plain{0, 1, 2}, expected{a, b, c};
  return order.value_or(plain) == at::IntArrayRef(expected);
}

template <class Int>
Int permuted_size(const at::Tensor& tensor, at::OptionalIntArrayRef order, int64_t place) {
  return entry<Int>(shape_of<Int>(tensor), order.has_value() ? (*order)[place] : place);
}

/// [B, M, K] by [B, K, N].
inline bool batches_fit(const at::Tensor& input, const at::Tensor& weight, at::OptionalIntArrayRef perm_x1,
                        at::OptionalIntArrayRef perm_x2) {
  using Int = c10::SymInt;
  return permuted_size<Int>(input, perm_x1, 0) == permuted_size<Int>(weight, perm_x2, 0) &&
         permuted_size<Int>(input, perm_x1, 2) == permuted_size<Int>(weight, perm_x2, 1);
}

template <class Int>
SizeList<Int> transposed_product_shape(const at::Tensor& input, const at::Tensor& weight,
                                       at::OptionalIntArrayRef perm_x1, at::OptionalIntArrayRef perm_x2,
                                       const std::optional<int64_t>& split) {
  const Int batches = permuted_size<Int>(input, perm_x1, 0), rows = permuted_size<Int>(input, perm_x1, 1);
  const Int columns = permuted_size<Int>(weight, perm_x2, 2);
  if (split.value_or(1) == 1) return SizeList<Int>().append(rows).append(batches).append(columns);
  return SizeList<Int>().append(Int(*split)).append(rows).append(batches * columns / Int(*split));
}

// ---- Quantization

inline constexpr int64_t kInt4 = static_cast<int64_t>(at::ScalarType::QUInt4x2);
inline constexpr int64_t kInt4InInt32 = 8;
inline constexpr int64_t kAclInt8 = 2;  // aclDataType

inline bool int4(std::optional<int64_t> dtype) { return dtype.has_value() && *dtype == kInt4; }
inline bool int4(const std::optional<at::ScalarType>& dtype) { return dtype == at::ScalarType::QUInt4x2; }
inline bool dynamic_dtype(std::optional<int64_t> dtype) {
  return !dtype.has_value() || *dtype == static_cast<int64_t>(at::kChar) || *dtype == kInt4;
}

/// Whether npu_quantize gives the dtype.
bool quantized_dtype(int64_t dtype, bool divides);
/// The dtype whose memory holds numbers of a quantized dtype.
at::ScalarType quantized_storage(int64_t dtype);

/// Whether the last dimension of a matrix is packed int4, and not the one before, as in a transposed tensor.
bool packs_columns(const at::Tensor& matrix);

template <class Int>
Int unpacked_size(const at::Tensor& matrix, int64_t dim) {
  const Int size = entry<Int>(shape_of<Int>(matrix), dim);
  if (matrix.scalar_type() != at::kInt) return size;
  return packs_columns(matrix) == (dim == -1) ? size * Int(kInt4InInt32) : size;
}

inline bool inner_sizes_fit(const at::Tensor& a, const at::Tensor& b) {
  return unpacked_size<c10::SymInt>(a, -1) == unpacked_size<c10::SymInt>(b, -2);
}

/// [.., m, n]; batches broadcast.
template <class Int>
SizeList<Int> quant_product_shape(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor& more = a.dim() >= b.dim() ? a : b;
  return part<Int>(shape_of<Int>(more), 0, more.dim() - 2)
      .append(entry<Int>(shape_of<Int>(a), -2))
      .append(unpacked_size<Int>(b, -1));
}

/// Whether npu_add_rms_norm_dynamic_quant gives its result 0 or 1.
inline bool quantizes(const std::optional<std::array<bool, 2>>& mask, const std::optional<at::Tensor>& scale1,
                      const std::optional<at::Tensor>& scale2, int64_t result) {
  if (mask.has_value()) return (*mask)[result];
  return result == 0 || (given(scale1) && given(scale2));
}

// ---- Sampling

/// See npu_top_k_top_p_sample.
std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample(
    const at::Tensor& logits, const at::Tensor& top_k, const at::Tensor& top_p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess,
    const std::optional<at::Tensor>& min_ps, int64_t ks_max, bool input_is_logits,
    const std::optional<c10::string_view>& post_sample, const std::optional<at::Generator>& generator);

// ---- Boxes

enum class BoxPenalty { giou, diou, ciou };

/// Overlap of boxes [4, N]; see npu_giou, npu_diou and npu_ciou.
at::Tensor box_overlap(const at::Tensor& self, const at::Tensor& gtboxes, bool trans, bool is_cross,
                       int64_t mode, BoxPenalty penalty);

template <class Int>
Int whole_number(const at::Scalar& number) {
  return Int(number.toLong());
}

/// Non-maximum suppression; see npu_nms_v4.
void choose_boxes(const at::Tensor& boxes, const at::Tensor& scores, const at::Tensor& iou_threshold,
                  const at::Tensor& scores_threshold, const at::Tensor& selected, const at::Tensor& count);

/// Gradients of RMSNorm to x and gamma: by npu_rms_norm_backward, and where they shall have gradients
/// themselves by operators of ATen, which do.
std::tuple<at::Tensor, at::Tensor> rms_norm_gradients(const at::Tensor& dy, const at::Tensor& x,
                                                      const at::Tensor& gamma, const at::Tensor& rstd);

/// Gradients of npu_add_rms_norm to x1, x2 and gamma.
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad_y,
                                                                     const at::Tensor& grad_x,
                                                                     const at::Tensor& x,
                                                                     const at::Tensor& gamma,
                                                                     const at::Tensor& rstd);

}  // namespace torch_npu
