// Rows of scores between the products of flash attention. Compiled once per instruction set.

#include "cann_host/kernels/attention_blocks_kernels.h"

#include "cann_host/kernels/attention_softmax.h"

namespace cann_host::kernels {
namespace {

template <class T>
void softmax(const SoftmaxBlock& a) {
  softmax_rows<T>(a, [](T* to, Vec<float> first, Vec<float> second) {
    store(to, first, Full{});
    store(to + lanes, second, Full{});
  });
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
    .softmax = by_type<void (*)(const SoftmaxBlock&)>(Types{}, []<class T> { return &softmax<T>; }),
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
