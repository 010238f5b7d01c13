#include "cann_host/opapi/attention_blocks.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "cann_host/kernels/attention_blocks.h"
#include "cann_host/kernels/transpose.h"
#include "cann_host/opapi/fused.h"

namespace cann_host {
namespace {

using at::native::cpublas::brgemm;
using at::native::cpublas::brgemm_release;

constexpr int64_t query_block = 64;
constexpr int64_t key_block = 256;          // of the gradient
constexpr int64_t forward_key_block = 512;  // the fewer, the less often sums are read and written again
// Between rows of scores: rows of 2^n bytes would fall into a few sets of the L1 cache.
constexpr int64_t score_stride = forward_key_block + 16;
constexpr int64_t padding = 32;  // of keys and queries, for whole vectors and pairs of rows
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Memory that is written before it is read.
template <class F>
std::unique_ptr<F[]> memory(int64_t elements) {
  return std::make_unique_for_overwrite<F[]>(elements);
}

int64_t padded(int64_t n) { return (n + padding - 1) / padding * padding; }

/// The type in which elements of type T are multiplied.
template <class T>
using Factor = std::conditional_t<std::is_same_v<T, at::BFloat16>, at::BFloat16, float>;
template <class F>
constexpr bool in_pairs = std::is_same_v<F, at::BFloat16>;
template <class F>
constexpr kernels::DataType type_of = in_pairs<F> ? kernels::DataType::bfloat16 : kernels::DataType::float32;

/// c[m, n] (+)= a[m, k] b[k, n]; b is packed.
template <class F>
void multiply(int64_t m, int64_t n, int64_t k, const F* a, int64_t lda, const F* b, int64_t ldb, float* c,
              int64_t ldc, bool adds) {
  brgemm(m, n, k, lda, ldb, ldc, adds, a, b, c, in_pairs<F>);
}

template <class F>
bool multiplies() {
  static const bool result = [] {
    const std::vector<F> a(padding, F(1)), b(padding, F(1));
    float c = 0;
    try {
      multiply<F>(1, 1, padding, a.data(), padding, b.data(), 1, &c, 1, false);
      brgemm_release(in_pairs<F>);
    } catch (const c10::Error&) {  // that is how PyTorch tells that the processor lacks the instructions
      return false;
    }
    return c == padding;
  }();
  return result;
}

/// Rows in memory, `stride` apart.
template <class T>
struct Rows {
  const T* data;
  int64_t stride;
  const T* operator[](int64_t row) const { return data + row * stride; }
};

template <class T>
Rows<T> rows_of(const at::Tensor& heads, int64_t batch, int64_t head) {
  return {heads.const_data_ptr<T>() + batch * heads.stride(0) + head * heads.stride(1), heads.stride(2)};
}

template <class T>
constexpr kernels::DataType stored_type = std::is_same_v<T, at::BFloat16> ? kernels::DataType::bfloat16
                                          : std::is_same_v<T, at::Half>   ? kernels::DataType::float16
                                                                          : kernels::DataType::float32;

/// A packed matrix has `width` columns: rows for float32, pairs of rows element by element for bfloat16.
template <class F, class T>
void pack(const Rows<T>& from, int64_t rows, int64_t columns, int64_t padded_rows, int64_t width, F* to) {
  kernels::pack_rows({.from = stored_type<T>,
                      .data = from.data,
                      .stride = from.stride,
                      .to = to,
                      .rows = rows,
                      .padded_rows = padded_rows,
                      .columns = columns,
                      .width = width});
}

/// `columns` rows of the rows' elements, each with zeros up to `width`.
template <class F, class T>
void transpose(const Rows<T>& from, int64_t rows, int64_t columns, int64_t width, F* to) {
  if constexpr (std::is_same_v<F, T>) {
    kernels::transpose({.element_bytes = sizeof(T),
                        .from = from.data,
                        .from_stride = from.stride,
                        .to = to,
                        .to_stride = width,
                        .rows = rows,
                        .columns = columns});
    for (int64_t c = 0; c < columns; ++c) std::fill(to + c * width + rows, to + (c + 1) * width, F(0));
  } else {
    constexpr int64_t together = 16;  // lines of `to` that are written at a time
    for (int64_t first = 0; first < columns; first += together) {
      const int64_t last = std::min(columns, first + together);
      for (int64_t r = 0; r < rows; ++r) {
        const T* row = from[r];
        for (int64_t c = first; c < last; ++c) to[c * width + r] = static_cast<F>(row[c]);
      }
      for (int64_t c = first; c < last; ++c) std::fill(to + c * width + rows, to + (c + 1) * width, F(0));
    }
  }
}

/// The transpose as a packed matrix: `columns` rows, `width` columns, zeros behind `rows`.
template <class F, class T>
void pack_transposed(const Rows<T>& from, int64_t rows, int64_t columns, int64_t width, F* to) {
  if constexpr (in_pairs<F>) {  // two neighbours in a row are two in a column of pairs: words of 32 bits
    const Rows<uint32_t> words{reinterpret_cast<const uint32_t*>(from.data), from.stride / 2};
    if (from.stride % 2 == 0 && reinterpret_cast<uintptr_t>(from.data) % alignof(uint32_t) == 0) {
      return transpose(words, rows, columns / 2, width, reinterpret_cast<uint32_t*>(to));
    }
    std::fill_n(to, columns * width, F(0));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) to[c / 2 * 2 * width + 2 * r + c % 2] = from[r][c];
    }
  } else {
    transpose(from, rows, columns, width, to);
  }
}

