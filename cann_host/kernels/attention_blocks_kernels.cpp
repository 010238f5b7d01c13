// Rows of scores between the products of flash attention. Compiled once per instruction set.

#include "cann_host/kernels/attention_blocks_kernels.h"

#include "cann_host/kernels/math.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

constexpr float infinity = __builtin_inff();

/// x in the lanes of columns below `seen`, else `other`.
inline Vec<float> where_seen(Vec<float> x, int64_t column, int64_t seen, float other) {
  if (column + lanes <= seen) return x;
  const auto last = static_cast<int32_t>(seen - column);
  return select(lane_numbers<int32_t>() < last, x, splat<Vec<float>>(other));
}

template <class T>
void softmax_rows(const SoftmaxBlock& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t visible = a.causal && a.seen + r < a.keys ? a.seen + r : a.keys;
    const int64_t seen = visible < 0 ? 0 : visible;
    const float* scores = a.scores + r * a.stride;
    const float* bias = a.bias == nullptr ? nullptr : a.bias + r * a.bias_stride;
    T* weights = static_cast<T*>(a.weights) + r * a.stride;
    const auto score = [&](int64_t i) {
      Vec<float> x = load(scores + i, Full{}) * a.scale;
      if (bias != nullptr)
        x += i + lanes <= a.keys ? load(bias + i, Full{}) : load(bias + i, Part{a.keys - i});
      return where_seen(x, i, seen, -infinity);
    };
    // Two side by side: a comparison waits for the one before.
    Vec<float> maxima = splat<Vec<float>>(a.maximum[r]), others = maxima;
    int64_t m = 0;
    for (; m + lanes < seen; m += 2 * lanes) {
      maxima = larger(maxima, score(m));
      others = larger(others, score(m + lanes));
    }
    if (m < seen) maxima = larger(maxima, score(m));
    const float maximum = maximum_of_lanes(larger(maxima, others));
    // A row that has seen nothing yet keeps -inf, and must not meet -inf - -inf.
    const float shift = maximum == -infinity ? 0 : maximum;
    a.correction[r] = exp(splat<Vec<float>>(a.maximum[r] - shift))[0];
    a.maximum[r] = maximum;
    Vec<float> sum{};
    int64_t i = 0;
    for (; i < seen; i += lanes) {
      const Vec<float> weight = exp_for<T>(score(i) - shift);
      const Vec<float> kept = where_seen(weight, i, seen, 0);
      sum += kept;
      store(weights + i, kept, Full{});
    }
    for (; i < a.columns; i += lanes) store(weights + i, Vec<float>{}, Full{});
    a.sum[r] = a.sum[r] * a.correction[r] + sum_of_lanes(sum);
  }
}

/// Two rows of a second operand.
inline void store_pair(float* to, int64_t stride, int64_t column, Vec<float> first, Vec<float> second) {
  store(to + column, first, Full{});
  store(to + stride + column, second, Full{});
}
inline void store_pair(BFloat16* to, int64_t, int64_t column, Vec<float> first, Vec<float> second) {
  BFloat16 low[lanes], high[lanes];
  narrow(low, first);
  narrow(high, second);
  const auto widened = [](const BFloat16* p) {
    return __builtin_convertvector(load_vector<Lanes<uint16_t, lanes>>(p), Vec<uint32_t>);
  };
  store_vector(to + 2 * column, widened(low) | widened(high) << 16);
}

