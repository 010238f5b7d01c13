#pragma once

// Products of rows of queries with keys, and of weights with values, for files that are compiled once per
// instruction set. Numbers of bfloat16 are widened two to a word, by a shift and a mask: queries and sums lie
// in groups of two vectors, of which the first has the even elements then.

#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

/// Elements that are loaded together.
constexpr int group = 2 * lanes;

constexpr int64_t whole_groups(int64_t n) { return (n + group - 1) / group * group; }

struct Pair {
  Vec<float> first, second;
};

inline Pair load_pair(const float* p) {
  return {load_vector<Vec<float>>(p), load_vector<Vec<float>>(p + lanes)};
}
inline void store_pair(float* p, Pair pair) {
  store_vector(p, pair.first);
  store_vector(p + lanes, pair.second);
}

template <class T>
Pair load_group(const T* p, Full) {
  return {load(p, Full{}), load(p + lanes, Full{})};
}
template <class T>
Pair load_group(const T* p, Part part) {
  if (part.count < lanes) return {load(p, part), Vec<float>{}};
  return {load(p, Full{}), part.count > lanes ? load(p + lanes, Part{part.count - lanes}) : Vec<float>{}};
}

inline Pair widened(Vec<uint32_t> words) {
  return {bit_cast<Vec<float>>(words << 16), bit_cast<Vec<float>>(words & 0xffff0000)};
}
inline Pair load_group(const BFloat16* p, Full) { return widened(load_stream<Vec<uint32_t>>(p)); }
inline Pair load_group(const BFloat16* p, Part part) {
#if defined(__AVX512BW__)
  const auto mask = static_cast<__mmask32>((uint64_t{1} << part.count) - 1);
  return widened((Vec<uint32_t>)_mm512_maskz_loadu_epi16(mask, p));
#else
  BFloat16 padded[group] = {};
  std::memcpy(padded, p, part.count * sizeof *p);
  return widened(load_vector<Vec<uint32_t>>(padded));
#endif
}

/// The vectors of a group in the order of its elements.
template <class T>
Pair in_order(Pair pair) {
  if constexpr (!std::is_same_v<T, BFloat16>) return pair;
  const Vec<int32_t> lane = lane_numbers<int32_t>(), from = lane / 2 + (lane % 2) * lanes;
  return {__builtin_shuffle(pair.first, pair.second, from),
          __builtin_shuffle(pair.first, pair.second, from + lanes / 2)};
}

inline int64_t count_of(Full) { return group; }
inline int64_t count_of(Part part) { return part.count; }

/// f(i, Full or Part) for each group of n elements.
template <class F>
void each_group(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + group <= n; i += group) f(i, Full{});
  if (i < n) f(i, Part{n - i});
}

/// Groups of an output row that are summed in registers at a time.
constexpr int value_groups = register_bytes == 64 ? 4 : 2;

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

/// The products of a query with some keys, not yet added up across lanes.
template <int count, class T>
void multiply(const float* query, const T* keys, int64_t stride, int64_t size, Vec<float>* sums) {
  Vec<float> sum[count];
#pragma GCC unroll 4
  for (int j = 0; j < count; ++j) sum[j] = Vec<float>{};  // in registers; as an initialiser through memory
  each_group(size, [&](int64_t i, auto place) {
    const Pair q = load_pair(query + i);
#pragma GCC unroll 4
    for (int j = 0; j < count; ++j) {
      const Pair key = load_group(keys + j * stride + i, place);
      sum[j] += q.first * key.first;
      sum[j] += q.second * key.second;
    }
  });
  for (int j = 0; j < count; ++j) sums[j] = sum[j];
}

/// scores[0, count) = query · keys, keys being `stride` elements apart.
template <class T>
void score(const float* query, const T* keys, int64_t stride, int64_t count, int64_t size, float* scores) {
  constexpr int together = 8 / sizeof(T);  // more would not be read in the order of memory
  Vec<float> sums[lanes];
  int64_t k = 0;
  for (; k + lanes <= count; k += lanes) {
    for (int j = 0; j < lanes; j += together)
      multiply<together>(query, keys + (k + j) * stride, stride, size, sums + j);
    store_vector(scores + k, sums_of_lanes(sums));
  }
  for (; k < count; ++k) {
    multiply<1>(query, keys + k * stride, stride, size, sums);
    scores[k] = sum_of_lanes(sums[0]);
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
    each_group(size, [&](int64_t i, auto place) {
      Pair key[together];
      for (int j = 0; j < together; ++j) key[j] = load_group(first + j * stride + i, place);
#pragma GCC unroll 4
      for (int r = 0; r < rows_at_once; ++r) {
        const Pair q = load_pair(rows[r].query + i);
        for (int j = 0; j < together; ++j) {
          sums[r * together + j] += q.first * key[j].first;
          sums[r * together + j] += q.second * key[j].second;
        }
      }
    });
    float scores[lanes];
    store_vector(scores, sums_of_lanes(sums));
    for (int r = 0; r < rows_at_once; ++r)
      std::memcpy(rows[r].scores + k, scores + r * together, together * sizeof(float));
  }
  for (const Row& row : rows) score(row.query, keys + k * stride, stride, count - k, size, row.scores + k);
}

