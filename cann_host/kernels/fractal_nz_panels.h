#pragma once

// Products of many rows with a matrix in FRACTAL_NZ, for files that are compiled once per instruction set.
// A panel of the weight, two vectors of columns wide and as deep as the L1 cache allows, is brought into the
// order in which it is multiplied and then used by all rows. Templates of `P` as in fractal_nz_products.h,
// with also:
//
//   turned                     vectors that turn() transposes, and steps of `deep` that come out of it
//   load_to_turn(weight, i)    of a block (or a part of one), what becomes lane i (and i + turned, …)

#include "cann_host/kernels/fractal_nz_products.h"
#include "cann_host/kernels/turn.h"

namespace cann_host::kernels {
namespace {

constexpr int panel_columns = 2 * lanes;

/// A panel takes half of the L1 cache.
template <class P>
constexpr int64_t panel_depth = 16384 / sizeof(typename P::X) / panel_columns;

/// Of products by tiles it takes more: their sums are read and written again for each panel.
template <class P>
int64_t depth_of_panels(const NzMatmul& a) {
  return a.tiles != nullptr ? nz_deepest_panel : panel_depth<P>;
}

/// One of the two vectors of columns, from column `n` of w and its row `k`. The next panel's lies `ahead`
/// numbers behind it: it is asked for while this one is multiplied.
template <class P>
void fill_from_columns(const NzMatmul& a, int64_t k, int64_t depth, int64_t n, int64_t ahead,
                       typename P::X* panel) {
  const auto* from = static_cast<const typename P::Number*>(a.weight) + n / block * padded(a.inner) * block +
                     k * block + n % block;
  for (int64_t s = 0; s < depth; s += P::deep, panel += panel_columns * P::deep) {
    __builtin_prefetch(from + s * block + ahead, 0, 2);
    store_vector(panel, P::load_deep(from + s * block));
  }
}

/// The same, of a weight that has what are columns of w as rows.
template <class P>
void fill_from_rows(const NzMatmul& a, int64_t k, int64_t depth, int64_t n, int64_t ahead,
                    typename P::X* panel) {
  constexpr int64_t bytes = lanes * block * sizeof(typename P::Number);
  for (int64_t c = k; c < k + depth; c += block) {
    const auto* rows = static_cast<const typename P::Number*>(a.weight) + (c * padded(a.columns) + n * block);
    for (int64_t i = 0; i < bytes; i += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(rows + ahead) + i, 0, 2);
    for (int64_t s = 0; s < block; s += P::turned * P::deep) {
      Vec<float> turning[P::turned];
      for (int i = 0; i < P::turned; ++i) turning[i] = P::load_to_turn(rows + s, i);
      turn(turning);
      for (int i = 0; i < P::turned; ++i, panel += panel_columns * P::deep) store_vector(panel, turning[i]);
    }
  }
}

/// Columns [n, n + panel_columns) of rows [k, k + depth) of w, in vectors as multiply_add() takes them. The
/// next panel begins at column `next_n` of row `next_k`.
template <class P>
void fill_panel(const NzMatmul& a, int64_t k, int64_t depth, int64_t n, int64_t next_k, int64_t next_n,
                typename P::X* panel) {
  constexpr int vector = lanes * P::deep;
  const auto fill = a.transposed ? &fill_from_rows<P> : &fill_from_columns<P>;
  const int64_t ahead = a.transposed ? (next_k - k) * padded(a.columns) + (next_n - n) * block
                                     : (next_n - n) * padded(a.inner) + (next_k - k) * block;
  fill(a, k, depth, n, ahead, panel);
  if (n + lanes < padded(a.columns)) return fill(a, k, depth, n + lanes, ahead, panel + vector);
  for (int64_t s = 0; s < depth; s += P::deep)
    std::memset(panel + s * panel_columns + vector, 0, vector * sizeof *panel);
}

/// Adds `steps` products of `M` rows with a panel.
template <class P, int M>
void add_panel(const typename P::X* x, const typename P::X* panel, int64_t steps, float* sums) {
  Vec<float> sum[M][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < 2; ++v) sum[m][v] = load_vector<Vec<float>>(sums + m * panel_columns + v * lanes);
  }
  for (int m = M; m < 2 * M; ++m) {  // those of the next rows
    for (int v = 0; v < 2; ++v) __builtin_prefetch(sums + m * panel_columns + v * lanes);
  }
  for (int64_t s = 0; s < steps; ++s, panel += panel_columns * P::deep, x += M * P::deep) {
    const auto left = load_vector<typename P::Factor>(panel);
    const auto right = load_vector<typename P::Factor>(panel + lanes * P::deep);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const auto factor = P::spread(x + m * P::deep);
      sum[m][0] = P::multiply_add(sum[m][0], left, factor);
      sum[m][1] = P::multiply_add(sum[m][1], right, factor);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < 2; ++v) store_vector(sums + m * panel_columns + v * lanes, sum[m][v]);
  }
}

/// Rows whose sums with a panel fit into registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int panel_rows = 8;
#else
constexpr int panel_rows = 4;
#endif