/// The rows as a first operand: as they are, or converted into `room`.
template <class F, class T>
Rows<F> as_factors(const Rows<T>& from, int64_t rows, int64_t columns, std::vector<F>& room) {
  if constexpr (std::is_same_v<F, T>) {
    return from;
  } else {
    room.resize(rows * columns);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from[r], columns, room.data() + r * columns);
    return {room.data(), columns};
  }
}

/// to = from * factors (null: 1), a factor for each row.
template <class T>
void convert(const float* from, int64_t from_stride, const float* factors, T* to, int64_t to_stride,
             int64_t rows, int64_t columns) {
  kernels::convert_rows({.type = stored_type<T>,
                         .from = from,
                         .from_stride = from_stride,
                         .factors = factors,
                         .to = to,
                         .to_stride = to_stride,
                         .rows = rows,
                         .columns = columns});
}

/// How many pieces of so many multiplications a thread should take at least.
int64_t grain_of(int64_t multiplications) {
  constexpr int64_t least = 1 << 20;
  return std::max<int64_t>(1, least / std::max<int64_t>(1, multiplications));
}

struct Shape {
  explicit Shape(const Attention& a)
      : batch(a.query.size(0)),
        heads(a.query.size(1)),
        key_heads(a.key.size(1)),
        queries(a.query.size(2)),
        keys(a.key.size(2)),
        size(a.query.size(3)),
        value_size(a.value.size(3)),
        padded_keys(padded(keys)),
        causal(a.is_causal()),
        scale(static_cast<float>(a.scale)) {}
  int64_t groups() const { return heads / key_heads; }

  int64_t batch, heads, key_heads, queries, keys, size, value_size, padded_keys;
  bool causal;
  float scale;
};

/// Keys and values of all heads as second operands.
template <class T, class F>
struct PackedKeys {
  PackedKeys(const Attention& a, const Shape& s)
      : key_elements(s.size * s.padded_keys),
        value_elements(s.padded_keys * s.value_size),
        keys(memory<F>(s.batch * s.key_heads * key_elements)),
        values(memory<F>(s.batch * s.key_heads * value_elements)) {
    at::parallel_for(0, s.batch * s.key_heads, grain_of(8 * s.keys * (s.size + s.value_size)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t n = begin; n < end; ++n) {
                         pack_transposed(rows_of<T>(a.key, n / s.key_heads, n % s.key_heads), s.keys, s.size,
                                         s.padded_keys, keys.get() + n * key_elements);
                         pack(rows_of<T>(a.value, n / s.key_heads, n % s.key_heads), s.keys, s.value_size,
                              s.padded_keys, s.value_size, values.get() + n * value_elements);
                       }
                     });
  }
  int64_t key_elements, value_elements;
  std::unique_ptr<F[]> keys, values;
};

/// The queries [first, first + rows) of one head.
template <class T, class F>
class ForwardBlock {
 public:
  explicit ForwardBlock(const Shape& s)
      : s_(s),
        scores_(memory<float>(query_block * score_stride)),
        weights_(memory<F>(query_block * score_stride)),
        sums_(memory<float>(query_block * s.value_size)) {}

