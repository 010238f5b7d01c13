#pragma once

// The softmax of a block of scores between the products of flash attention (attention_blocks.h), for files
// that are compiled once per instruction set.

#include "cann_host/kernels/attention_blocks.h"
#include "cann_host/kernels/row.h"
#include "cann_host/kernels/softmax_weights.h"

namespace cann_host::kernels {
namespace {

constexpr float infinity = __builtin_inff();

/// x in the lanes of columns below `seen`, else `other`.
inline Vec<float> where_seen(Vec<float> x, int64_t column, int64_t seen, float other) {
  if (column + lanes <= seen) return x;
  const auto last = static_cast<int32_t>(seen - column);
  return select(lane_numbers<int32_t>() < last, x, splat<Vec<float>>(other));
}

/// The maximum of f(i) over the columns i < seen, a vector at a time. `larger` says which of two is the
/// larger; two go side by side, because a comparison waits for the one before.
template <class F, class Larger>
float maximum_of_seen(int64_t seen, float least, const F& f, const Larger& larger) {
  Vec<float> maxima = splat<Vec<float>>(least), others = maxima;
  int64_t i = 0;
  for (; i + 2 * lanes <= seen; i += 2 * lanes) {
    maxima = larger(maxima, f(i));
    others = larger(others, f(i + lanes));
  }
  for (; i < seen; i += lanes) maxima = larger(maxima, where_seen(f(i), i, seen, -infinity));
  maxima = larger(maxima, others);
#pragma GCC unroll 4
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    maxima = larger(maxima, __builtin_shuffle(maxima, lane_numbers<int32_t>() ^ distance));
  return maxima[0];
}

/// Row r, of which the first `seen` columns are seen. What it adds to the sum is the result.
template <class T, class StorePair>
float softmax_row(const SoftmaxBlock& a, int64_t r, int64_t seen, const StorePair& store_pair) {
  const float* scores = a.scores + r * a.stride;
  const float* bias = a.bias == nullptr ? nullptr : a.bias + r * a.bias_stride;
  T* weights = static_cast<T*>(a.weights) + r * a.stride;
  const bool is_plain = bias == nullptr && a.scale > 0;
  const auto raw = [&](int64_t i) { return load_vector<Vec<float>>(scores + i); };
  const auto score = [&](int64_t i) {
    Vec<float> x = raw(i) * a.scale;
    if (bias != nullptr) x += i + lanes <= a.keys ? load(bias + i, Full{}) : load(bias + i, Part{a.keys - i});
    return x;
  };
  const float before = a.maximum[r];
  // Scaling keeps the order of scores, and costs less afterwards.
  const float largest = is_plain ? maximum_of_seen(seen, -infinity, raw, larger_number) * a.scale
                                 : maximum_of_seen(seen, -infinity, score, larger_number);
  const float maximum = before > largest ? before : largest;
  a.maximum[r] = maximum;
  // A row that has seen nothing yet keeps -inf, and must not meet -inf - -inf.
  const float shift = maximum == -infinity ? 0 : maximum;
  Vec<float> sums[2] = {};
  int64_t i = 0;
  const auto weigh = [&](const auto& weight) {
    for (; i + 2 * lanes <= seen; i += 2 * lanes) {
      const Vec<float> first = weight(i), second = weight(i + lanes);
      sums[0] += first;
      sums[1] += second;
      store_pair(weights + i, first, second);
    }
    if (i < seen) {
      const Vec<float> first = where_seen(weight(i), i, seen, 0),
                       second = where_seen(weight(i + lanes), i + lanes, seen, 0);
      sums[0] += first;
      sums[1] += second;
      store_pair(weights + i, first, second);
      i += 2 * lanes;
    }
  };
  if (is_plain) {
    const float scale = a.scale * log2_e, power = shift * log2_e;
    weigh([&](int64_t k) { return exp2_of_difference<T>(raw(k) * scale - power); });
  } else {
    weigh([&](int64_t k) { return exp2_of_difference<T>((score(k) - shift) * log2_e); });
  }
  for (; i < a.columns; i += 2 * lanes) store_pair(weights + i, Vec<float>{}, Vec<float>{});
  const float sum = sum_of_lanes(sums[0] + sums[1]);
  if (sum != sum) {  // NaN among the scores, which larger_number() misses
    a.maximum[r] = maximum_of_seen(seen, before, score, larger);
  }
  return sum;
}

/// `store_pair` stores two vectors of weights, as numbers of type T, one behind the other.
template <class T, class StorePair>
void softmax_rows(const SoftmaxBlock& a, const StorePair& store_pair) {
  for (int64_t first = 0; first < a.rows; first += lanes) {
    const int64_t count = a.rows - first < lanes ? a.rows - first : lanes;
    const auto here = [&](const auto& f) { count == lanes ? f(Full{}) : f(Part{count}); };
    alignas(64) float added[lanes] = {};
    Vec<float> before{};
    here([&](auto place) { before = load(a.maximum + first, place); });
    for (int64_t r = first; r < first + count; ++r) {
      const int64_t visible = a.causal && a.seen + r < a.keys ? a.seen + r : a.keys;
      added[r - first] = softmax_row<T>(a, r, visible < 0 ? 0 : visible, store_pair);
    }
    here([&](auto place) {
      const Vec<float> maximum = load(a.maximum + first, place);
      const Vec<float> shift = select(maximum == -infinity, Vec<float>{}, maximum);
      const Vec<float> correction = exp(before - shift);
      store(a.correction + first, correction, place);
      store(a.sum + first, load(a.sum + first, place) * correction + load_vector<Vec<float>>(added), place);
    });
  }
}

}  // namespace
}  // namespace cann_host::kernels
