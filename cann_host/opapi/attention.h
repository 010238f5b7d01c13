// Attention over [batch, heads, sequence, head size]: what the operators of all layouts are made of.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string_view>
#include <vector>

namespace cann_host {

/// One attention. Tensors are views; heads of key and value divide those of query.
struct Attention {
  at::Tensor query, key, value;       // [B, N, S, D]
  std::optional<at::Tensor> shift;    // added to the scores; broadcasts to [B, N, queries, keys]
  std::optional<at::Tensor> hidden;   // true hides a position; broadcasts likewise
  std::optional<at::Tensor> dropped;  // one bit an element of the scores, from bit first_dropped; 0 drops it
  int64_t first_dropped = 0;
  std::optional<at::Tensor> sink;  // [N], float32: a score without a value
  std::vector<int64_t> prefix;     // sparse mode 6: keys that all queries of a batch see
  double scale = 1;
  double keep = 1;
  int64_t sparse_mode = 0;
  int64_t before = 0, after = 0;  // keys seen around a query's own place (modes 0 and 4)
  bool shift_is_scaled = true;

  int64_t groups() const { return query.size(1) / key.size(1); }
  /// Every query sees the keys up to its own number.
  bool is_causal() const { return sparse_mode == 2 || (sparse_mode == 3 && query.size(2) == key.size(2)); }
};

struct AttentionResult {
  at::Tensor out;          // [B, N, queries, value size]
  at::Tensor log_sum_exp;  // [B, N, queries], float32, of the scores and the sink
  at::Tensor maximum;      // likewise, or log_sum_exp where none was asked for; the gradient does without
};

struct AttentionGradient {
  at::Tensor query, key, value;
  at::Tensor shift, sink;  // undefined unless asked for
};

/// Raises for a sparse mode or shapes that it does not know. Maxima of many queries in float32 cost a second
/// product of queries and keys where the processor lacks the products of blocks.
AttentionResult attend(const Attention& a, bool wants_maximum);
AttentionGradient attend_backward(const Attention& a, const at::Tensor& grad, const AttentionResult& result,
                                  bool wants_shift, bool wants_sink);

/// Keys and values of several sequences, contiguous or in blocks, for the decode kernel.
struct KeyCache {
  std::vector<int64_t> lengths;  // of each sequence; empty: all keys
  at::Tensor block_table;        // [batch, blocks], int32; undefined: key and value are contiguous
  int64_t block_size = 0;
};

/// Whether the decode kernel takes the attention: few queries, nothing dropped.
bool decodes(const Attention& a);
/// `a.key` and `a.value` are [blocks, N, block size, D] where the cache has a block table. Mode 3 is causal
/// from the last key of each sequence.
AttentionResult decode(const Attention& a, const KeyCache& cache);

/// A view of [batch, heads, sequence, head size] of a layout other than TND.
at::Tensor heads_first(const at::Tensor& tensor, std::string_view layout, int64_t head_size);

}  // namespace cann_host