/// The same as add_values() for `groups` groups of the row, or one that is a part. The fewer they are, the
/// more partial sums run side by side: one addition waits for the one before.
template <int groups, class T, class Place>
void add_columns(const float* weights, const T* values, int64_t stride, int64_t count, float kept, float* sum,
                 Place place) {
  constexpr int partial = value_groups / groups;
  Pair sums[partial][groups] = {};
  const auto add = [&](Pair(&to)[groups], int64_t k) {
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g) {
      const Pair value = load_group(values + k * stride + g * group, place);
      to[g].first += value.first * weights[k];
      to[g].second += value.second * weights[k];
    }
  };
  int64_t k = 0;
  for (; k + partial <= count; k += partial) {
#pragma GCC unroll 8
    for (int p = 0; p < partial; ++p) add(sums[p], k + p);
  }
  for (; k < count; ++k) add(sums[0], k);
#pragma GCC unroll 8
  for (int g = 0; g < groups; ++g) {
    Pair total = load_pair(sum + g * group);
    total = {total.first * kept, total.second * kept};
#pragma GCC unroll 8
    for (int p = 0; p < partial; ++p)
      total = {total.first + sums[p][g].first, total.second + sums[p][g].second};
    store_pair(sum + g * group, total);
  }
}

/// sum[0, size) = sum * kept + Σ weights[k] * values[k].
template <class T>
void add_values(const float* weights, const T* values, int64_t stride, int64_t count, int64_t size,
                float kept, float* sum) {
  int64_t i = 0;
  const auto whole = [&]<int groups>() {
    for (; i + groups * group <= size; i += groups * group) {
      add_columns<groups>(weights, values + i, stride, count, kept, sum + i, Full{});
    }
  };
  whole.template operator()<value_groups>();
  whole.template operator()<value_groups / 2>();
  each_group(size - i, [&](int64_t j, auto place) {
    add_columns<1>(weights, values + i + j, stride, count, kept, sum + i + j, place);
  });
}

/// The same for some rows: sum of row r * kept[r] + Σ weights of row r * values.
template <class T>
void add_values_to_rows(const Row (&rows)[rows_at_once], const float (&kept)[rows_at_once], const T* values,
                        int64_t stride, int64_t count, int64_t size) {
  constexpr int groups = value_groups / 2;
  int64_t i = 0;
  for (; i + groups * group <= size; i += groups * group) {
    Pair sums[rows_at_once][groups];
#pragma GCC unroll 4
    for (int r = 0; r < rows_at_once; ++r) {
      for (int g = 0; g < groups; ++g) sums[r][g] = {Vec<float>{}, Vec<float>{}};
    }
    for (int64_t k = 0; k < count; ++k) {
      Pair value[groups];
      for (int g = 0; g < groups; ++g) value[g] = load_group(values + k * stride + i + g * group, Full{});
#pragma GCC unroll 4
      for (int r = 0; r < rows_at_once; ++r) {
        for (int g = 0; g < groups; ++g) {
          sums[r][g].first += value[g].first * rows[r].scores[k];
          sums[r][g].second += value[g].second * rows[r].scores[k];
        }
      }
    }
    for (int r = 0; r < rows_at_once; ++r) {
      for (int g = 0; g < groups; ++g) {
        float* sum = rows[r].sum_of_values + i + g * group;
        const Pair before = load_pair(sum);
        store_pair(sum,
                   {before.first * kept[r] + sums[r][g].first, before.second * kept[r] + sums[r][g].second});
      }
    }
  }
  for (int r = 0; r < rows_at_once; ++r)
    add_values(rows[r].scores, values + i, stride, count, size - i, kept[r], rows[r].sum_of_values + i);
}

}  // namespace
}  // namespace cann_host::kernels
