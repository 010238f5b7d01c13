// Rotary embedding, masked softmax, sums and maxima, cross entropy and AdamW. Compiled once per instruction
// set.

#include "cann_host/kernels/fused_kernels.h"
#include "cann_host/kernels/math.h"
#include "cann_host/kernels/pointwise_kernels.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

/// y[0, n) = f(i, Full or Part), past the caches if all rows together are too large for them.
template <class T, class F>
void write_row(T* y, int64_t n, int64_t rows, const F& f) {
  constexpr int bytes = lanes * sizeof(T);
  const bool streaming = rows * n * static_cast<int64_t>(sizeof(T)) > streaming_bytes &&
                         reinterpret_cast<uintptr_t>(y) % bytes == 0;
  if (!streaming) return each_vector(n, [&](int64_t i, auto place) { store(y + i, f(i, place), place); });
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store_streaming(y + i, pack<T>(f(i, Full{})));
  if (i < n) store(y + i, f(i, Part{n - i}), Part{n - i});
  stream_fence();
}

/// (a, b) of two halves become (a cos - b sin, b cos + a sin); transposed is the rotation back.
template <class T>
void rotate_halves(const Rotary& a, const T* x, const T* cos, const T* sin, T* y) {
  const int64_t half = a.columns / 2;
  each_vector(half, [&](int64_t i, auto place) {
    const Vec<float> first = load(x + i, place), second = load(x + half + i, place);
    const Vec<float> sin_first = load(sin + i, place), sin_second = load(sin + half + i, place);
    const Vec<float> to_first = a.transposed ? second * sin_second : -(second * sin_first);
    const Vec<float> to_second = a.transposed ? -(first * sin_first) : first * sin_second;
    store(y + i, first * load(cos + i, place) + to_first, place);
    store(y + half + i, second * load(cos + half + i, place) + to_second, place);
  });
}

/// The same with pairs of neighbours.
template <class T>
void rotate_pairs(const Rotary& a, const T* x, const T* cos, const T* sin, T* y) {
  const Vec<int32_t> neighbour = lane_numbers<int32_t>() ^ 1;
  const Vec<float> signs =
      select((lane_numbers<int32_t>() & 1) == 0, splat<Vec<float>>(-1), splat<Vec<float>>(1));
  each_vector(a.columns, [&](int64_t i, auto place) {
    const Vec<float> value = load(x + i, place), angle = load(sin + i, place);
    const Vec<float> turned = a.transposed ? __builtin_shuffle(value * angle * signs, neighbour)
                                           : __builtin_shuffle(value, neighbour) * angle * signs;
    store(y + i, value * load(cos + i, place) + turned, place);
  });
}

template <class T>
void rotary_rows(const Rotary& a, int64_t begin, int64_t end, float*) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + offset_of(r, a.sizes, a.x_strides);
    const int64_t table = offset_of(r, a.sizes, a.table_strides);
    const T* cos = static_cast<const T*>(a.cos) + table;
    const T* sin = static_cast<const T*>(a.sin) + table;
    T* y = static_cast<T*>(a.y) + offset_of(r, a.sizes, a.y_strides);
    a.interleaved ? rotate_pairs(a, x, cos, sin, y) : rotate_halves(a, x, cos, sin, y);
  }
}

/// True where the mask hides elements of a vector.
inline Vec<int32_t> hidden_at(const bool* mask, Full) {
  return __builtin_convertvector(load_vector<Lanes<uint8_t, lanes>>(mask), Vec<int32_t>) != 0;
}
inline Vec<int32_t> hidden_at(const bool* mask, Part part) {
  bool padded[lanes] = {};
  std::memcpy(padded, mask, part.count);
  return hidden_at(padded, Full{});
}

template <class T>
void masked_softmax_rows(const MaskedSoftmax& a, int64_t begin, int64_t end, float* row) {
  constexpr float hidden_score = -10000;
  const int64_t n = a.columns;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * n;
    T* y = static_cast<T*>(a.y) + r * n;
    const bool* mask = a.mask == nullptr ? nullptr : a.mask + offset_of(r, a.sizes, a.mask_strides);
    const int64_t last_seen = r % a.sizes[2];
    const float maximum = maximum_over(n, [&](int64_t i, auto place) {
      Vec<float> v = load(x + i, place) * a.scale;
      if (mask != nullptr) v = select(hidden_at(mask + i, place), splat<Vec<float>>(hidden_score), v);
      if (a.causal) {
        const Vec<int32_t> column = lane_numbers<int32_t>() + static_cast<int32_t>(i);
        v = select(column > static_cast<int32_t>(last_seen), splat<Vec<float>>(hidden_score), v);
      }
      store(row + i, v, place);
      return v;
    });
    const float sum = sum_over(n, [&](int64_t i, auto place) {
      const Vec<float> v = exp_for<T>(load(row + i, place) - maximum);
      store(row + i, v, place);
      return v;
    });
    const float factor = 1 / sum;
    write_row(y, n, a.sizes[0] * a.sizes[1] * a.sizes[2],
              [&](int64_t i, auto place) { return load(row + i, place) * factor; });
  }
}