  void run(const Rows<T>& queries, int64_t first, const F* keys, const F* values, const float* bias,
           int64_t bias_stride, T* out, float* log_sum_exp, float* maximum) {
    const int64_t rows = std::min(query_block, s_.queries - first);
    const Rows<F> factors = as_factors<F>(Rows<T>{queries[first], queries.stride}, rows, s_.size, converted_);
    std::fill_n(maximum_, rows, -infinity);
    std::fill_n(sum_, rows, 0.0f);
    const int64_t last = s_.causal ? std::min(s_.keys, first + rows) : s_.keys;
    for (int64_t key = 0; key < last; key += forward_key_block) {
      const int64_t columns = std::min(forward_key_block, s_.padded_keys - key);
      multiply<F>(rows, columns, s_.size, factors.data, factors.stride, keys + key * (in_pairs<F> ? 2 : 1),
                  s_.padded_keys, scores_.get(), score_stride, false);
      kernels::softmax_block({.type = type_of<F>,
                              .scores = scores_.get(),
                              .weights = weights_.get(),
                              .stride = score_stride,
                              .rows = rows,
                              .columns = columns,
                              .seen = first + 1 - key,
                              .causal = s_.causal,
                              .keys = std::min(columns, s_.keys - key),
                              .scale = s_.scale,
                              .bias = bias == nullptr ? nullptr : bias + key,
                              .bias_stride = bias_stride,
                              .maximum = maximum_,
                              .sum = sum_,
                              .correction = correction_});
      if (key > 0 && has_corrections(rows)) {
        convert<float>(sums_.get(), s_.value_size, correction_, sums_.get(), s_.value_size, rows,
                       s_.value_size);
      }
      multiply<F>(rows, s_.value_size, columns, weights_.get(), score_stride, values + key * s_.value_size,
                  s_.value_size, sums_.get(), s_.value_size, key > 0);
    }
    for (int64_t r = 0; r < rows; ++r) {
      maximum[r] = maximum_[r];
      log_sum_exp[r] = maximum_[r] + std::log(sum_[r]);
      correction_[r] = sum_[r] == 0 ? 0 : 1 / sum_[r];
    }
    convert<T>(sums_.get(), s_.value_size, correction_, out, s_.value_size, rows, s_.value_size);
  }

 private:
  /// Most blocks of keys leave the maxima of most queries as they were.
  bool has_corrections(int64_t rows) const {
    return std::any_of(correction_, correction_ + rows, [](float factor) { return factor != 1; });
  }

  const Shape& s_;
  std::unique_ptr<float[]> scores_;
  std::unique_ptr<F[]> weights_;
  std::unique_ptr<float[]> sums_;
  std::vector<F> converted_;
  float maximum_[query_block], sum_[query_block], correction_[query_block];
};

template <class T>
AttentionResult forward(const Attention& a, const at::Tensor& bias) {
  using F = Factor<T>;
  const Shape s(a);
  const PackedKeys<T, F> packed(a, s);
  const auto rows = [&] {
    return at::empty({s.batch, s.heads, s.queries}, a.query.options().dtype(at::kFloat));
  };
  AttentionResult result{at::empty({s.batch, s.heads, s.queries, s.value_size}, a.query.options()), rows(),
                         rows()};
  T* out = result.out.mutable_data_ptr<T>();
  float *log_sum_exp = result.log_sum_exp.mutable_data_ptr<float>(),
        *maximum = result.maximum.mutable_data_ptr<float>();
  const int64_t blocks = (s.queries + query_block - 1) / query_block;
  const int64_t work = std::min(query_block, s.queries) * s.keys * (s.size + s.value_size);
  at::parallel_for(0, s.batch * s.heads * blocks, grain_of(work), [&](int64_t begin, int64_t end) {
    ForwardBlock<T, F> block(s);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t row = n / blocks, batch = row / s.heads, head = row % s.heads;
      const int64_t first = n % blocks * query_block, of = batch * s.key_heads + head / s.groups();
      const float* shift = bias.defined() ? rows_of<float>(bias, batch, head)[first] : nullptr;
      block.run(rows_of<T>(a.query, batch, head), first, packed.keys.get() + of * packed.key_elements,
                packed.values.get() + of * packed.value_elements, shift, bias.defined() ? bias.stride(2) : 0,
                out + (row * s.queries + first) * s.value_size, log_sum_exp + row * s.queries + first,
                maximum + row * s.queries + first);
    }
    brgemm_release(in_pairs<F>);
  });
  return result;
}

