#pragma once

// Random numbers by Philox4x32-10, a counter-based generator: what element i of a call gets is a function of
// (seed, offset, i) only. It does not depend on the number of threads, the instruction set or the machine.
//
// The 64-bit seed is the key. The 128-bit counter is the offset (low 64 bits) and a group number (high 64
// bits); it gives 4 words of 32 bits, the ones that curand's Philox gives for subsequence = group at position
// 4 * offset. A call takes the words of one offset only, so calls with different offsets are independent:
// advancing the offset by 1 or more after each call suffices (CANN's clients advance it by 4 to 10 and more).
//
// Which word an element gets (chosen so that vectors of 4 to 16 lanes need no shuffles):
//   32-bit draws: elements come in blocks of 64; element e gets word (e % 64) / 16 of group e / 64 * 16 + e %
//   16; 64-bit draws: blocks of 32; element e gets words 2h (low half) and 2h + 1, h = (e % 32) / 16, of
//   group
//                 e / 32 * 16 + e % 16.
// float, float16, bfloat16 and bool results come from 32-bit draws; float64 and integers from 64-bit draws,
// apart from bernoulli and dropout, which use 32-bit draws for every type.

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

struct Philox {
  uint64_t seed;
  uint64_t offset;
};

/// The parameters a, b of fill_random.
enum class Distribution : int {
  uniform,      ///< [a, b); b itself never occurs, also after rounding to 16 bits. a == b gives a
  normal,       ///< mean a, standard deviation b
  log_normal,   ///< exp(normal(a, b))
  cauchy,       ///< median a, scale b
  exponential,  ///< rate a; never 0
  geometric,    ///< success probability a, 0 < a <= 1: the number of trials, 1 or more
  bernoulli,    ///< 1 with probability a, 0 <= a <= 1, else 0
};
constexpr int distribution_count = 7;

/// Fills out[0, n). Types: float32, float16, bfloat16, float64; geometric int32 and int64 as well; bernoulli
/// every type. Returns false, and writes nothing, for another type. Parameters are not checked.
bool fill_random(Distribution distribution, DataType type, void* out, int64_t n, Philox philox, double a,
                 double b = 0);

/// out[i] = 1 with probability p[i], else 0. `p` has a floating-point type, `out` any type.
bool bernoulli(DataType type, void* out, DataType p_type, const void* p, int64_t n, Philox philox);

/// Integers of [low, low + range), wrapping at 2^64; range 0 stands for 2^64. Any type; the caller sees to it
/// that the values fit. A value's probability is off by less than range / 2^64, relatively.
bool random_integers(DataType type, void* out, int64_t n, Philox philox, int64_t low, uint64_t range);

/// A random permutation of 0 … n - 1 (int32 or int64); all permutations are equally likely.
bool random_permutation(DataType type, void* out, int64_t n, Philox philox);

/// Packed dropout mask: bit i % 8 of byte i / 8 is 1 (keep) with probability 1 - p. Writes the (n + 7) / 8
/// bytes that hold the n bits; the bits that are left over in the last one are 0. (aclnnDropoutGenMask's
/// buffer is longer: it is padded to a multiple of 128 bits.)
void dropout_mask(uint8_t* mask, int64_t n, Philox philox, double p);

/// out = x / (1 - p) where the mask keeps, x * 0 elsewhere (so inf and NaN stay visible, as in ATen);
/// everything is dropped for p = 1. Types: float32, float16, bfloat16, float64. out may be x.
bool dropout_apply(DataType type, const void* x, const uint8_t* mask, void* out, int64_t n, double p);

/// dropout_mask and dropout_apply in one pass.
bool dropout(DataType type, const void* x, void* out, uint8_t* mask, int64_t n, Philox philox, double p);

}  // namespace cann_host::kernels
