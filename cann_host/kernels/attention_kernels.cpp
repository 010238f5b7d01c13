// Attention of few queries over long keys. Compiled once per instruction set.

#include "cann_host/kernels/attention_kernels.h"

#include "cann_host/kernels/math.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

/// Vectors of an output row that are summed in registers at a time.
constexpr int value_vectors = register_bytes == 64 ? 8 : 4;

/// v with lanes that differ in bit `distance` exchanged.
inline Vec<float> exchanged(Vec<float> v, int distance) {
  return __builtin_shuffle(v, lane_numbers<int32_t>() ^ distance);
}

/// Lane j of the result is the sum of all lanes of v[j]. Destroys v.
inline Vec<float> sums_of_lanes(Vec<float> (&v)[lanes]) {
#pragma GCC unroll 8
  for (int distance = 1; distance < lanes; distance *= 2) {
    const Vec<int32_t> keeps = (lane_numbers<int32_t>() & distance) == 0;
#pragma GCC unroll 16
    for (int i = 0; i < lanes; i += 2 * distance) {
      const Vec<float> a = v[i], b = v[i + distance];
      v[i] = select(keeps, a, b) + exchanged(select(keeps, b, a), distance);
    }
  }
  return v[0];
}

/// What one query row carries from block to block.
struct Row {
  const float* query;
  float* scores;
  float* sum_of_values;
  float* maximum;
  float* sum;
};

/// Rows that read the same keys, and together convert them once: queries of heads that share a head of keys.
constexpr int rows_at_once = 4;

/// scores[0, count) = query · keys, keys being `stride` elements apart.
template <class T>
void score(const float* query, const T* keys, int64_t stride, int64_t count, int64_t size, float* scores) {
  int64_t k = 0;
  for (; k + lanes <= count; k += lanes) {
    Vec<float> sums[lanes];
#pragma GCC unroll 16
    for (int j = 0; j < lanes; ++j)
      sums[j] = Vec<float>{};  // in registers; as an initialiser it goes through memory
    const T* first = keys + k * stride;
    each_vector(size, [&](int64_t i, auto place) {
      const Vec<float> q = load(query + i, place);
#pragma GCC unroll 16
      for (int j = 0; j < lanes; ++j) sums[j] += q * load(first + j * stride + i, place);
    });
    store_vector(scores + k, sums_of_lanes(sums));
  }
  for (; k < count; ++k) {
    const T* key = keys + k * stride;
    scores[k] =
        sum_over(size, [&](int64_t i, auto place) { return load(query + i, place) * load(key + i, place); });
  }
}

/// The same for some rows, keys by keys.
template <class T>
void score_rows(const Row (&rows)[rows_at_once], const T* keys, int64_t stride, int64_t count, int64_t size) {
  constexpr int together = lanes / rows_at_once;
  int64_t k = 0;
  for (; k + together <= count; k += together) {
    Vec<float> sums[lanes];
#pragma GCC unroll 16
    for (int j = 0; j < lanes; ++j) sums[j] = Vec<float>{};
    const T* first = keys + k * stride;
    each_vector(size, [&](int64_t i, auto place) {
      Vec<float> key[together];
      for (int j = 0; j < together; ++j) key[j] = load(first + j * stride + i, place);
#pragma GCC unroll 4
      for (int r = 0; r < rows_at_once; ++r) {
        const Vec<float> q = load(rows[r].query + i, place);
        for (int j = 0; j < together; ++j) sums[r * together + j] += q * key[j];
      }
    });
    float scores[lanes];
    store_vector(scores, sums_of_lanes(sums));
    for (int r = 0; r < rows_at_once; ++r)
      std::memcpy(rows[r].scores + k, scores + r * together, together * sizeof(float));
  }
  for (const Row& row : rows) score(row.query, keys + k * stride, stride, count - k, size, row.scores + k);
}

/// The same as add_values() for `vectors` vectors of the row, or one that is a part. The fewer they are, the
/// more partial sums run side by side: one addition waits for the one before.
template <int vectors, class T, class Place>
void add_columns(const float* weights, const T* values, int64_t stride, int64_t count, float kept, float* sum,
                 Place place) {
  constexpr int partial = value_vectors / vectors;
  Vec<float> sums[partial][vectors] = {};
  const auto add = [&](Vec<float>(&to)[vectors], int64_t k) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) to[v] += load(values + k * stride + v * lanes, place) * weights[k];
  };
  int64_t k = 0;
  for (; k + partial <= count; k += partial) {
#pragma GCC unroll 8
    for (int p = 0; p < partial; ++p) add(sums[p], k + p);
  }
  for (; k < count; ++k) add(sums[0], k);
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    Vec<float> total = load(sum + v * lanes, place) * kept;
#pragma GCC unroll 8
    for (int p = 0; p < partial; ++p) total += sums[p][v];
    store(sum + v * lanes, total, place);
  }
}