/// Gradients of one head of keys and values, and of the queries that share it.
template <class T, class F>
class BackwardHead {
 public:
  explicit BackwardHead(const Shape& s)
      : s_(s),
        scores_(key_block * query_block),
        dweights_(key_block * query_block),
        weights_(key_block * query_block),
        dscores_(key_block * query_block),
        packed_dscores_(key_block * query_block),
        query_t_(s.size * query_block),
        query_(query_block * s.size),
        dout_t_(s.value_size * query_block),
        dout_(query_block * s.value_size),
        key_t_(s.size * s.padded_keys),
        dquery_t_(s.size * query_block),
        dquery_(query_block * s.size),
        dkey_(s.keys * s.size),
        dvalue_(s.keys * s.value_size) {}

  void begin(const Rows<T>& keys, const Rows<T>& values) {
    transpose(keys, s_.keys, s_.size, s_.padded_keys, key_t_.data());
    keys_ = as_factors<F>(keys, s_.keys, s_.size, converted_keys_);
    values_ = as_factors<F>(values, s_.keys, s_.value_size, converted_values_);
    std::fill(dkey_.begin(), dkey_.end(), 0.0f);
    std::fill(dvalue_.begin(), dvalue_.end(), 0.0f);
  }

  void add_queries(const Rows<T>& queries, const Rows<T>& outs, const Rows<T>& douts,
                   const float* log_sum_exp, T* dquery) {
    for (int64_t first = 0; first < s_.queries; first += query_block) {
      const int64_t rows = std::min(query_block, s_.queries - first);
      take_block({queries[first], queries.stride}, {outs[first], outs.stride}, {douts[first], douts.stride},
                 log_sum_exp + first, rows);
      const int64_t last = s_.causal ? std::min(s_.keys, first + rows) : s_.keys;
      for (int64_t key = 0; key < last; key += key_block) add_keys(first, rows, key);
      transpose(Rows<float>{dquery_t_.data(), query_block}, s_.size, rows, s_.size, dquery_.data());
      convert<T>(dquery_.data(), s_.size, nullptr, dquery + first * s_.size, s_.size, rows, s_.size);
    }
  }

  void end(T* dkey, T* dvalue) const {
    convert<T>(dkey_.data(), 0, nullptr, dkey, 0, 1, s_.keys * s_.size);
    convert<T>(dvalue_.data(), 0, nullptr, dvalue, 0, 1, s_.keys * s_.value_size);
  }

 private:
  void take_block(const Rows<T>& queries, const Rows<T>& outs, const Rows<T>& douts, const float* log_sum_exp,
                  int64_t rows) {
    const int64_t columns = padded(rows);
    pack_transposed(queries, rows, s_.size, query_block, query_t_.data());
    pack(queries, rows, s_.size, columns, s_.size, query_.data());
    pack_transposed(douts, rows, s_.value_size, query_block, dout_t_.data());
    pack(douts, rows, s_.value_size, columns, s_.value_size, dout_.data());
    std::fill_n(delta_, columns, 0.0f);
    kernels::row_products({.type = stored_type<T>,
                           .a = outs.data,
                           .a_stride = outs.stride,
                           .b = douts.data,
                           .b_stride = douts.stride,
                           .sums = delta_,
                           .rows = rows,
                           .columns = s_.value_size});
    // exp(-inf): a query that sees nothing, and a column that is no query, have no weights.
    for (int64_t r = 0; r < columns; ++r)
      log_sum_exp_[r] = r < rows && log_sum_exp[r] != -infinity ? log_sum_exp[r] : infinity;
    std::fill(dquery_t_.begin(), dquery_t_.end(), 0.0f);
  }

  void add_keys(int64_t first, int64_t rows, int64_t key) {
    const int64_t keys = std::min(key_block, s_.keys - key), padded_keys = padded(keys),
                  columns = padded(rows);
    const F *key_rows = keys_[key], *value_rows = values_[key];
    multiply<F>(keys, columns, s_.size, key_rows, keys_.stride, query_t_.data(), query_block, scores_.data(),
                query_block, false);
    multiply<F>(keys, columns, s_.value_size, value_rows, values_.stride, dout_t_.data(), query_block,
                dweights_.data(), query_block, false);
    kernels::score_gradient_block({.type = type_of<F>,
                                   .scores = scores_.data(),
                                   .dweights = dweights_.data(),
                                   .log_sum_exp = log_sum_exp_,
                                   .delta = delta_,
                                   .weights = weights_.data(),
                                   .dscores = dscores_.data(),
                                   .packed_dscores = packed_dscores_.data(),
                                   .stride = query_block,
                                   .keys = keys,
                                   .padded_keys = padded_keys,
                                   .queries = columns,
                                   .causal = s_.causal,
                                   .first_query = first - key,
                                   .scale = s_.scale});
    multiply<F>(keys, s_.value_size, columns, weights_.data(), query_block, dout_.data(), s_.value_size,
                dvalue_.data() + key * s_.value_size, s_.value_size, true);
    multiply<F>(keys, s_.size, columns, dscores_.data(), query_block, query_.data(), s_.size,
                dkey_.data() + key * s_.size, s_.size, true);
    multiply<F>(s_.size, columns, padded_keys, key_t_.data() + key, s_.padded_keys, packed_dscores_.data(),
                query_block, dquery_t_.data(), query_block, true);
  }