template <class T, Fold fold>
void fold_each_row(const RowFold& a, int64_t begin, int64_t end, float*) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.columns;
    const auto element = [&](int64_t i, auto place) { return load(x + i, place); };
    const float folded = fold == Fold::sum ? sum_over(a.columns, element) : maximum_over(a.columns, element);
    static_cast<T*>(a.y)[r] = from_float<T>(folded * a.scale);
  }
}

template <class T>
void cross_entropy_rows(const CrossEntropy& a, int64_t begin, int64_t end, float*) {
  const int64_t n = a.columns;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.logits) + r * n;
    T* y = static_cast<T*>(a.log_probabilities) + r * n;
    const float maximum = maximum_over(n, [&](int64_t i, auto place) { return load(x + i, place); });
    const float sum = sum_over(n, [&](int64_t i, auto place) {
      const Vec<float> v = load(x + i, place) - maximum;
      return exp(v);
    });
    const float log_sum = maximum + log(splat<Vec<float>>(sum))[0];
    float total = 0;
    if (a.mean_negative != nullptr) {
      total = sum_over(n, [&](int64_t i, auto place) { return log_sum - load(x + i, place); });
      a.mean_negative[r] = total / static_cast<float>(n);
    }
    write_row(y, n, a.rows, [&](int64_t i, auto place) { return load(x + i, place) - log_sum; });
    const int64_t target = a.target[r];
    a.loss[r] = target < 0 || target >= n ? 0 : log_sum - to_float(x[target]);
    if (a.log_sum_exp != nullptr) a.log_sum_exp[r] = log_sum;
  }
}

/// "Rows" are elements.
template <class T, class G>
void adamw_elements(const AdamWStep& a, int64_t begin, int64_t end, float*) {
  T* parameter = static_cast<T*>(a.parameter) + begin;
  T* exp_avg = static_cast<T*>(a.exp_avg) + begin;
  T* exp_avg_sq = static_cast<T*>(a.exp_avg_sq) + begin;
  T* max_exp_avg_sq = a.max_exp_avg_sq == nullptr ? nullptr : static_cast<T*>(a.max_exp_avg_sq) + begin;
  const G* gradient = static_cast<const G*>(a.gradient) + begin;
  const float sign = a.maximize ? -1.0f : 1.0f;
  each_vector(end - begin, [&](int64_t i, auto place) {
    const Vec<float> g = load(gradient + i, place) * sign;
    Vec<float> m = load(exp_avg + i, place), v = load(exp_avg_sq + i, place);
    m = m + (g - m) * a.share1;
    v = v * a.kept2 + g * g * a.share2;
    store(exp_avg + i, m, place);
    store(exp_avg_sq + i, v, place);
    if (max_exp_avg_sq != nullptr) {
      v = larger(load(max_exp_avg_sq + i, place), v);
      store(max_exp_avg_sq + i, v, place);
    }
    const Vec<float> denominator = sqrt(v) * a.root_factor + a.epsilon_in_float;
    store(parameter + i, load(parameter + i, place) * a.kept - m * a.step_size / denominator, place);
  });
}

using Types = TypeList<float, Half, BFloat16>;

}  // namespace

namespace CANN_HOST_ISA {

extern const RowKernels row_kernels = {
    .rotary = by_type<RowKernel<Rotary>>(Types{}, []<class T> { return &rotary_rows<T>; }),
    .masked_softmax =
        by_type<RowKernel<MaskedSoftmax>>(Types{}, []<class T> { return &masked_softmax_rows<T>; }),
    .fold = {by_type<RowKernel<RowFold>>(Types{}, []<class T> { return &fold_each_row<T, Fold::sum>; }),
             by_type<RowKernel<RowFold>>(Types{}, []<class T> { return &fold_each_row<T, Fold::maximum>; })},
    .cross_entropy =
        by_type<RowKernel<CrossEntropy>>(Types{}, []<class T> { return &cross_entropy_rows<T>; }),
    .adamw_same = by_type<RowKernel<AdamWStep>>(Types{}, []<class T> { return &adamw_elements<T, T>; }),
    .adamw_wide = by_type<RowKernel<AdamWStep>>(Types{}, []<class T> { return &adamw_elements<T, float>; }),
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