template <class T>
void score_gradient_rows(const ScoreGradientBlock& a) {
  const Vec<float> nothing{};
  for (int64_t j = 0; j < a.padded_keys; j += 2) {
    T* packed = static_cast<T*>(a.packed_dscores) + j * a.stride;
    for (int64_t i = 0; i < a.queries; i += lanes) {
      Vec<float> gradients[2] = {nothing, nothing};
      for (int64_t k = 0; k < 2 && j + k < a.keys; ++k) {
        const int64_t at = (j + k) * a.stride + i;
        Vec<float> weight =
            exp_for<T>(load(a.scores + at, Full{}) * a.scale - load(a.log_sum_exp + i, Full{}));
        if (a.causal) {
          const auto hidden = static_cast<int32_t>(j + k - a.first_query - i);  // queries before that one
          weight = select(lane_numbers<int32_t>() < hidden, nothing, weight);
        }
        gradients[k] = weight * (load(a.dweights + at, Full{}) - load(a.delta + i, Full{})) * a.scale;
        store(static_cast<T*>(a.weights) + at, weight, Full{});
        store(static_cast<T*>(a.dscores) + at, gradients[k], Full{});
      }
      store_pair(packed, a.stride, i, gradients[0], gradients[1]);
    }
  }
}

template <class T>
void convert_each_row(const ConvertRows& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* from = a.from + r * a.from_stride;
    T* to = static_cast<T*>(a.to) + r * a.to_stride;
    const float factor = a.factors == nullptr ? 1 : a.factors[r];
    each_vector(a.columns,
                [&](int64_t i, auto place) { store(to + i, load(from + i, place) * factor, place); });
  }
}

template <class T>
void multiply_each_row(const RowProducts& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* left = static_cast<const T*>(a.a) + r * a.a_stride;
    const T* right = static_cast<const T*>(a.b) + r * a.b_stride;
    a.sums[r] = sum_over(
        a.columns, [&](int64_t i, auto place) { return load(left + i, place) * load(right + i, place); });
  }
}

/// Zeros in the place of padding.
template <class To>
void clear(To* to, int64_t from, int64_t count) {
  if (from < count) __builtin_memset(to + from, 0, (count - from) * sizeof(To));
}

template <class T>
void pack_as_rows(const PackRows& a) {
  float* to = static_cast<float*>(a.to);
  for (int64_t r = 0; r < a.rows; ++r, to += a.width) {
    const T* row = static_cast<const T*>(a.data) + r * a.stride;
    each_vector(a.columns, [&](int64_t i, auto place) { store(to + i, load(row + i, place), place); });
    clear(to, a.columns, a.width);
  }
  clear(to, 0, (a.padded_rows - a.rows) * a.width);
}

void pack_as_pairs(const PackRows& a) {
  auto* to = static_cast<uint32_t*>(a.to);
  for (int64_t r = 0; r < a.padded_rows; r += 2, to += a.width) {
    const auto* low = static_cast<const uint16_t*>(a.data) + r * a.stride;
    const auto* high = low + a.stride;
    const uint32_t has_low = r < a.rows ? 0xffff : 0, has_high = r + 1 < a.rows ? 0xffff : 0;
    if (!has_high) high = low;
    if (has_low) {
      for (int64_t i = 0; i < a.columns; ++i) to[i] = (low[i] & has_low) | (high[i] & has_high) << 16;
    }
    clear(to, has_low ? a.columns : 0, a.width);
  }
}

using Types = TypeList<float, BFloat16>;
using Stored = TypeList<float, Half, BFloat16>;

}  // namespace

namespace CANN_HOST_ISA {

extern const AttentionBlockKernels attention_block_kernels = {
    .softmax = by_type<void (*)(const SoftmaxBlock&)>(Types{}, []<class T> { return &softmax_rows<T>; }),
    .score_gradient = by_type<void (*)(const ScoreGradientBlock&)>(
        Types{}, []<class T> { return &score_gradient_rows<T>; }),
    .convert = by_type<void (*)(const ConvertRows&)>(Stored{}, []<class T> { return &convert_each_row<T>; }),
    .row_products =
        by_type<void (*)(const RowProducts&)>(Stored{}, []<class T> { return &multiply_each_row<T>; }),
    .pack = by_type<void (*)(const PackRows&)>(Stored{},
                                               []<class T> {
                                                 if constexpr (std::is_same_v<T, BFloat16>)
                                                   return &pack_as_pairs;
                                                 else
                                                   return &pack_as_rows<T>;
                                               }),
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