/// sum[0, size) = sum * kept + Σ weights[k] * values[k].
template <class T>
void add_values(const float* weights, const T* values, int64_t stride, int64_t count, int64_t size,
                float kept, float* sum) {
  int64_t i = 0;
  const auto whole = [&]<int vectors>() {
    for (; i + vectors * lanes <= size; i += vectors * lanes) {
      add_columns<vectors>(weights, values + i, stride, count, kept, sum + i, Full{});
    }
  };
  whole.template operator()<value_vectors>();
  whole.template operator()<value_vectors / 2>();
  each_vector(size - i, [&](int64_t j, auto place) {
    add_columns<1>(weights, values + i + j, stride, count, kept, sum + i + j, place);
  });
}

/// The same for some rows: sum of row r * kept[r] + Σ weights of row r * values.
template <class T>
void add_values_to_rows(const Row (&rows)[rows_at_once], const float (&kept)[rows_at_once], const T* values,
                        int64_t stride, int64_t count, int64_t size) {
  constexpr int vectors = value_vectors / 2;
  int64_t i = 0;
  for (; i + vectors * lanes <= size; i += vectors * lanes) {
    Vec<float> sums[rows_at_once][vectors];
#pragma GCC unroll 4
    for (int r = 0; r < rows_at_once; ++r) {
      for (int v = 0; v < vectors; ++v) sums[r][v] = Vec<float>{};
    }
    for (int64_t k = 0; k < count; ++k) {
      Vec<float> value[vectors];
      for (int v = 0; v < vectors; ++v) value[v] = load(values + k * stride + i + v * lanes, Full{});
#pragma GCC unroll 4
      for (int r = 0; r < rows_at_once; ++r) {
        for (int v = 0; v < vectors; ++v) sums[r][v] += value[v] * rows[r].scores[k];
      }
    }
    for (int r = 0; r < rows_at_once; ++r) {
      float* sum = rows[r].sum_of_values + i;
      for (int v = 0; v < vectors; ++v)
        store(sum + v * lanes, load(sum + v * lanes, Full{}) * kept[r] + sums[r][v], Full{});
    }
  }
  for (int r = 0; r < rows_at_once; ++r)
    add_values(rows[r].scores, values + i, stride, count, size - i, kept[r], rows[r].sum_of_values + i);
}

/// Turns scores of a block into weights. False if nothing of the row is visible yet; else `kept` is the
/// factor for what was summed before.
template <class T>
bool weigh(const DecodeAttention& a, const Row& row, int64_t seen, const float* bias, float& kept) {
  const float maximum = maximum_over(seen, [&](int64_t i, auto place) {
    Vec<float> s = load(row.scores + i, place) * a.scale;
    if (bias != nullptr) s += load(bias + i, place);
    store(row.scores + i, s, place);
    return s;
  });
  // Comparisons are made so that NaN wins.
  const float largest = maximum > *row.maximum || maximum != maximum ? maximum : *row.maximum;
  if (largest == -__builtin_inff()) return false;
  kept = exp(splat<Vec<float>>(*row.maximum - largest))[0];
  const float sum = sum_over(seen, [&](int64_t i, auto place) {
    const Vec<float> weight = exp_for<T>(load(row.scores + i, place) - largest);
    store(row.scores + i, weight, place);
    return weight;
  });
  *row.sum = *row.sum * kept + sum;
  *row.maximum = largest;
  return true;
}

/// One block of keys and values, and what of it a row sees: `seen` keys, and the numbers that are added to
/// scores.
template <class T>
struct Block {
  const T* keys;
  const T* values;
};
struct View {
  int64_t seen;
  const float* bias;
};

template <class T>
void add_block(const DecodeAttention& a, const Row& row, const Block<T>& block, int64_t seen, float kept) {
  add_values(row.scores, block.values, a.value_strides[2], seen, a.value_size, kept, row.sum_of_values);
}

template <class T>
void take_block(const DecodeAttention& a, const Row& row, const Block<T>& block, const View& view) {
  if (view.seen <= 0) return;
  float kept;
  score(row.query, block.keys, a.key_strides[2], view.seen, a.head_size, row.scores);
  if (weigh<T>(a, row, view.seen, view.bias, kept)) add_block(a, row, block, view.seen, kept);
}

/// The same for rows that see equally many keys.
template <class T>
void take_block(const DecodeAttention& a, const Row (&rows)[rows_at_once], const Block<T>& block,
                const View (&views)[rows_at_once]) {
  const int64_t seen = views[0].seen;
  if (seen <= 0) return;
  score_rows(rows, block.keys, a.key_strides[2], seen, a.head_size);
  float kept[rows_at_once];
  bool visible[rows_at_once], all = true;
  for (int r = 0; r < rows_at_once; ++r) {
    visible[r] = weigh<T>(a, rows[r], seen, views[r].bias, kept[r]);
    all = all && visible[r];
  }
  if (all) return add_values_to_rows(rows, kept, block.values, a.value_strides[2], seen, a.value_size);
  for (int r = 0; r < rows_at_once; ++r) {
    if (visible[r]) add_block(a, rows[r], block, seen, kept[r]);
  }
}