  const Shape& s_;
  std::vector<float> scores_, dweights_;
  std::vector<F> weights_, dscores_, packed_dscores_, query_t_, query_, dout_t_, dout_, key_t_;
  std::vector<F> converted_keys_, converted_values_;
  std::vector<float> dquery_t_, dquery_, dkey_, dvalue_;
  Rows<F> keys_{}, values_{};
  float log_sum_exp_[query_block], delta_[query_block];
};

template <class T>
AttentionGradient backward(const Attention& a, const at::Tensor& grad, const AttentionResult& result) {
  using F = Factor<T>;
  const Shape s(a);
  const auto log_sum_exp = result.log_sum_exp.contiguous();
  const auto new_gradient = [](const at::Tensor& of) { return at::empty(of.sizes(), of.options()); };
  AttentionGradient gradient{new_gradient(a.query), new_gradient(a.key), new_gradient(a.value), {}, {}};
  T *dquery = gradient.query.mutable_data_ptr<T>(), *dkey = gradient.key.mutable_data_ptr<T>(),
    *dvalue = gradient.value.mutable_data_ptr<T>();
  const int64_t work = s.groups() * s.queries * s.keys * (3 * s.size + 2 * s.value_size);
  at::parallel_for(0, s.batch * s.key_heads, grain_of(work), [&](int64_t begin, int64_t end) {
    BackwardHead<T, F> head(s);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t batch = n / s.key_heads;
      head.begin(rows_of<T>(a.key, batch, n % s.key_heads), rows_of<T>(a.value, batch, n % s.key_heads));
      for (int64_t group = 0; group < s.groups(); ++group) {
        const int64_t of = n % s.key_heads * s.groups() + group, row = batch * s.heads + of;
        head.add_queries(rows_of<T>(a.query, batch, of), rows_of<T>(result.out, batch, of),
                         rows_of<T>(grad, batch, of), log_sum_exp.const_data_ptr<float>() + row * s.queries,
                         dquery + row * s.queries * s.size);
      }
      head.end(dkey + n * s.keys * s.size, dvalue + n * s.keys * s.value_size);
    }
    brgemm_release(in_pairs<F>);
  });
  return gradient;
}

template <class Call>
auto by_dtype(at::ScalarType dtype, const Call& call) {
  if (dtype == at::kFloat) return call.template operator()<float>();
  return dtype == at::kBFloat16 ? call.template operator()<at::BFloat16>()
                                : call.template operator()<at::Half>();
}

}  // namespace

bool takes_blocks(const Attention& a, bool wants_maximum) {
  for (const auto* t : {&a.query, &a.key, &a.value}) {
    if (t->scalar_type() != a.query.scalar_type() || t->stride(-1) != 1 || t->numel() == 0) return false;
  }
  const auto dtype = a.query.scalar_type();
  if (dtype == at::kBFloat16) {
    // Pairs of elements of a head are multiplied together.
    return a.query.size(3) % 2 == 0 && a.value.size(3) % 2 == 0 && multiplies<at::BFloat16>();
  }
  // float32 is faster in ATen's own kernel, which multiplies by MKL but does not tell the maxima.
  return (dtype == at::kHalf || (dtype == at::kFloat && wants_maximum)) && multiplies<float>();
}

AttentionResult attend_in_blocks(const Attention& a, const at::Tensor& bias) {
  return by_dtype(a.query.scalar_type(), [&]<class T> { return forward<T>(a, bias); });
}

AttentionGradient attend_backward_in_blocks(const Attention& a, const at::Tensor& grad,
                                            const AttentionResult& result) {
  const auto dense = [](const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); };
  const AttentionResult given{dense(result.out), result.log_sum_exp, {}};
  return by_dtype(a.query.scalar_type(), [&]<class T> { return backward<T>(a, dense(grad), given); });
}

}  // namespace cann_host