/// x[0..16) of `M` rows, of which `count` are there: x[0..deep) of all rows, the next ones of all rows, and
/// so on.
template <class P, int M>
void prepare_piece(const typename P::Number* x, int64_t stride, int64_t count, typename P::X* to) {
  alignas(64) typename P::X pieces[M][block] = {};
  for (int m = 0; m < M; ++m) {
    count == block ? convert(x + m * stride, pieces[m], block) : convert(x + m * stride, pieces[m], count);
  }
  if constexpr (M == panel_rows) {
    for (int i = 0; i < block; i += M * P::deep, to += M * M * P::deep) {
      Lanes<int32_t, M> rows[M];
      for (int m = 0; m < M; ++m) rows[m] = load_vector<Lanes<int32_t, M>>(pieces[m] + i);
      turn(rows);
      std::memcpy(to, rows, sizeof rows);
    }
  } else {
    for (int i = 0; i < block; i += P::deep) {
      for (int m = 0; m < M; ++m, to += P::deep) std::memcpy(to, pieces[m] + i, P::deep * sizeof *to);
    }
  }
}

/// A part of x as it is, dense, with zeros at its end: in x itself, rows of some powers of two bytes would
/// fall into a few sets of the caches.
template <class P>
void copy_part(const NzMatmul& a, int64_t k, int64_t depth, typename P::X* to) {
  const int64_t there = a.inner - k < depth ? a.inner - k : depth;
  for (int64_t m = 0; m < a.rows; ++m, to += depth) {
    convert(static_cast<const typename P::Number*>(a.x) + m * a.inner + k, to, there);
    std::memset(to + there, 0, (depth - there) * sizeof *to);
  }
}

/// In parts of depth_of_panels(); in a part groups of rows, and in a group pieces of 16.
template <class P>
void prepare_panels(const NzMatmul& a, int64_t begin, int64_t end, void* prepared) {
  static_assert(nz_deepest_panel % panel_depth<P> == 0 && nz_widest_panel % panel_columns == 0);
  const int64_t deepest = depth_of_panels<P>(a);
  for (int64_t k = begin; k < end; k += deepest) {
    const int64_t depth = padded(end - k) < deepest ? padded(end - k) : deepest;
    if (a.tiles != nullptr) {
      copy_part<P>(a, k, depth, static_cast<typename P::X*>(prepared) + k * a.rows);
      continue;
    }
    in_groups<panel_rows>(a.rows, [&]<int M>(int64_t first, std::integral_constant<int, M>) {
      const auto* x = static_cast<const typename P::Number*>(a.x) + first * a.inner + k;
      auto* to = static_cast<typename P::X*>(prepared) + k * a.rows + first * depth;
      for (int64_t c = 0; c < depth; c += block)
        prepare_piece<P, M>(x + c, a.inner, k + c + block <= a.inner ? block : a.inner - k - c, to + c * M);
    });
  }
}

template <class P>
void multiply_panels(const NzMatmul& a, const void* prepared, int64_t begin, int64_t end, float* sums) {
  using X = typename P::X;
  constexpr int64_t room = sizeof(X) == sizeof(BFloat16) ? nz_deepest_panel : panel_depth<P>;
  static_assert(room >= panel_depth<P>);
  alignas(64) X panel[room * panel_columns];
  const int64_t inner = padded(a.inner), deepest = depth_of_panels<P>(a);
  const int64_t panels = (end - begin + panel_columns - 1) / panel_columns;
  std::memset(sums, 0, panels * a.rows * panel_columns * sizeof *sums);
  for (int64_t k = 0; k < inner; k += deepest) {
    const int64_t depth = inner - k < deepest ? inner - k : deepest;
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t n = begin + p * panel_columns;
      const bool last = p + 1 == panels;
      fill_panel<P>(a, k, depth, n, last ? k + depth : k, last ? begin : n + panel_columns, panel);
      float* const to = sums + p * a.rows * panel_columns;
      if (a.tiles != nullptr) {
        a.tiles->multiply_add(a.rows, depth, static_cast<const X*>(prepared) + k * a.rows, panel, to);
        continue;
      }
      in_groups<panel_rows>(a.rows, [&]<int M>(int64_t m, std::integral_constant<int, M>) {
        add_panel<P, M>(static_cast<const X*>(prepared) + k * a.rows + m * depth, panel, depth / P::deep,
                        to + m * panel_columns);
      });
    }
  }
  for (int64_t m = 0; m < a.rows; ++m) {
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t n = begin + p * panel_columns;
      store_results<typename P::Number>(a, m, n, n + panel_columns <= end ? panel_columns : end - n,
                                        sums + (p * a.rows + m) * panel_columns);
    }
  }
}

template <class P>
constexpr NzProduct product = {
    .x_bytes = sizeof(typename P::X),
    .plain = {&prepare_columns<P>, &multiply_columns<P>},
    .transposed = {&prepare_rows<P>, &multiply_rows<P>},
    .panels = {&prepare_panels<P>, &multiply_panels<P>},
};

}  // namespace
}  // namespace cann_host::kernels
