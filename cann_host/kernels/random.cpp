#include "cann_host/kernels/random.h"

#include <bit>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"
#include "cann_host/kernels/random_kernels.h"

namespace cann_host::kernels {
namespace {

constexpr int64_t grain = 8192;  // elements per thread from which a second thread pays

const RandomKernels& kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::random_kernels;
    case Isa::avx2:
      return avx2::random_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::random_kernels;
}

/// Runs kernel(before..., begin, end, after...) over pieces of [0, n); false if there is no kernel.
template <class Body>
bool run(int64_t n, bool supported, const Body& body) {
  if (supported) parallel_for(n, grain, random_block, body);
  return supported;
}

// ---- Permutations: Rao-Sandelius shuffling ----
// Every element goes to a random bucket, in order; then each bucket, small enough for the cache, is shuffled
// by Fisher-Yates. This gives every permutation the same probability, as one big Fisher-Yates does, without
// its cache misses, and in parallel.

constexpr int64_t bucket_size = 16384;  // aimed at
constexpr int max_bucket_bits = 10;
constexpr int64_t chunk = 1024;  // random words drawn at a time

int bucket_bits(int64_t n) {
  const auto buckets = static_cast<uint64_t>(n / bucket_size);
  return std::min(max_bucket_bits, static_cast<int>(std::bit_width(buckets)));
}

template <class T>
void shuffle(T* out, int64_t begin, int64_t end, Philox philox) {
  uint64_t words[chunk];
  // Words come in blocks of 64 elements; the walk is upwards, each element swapping with one at or before it.
  for (int64_t first = begin / random_block * random_block; first < end; first += chunk) {
    const int64_t last = std::min(end, first + chunk);
    kernels().words(philox, /*second_stream=*/true, words, first, last);
    for (int64_t i = std::max(first, begin); i < last; ++i) {
      const auto choices = static_cast<unsigned __int128>(i - begin + 1);
      const auto j = begin + static_cast<int64_t>((choices * words[i - first]) >> 64);
      std::swap(out[i], out[j]);
    }
  }
}

/// Writes 0 … n - 1 to out, ordered by random bucket. Returns where the buckets begin, and n at the end.
template <class T>
std::vector<int64_t> scatter(T* out, int64_t n, int bits, Philox philox) {
  const int64_t buckets = int64_t{1} << bits;
  const int64_t pieces = std::clamp<int64_t>(n / (64 * buckets), 1, omp_get_max_threads());
  const int64_t piece = (n / pieces + random_block) / random_block * random_block;
  const auto bucket_of = std::make_unique_for_overwrite<uint16_t[]>(n);
  std::vector<int64_t> next(pieces *
                            buckets);  // [piece][bucket]: first the count, then where the next one goes

  const auto each_piece = [&](const auto& body) {
    parallel_for(pieces, 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        body(next.data() + p * buckets, p * piece, std::min(n, (p + 1) * piece));
    });
  };
  each_piece([&](int64_t* counts, int64_t begin, int64_t end) {
    uint64_t words[chunk];
    for (int64_t first = begin; first < end; first += chunk) {
      const int64_t last = std::min(end, first + chunk);
      kernels().words(philox, /*second_stream=*/false, words, first, last);
      for (int64_t i = first; i < last; ++i)
        ++counts[bucket_of[i] = static_cast<uint16_t>(words[i - first] >> (64 - bits))];
    }
  });
  std::vector<int64_t> begins(buckets + 1);
  int64_t position = 0;
  for (int64_t b = 0; b < buckets; ++b) {
    begins[b] = position;
    for (int64_t p = 0; p < pieces; ++p) position += std::exchange(next[p * buckets + b], position);
  }
  begins[buckets] = n;
  each_piece([&](int64_t* next_of_piece, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[next_of_piece[bucket_of[i]]++] = static_cast<T>(i);
  });
  return begins;
}

template <class T>
void permute(T* out, int64_t n, Philox philox) {
  const int bits = bucket_bits(n);
  if (bits == 0) {
    std::iota(out, out + n, T{0});
    return shuffle(out, 0, n, philox);
  }
  const auto begins = scatter(out, n, bits, philox);
  parallel_for(int64_t{1} << bits, 1, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) shuffle(out, begins[b], begins[b + 1], philox);
  });
}

}  // namespace

bool fill_random(Distribution distribution, DataType type, void* out, int64_t n, Philox philox, double a,
                 double b) {
  const auto kernel = kernels().fill[static_cast<int>(distribution)][type];
  return run(n, kernel, [=](int64_t begin, int64_t end) { kernel(philox, out, begin, end, a, b); });
}

bool bernoulli(DataType type, void* out, DataType p_type, const void* p, int64_t n, Philox philox) {
  const auto* of_p = kernels().bernoulli[p_type];
  const auto kernel = of_p ? (*of_p)[type] : nullptr;
  return run(n, kernel, [=](int64_t begin, int64_t end) { kernel(philox, p, out, begin, end); });
}

bool random_integers(DataType type, void* out, int64_t n, Philox philox, int64_t low, uint64_t range) {
  const auto kernel = kernels().integers[type];
  return run(n, kernel, [=](int64_t begin, int64_t end) { kernel(philox, out, begin, end, low, range); });
}

bool random_permutation(DataType type, void* out, int64_t n, Philox philox) {
  if (type == DataType::int32) {
    permute(static_cast<int32_t*>(out), n, philox);
  } else if (type == DataType::int64) {
    permute(static_cast<int64_t*>(out), n, philox);
  } else {
    return false;
  }
  return true;
}

void dropout_mask(uint8_t* mask, int64_t n, Philox philox, double p) {
  parallel_for(n, grain, random_block,
               [=](int64_t begin, int64_t end) { kernels().dropout_mask(philox, mask, begin, end, p); });
}

bool dropout_apply(DataType type, const void* x, const uint8_t* mask, void* out, int64_t n, double p) {
  const auto kernel = kernels().dropout_apply[type];
  return run(n, kernel, [=](int64_t begin, int64_t end) { kernel(x, mask, out, begin, end, p); });
}

bool dropout(DataType type, const void* x, void* out, uint8_t* mask, int64_t n, Philox philox, double p) {
  const auto kernel = kernels().dropout[type];
  return run(n, kernel, [=](int64_t begin, int64_t end) { kernel(philox, x, out, mask, begin, end, p); });
}

}  // namespace cann_host::kernels