/// The score of a head's sink joins the sum; the result is written.
template <class T>
void finish(const DecodeAttention& a, const Row& row, int64_t batch, int64_t head, int64_t query) {
  float maximum = *row.maximum, sum = *row.sum, factor = 1;
  if (a.sinks != nullptr) {
    const float sink = a.sinks[head], largest = sink > maximum ? sink : maximum;
    const Vec<float> powers = exp(Vec<float>{maximum - largest, sink - largest});
    factor = powers[0];
    sum = sum * factor + powers[1];
    maximum = largest;
  }
  const int64_t place = (batch * a.heads + head) * a.queries + query;
  if (a.log_sum_exp != nullptr) a.log_sum_exp[place] = maximum + log(splat<Vec<float>>(sum))[0];
  if (a.maximum != nullptr) a.maximum[place] = maximum;
  T* out =
      static_cast<T*>(a.out) + batch * a.out_strides[0] + head * a.out_strides[1] + query * a.out_strides[2];
  const float scale = sum == 0 ? 0 : factor / sum;  // a query that sees nothing gives 0
  each_vector(a.value_size, [&](int64_t i, auto place) {
    store(out + i, load(row.sum_of_values + i, place) * scale, place);
  });
}

template <class T>
void decode(const DecodeAttention& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t groups = a.heads / a.key_heads, rows = groups * a.queries;
  float* queries = scratch;
  float* sums_of_values = queries + rows * a.head_size;
  float* scores = sums_of_values + rows * a.value_size;
  float* statistics = scores + rows * attention_block;
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t batch = pair / a.key_heads, key_head = pair % a.key_heads;
    const int64_t keys = a.key_lengths == nullptr ? a.keys : a.key_lengths[batch];
    const auto head_of = [&](int64_t r) { return key_head * groups + r / a.queries; };
    const auto row = [&](int64_t r) {
      return Row{queries + r * a.head_size, scores + r * attention_block, sums_of_values + r * a.value_size,
                 statistics + 2 * r, statistics + 2 * r + 1};
    };
    for (int64_t r = 0; r < rows; ++r) {
      const T* query = static_cast<const T*>(a.query) + batch * a.query_strides[0] +
                       head_of(r) * a.query_strides[1] + r % a.queries * a.query_strides[2];
      each_vector(a.head_size, [&](int64_t i, auto place) {
        store(queries + r * a.head_size + i, load(query + i, place), place);
      });
      *row(r).maximum = -__builtin_inff();
      *row(r).sum = 0;
    }
    std::memset(sums_of_values, 0, rows * a.value_size * sizeof(float));
    for (int64_t start = 0; start < keys;) {
      int64_t count = keys - start < attention_block ? keys - start : attention_block;
      int64_t place = batch, within = start;
      if (a.block_table != nullptr) {
        place = a.block_table[batch * a.blocks_per_sequence + start / a.block_size];
        within = start % a.block_size;
        count = count < a.block_size - within ? count : a.block_size - within;
      }
      const T* key = static_cast<const T*>(a.key) + place * a.key_strides[0] + key_head * a.key_strides[1] +
                     within * a.key_strides[2];
      const T* value = static_cast<const T*>(a.value) + place * a.value_strides[0] +
                       key_head * a.value_strides[1] + within * a.value_strides[2];
      const auto view = [&](int64_t r) {
        const int64_t query = r % a.queries, visible = a.causal ? keys - (a.queries - 1 - query) : keys;
        const float* bias = a.bias == nullptr
                                ? nullptr
                                : a.bias + batch * a.bias_strides[0] + head_of(r) * a.bias_strides[1] +
                                      query * a.bias_strides[2] + start;
        return View{visible - start < count ? visible - start : count, bias};
      };
      for (int64_t r = 0; r < rows;) {
        const auto sees_as_many = [&](int64_t other) { return view(other).seen == view(r).seen; };
        if (r + rows_at_once <= rows && sees_as_many(r + 1) && sees_as_many(r + 2) && sees_as_many(r + 3)) {
          static_assert(rows_at_once == 4);
          take_block<T>(a, {row(r), row(r + 1), row(r + 2), row(r + 3)}, {key, value},
                        {view(r), view(r + 1), view(r + 2), view(r + 3)});
          r += rows_at_once;
        } else {
          take_block<T>(a, row(r), {key, value}, view(r));
          ++r;
        }
      }
      start += count;
    }
    for (int64_t r = 0; r < rows; ++r) finish<T>(a, row(r), batch, head_of(r), r % a.queries);
  }
}

}  // namespace

namespace CANN_HOST_ISA {

extern const ByType<DecodeKernel> decode_kernels =
    by_type<DecodeKernel>(TypeList<float, Half, BFloat16>{}, []<class T> { return &decode<T>; });

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
