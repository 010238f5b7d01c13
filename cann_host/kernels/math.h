#pragma once

// Elementary functions on vectors of float or double. Included only by files compiled per instruction set
// (simd.h). The polynomials are minimax fits (Remez); the stated errors are relative and before rounding.

#include "cann_host/kernels/simd.h"

namespace cann_host::kernels {
namespace {

/// c[0] + c[1] x + c[2] x² + …
template <class V, class T, int n>
V polynomial(V x, const T (&c)[n]) {
  V sum = splat<V>(c[n - 1]);
#pragma GCC unroll 16
  for (int i = n - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

template <class T>
struct Constants;

template <>
struct Constants<float> {
  using Int = int32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr int bias = 127;
  static constexpr float round_magic = 0x1.8p23f;  // x + magic - magic rounds x to an integer
  static constexpr float ln2_high = 0.693359375f;  // few bits: n * ln2_high is exact
  static constexpr float ln2_low = -2.12194440e-4f;
  static constexpr float exp_lowest = -104.0f;  // below: 0
  static constexpr float exp_highest = 89.0f;   // above: inf
  // (exp(r) - 1 - r) / r², |r| <= ln2/2; 4e-9
  static constexpr float exp[] = {0.500000008f, 0.166665257f, 0.0416662339f, 0.00836824942f, 0.00139490367f};
  // (log((1+s)/(1-s)) - 2s) / s³ in s², |s| <= 0.1716; 2e-11
  static constexpr float log[] = {0.666666662f, 0.400002412f, 0.285424404f, 0.23495821f};
  // sin(2πt) / t and cos(2πt) in t², |t| <= 1/8; 3e-9 and 6e-11
  static constexpr float sin[] = {6.28318529f, -41.3416615f, 81.5923535f, -75.3935404f};
  static constexpr float cos[] = {1.0f, -19.7392086f, 64.9393107f, -85.4422973f, 59.2027731f};
};

template <>
struct Constants<double> {
  using Int = int64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr int bias = 1023;
  static constexpr double round_magic = 0x1.8p52;
  static constexpr double ln2_high = 0x1.62e42feep-1;
  static constexpr double ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double exp_lowest = -746.0;
  static constexpr double exp_highest = 710.0;
  // 5e-18
  static constexpr double exp[] = {0.500000000000000533,   0.166666666666666887,   0.0416666666665688981,
                                   0.00833333333331274184, 0.00138888889345376553, 0.000198412699070802577,
                                   2.48015016647584557e-5, 2.75572243967960731e-6, 2.76274336954491799e-7,
                                   2.511556691421522e-8};
  // 4e-18
  static constexpr double log[] = {0.666666666666668093, 0.399999999997394953, 0.285714286753626416,
                                   0.222222050187863394, 0.181832479584647905, 0.153217416803091914,
                                   0.147224658142232677};
  // 3e-18 and 4e-20
  static constexpr double sin[] = {6.28318530717958646,  -41.3417022403996315, 81.6052492759445198,
                                   -76.7058597033154346, 42.0586849018466371,  -15.0937974817328104,
                                   3.78072545573639674};
  static constexpr double cos[] = {1.0,
                                   -19.739208802178717,
                                   64.939394022667923,
                                   -85.4568172065095676,
                                   60.2446413264796084,
                                   -26.4262506857132461,
                                   7.90308135914651836,
                                   -1.69666132325901984};
};

template <class V>
using ConstantsOf = Constants<ElementOf<V>>;
template <class V>
using IntVec = Vec<typename ConstantsOf<V>::Int>;

/// A number rounded to the nearest integer, as a float and as an int.
template <class V>
struct Rounded {
  V value;
  IntVec<V> integer;
};

/// For |x| < 2^22 (float), 2^51 (double).
template <class V>
Rounded<V> round_to_integer(V x) {
  const V shifted = x + ConstantsOf<V>::round_magic;
  const auto magic_bits = bit_cast<typename ConstantsOf<V>::Int>(ConstantsOf<V>::round_magic);
  return {shifted - ConstantsOf<V>::round_magic, bit_cast<IntVec<V>>(shifted) - magic_bits};
}

/// An integer of small magnitude as a float; needs no conversion instruction (AVX2 has none for 64 bits).
template <class V>
V to_real(IntVec<V> n) {
  using C = ConstantsOf<V>;
  const auto magic_bits = bit_cast<typename C::Int>(C::round_magic);
  return bit_cast<V>(n + magic_bits) - C::round_magic;
}

/// x * 2^n with one rounding, also into the denormals; |n| at most twice the exponent range.
template <class V>
V scale_by_power_of_two(V x, IntVec<V> n) {
  using C = ConstantsOf<V>;
  const IntVec<V> first = n >> 1;
  const IntVec<V> second = n - first;
  return x * bit_cast<V>((first + C::bias) << C::mantissa_bits) *
         bit_cast<V>((second + C::bias) << C::mantissa_bits);
}

template <class V>
V exp(V x) {
  using C = ConstantsOf<V>;
  // Comparisons are false for NaN, which therefore goes through to the product.
  x = select(x < C::exp_lowest, splat<V>(C::exp_lowest), x);
  x = select(x > C::exp_highest, splat<V>(C::exp_highest), x);
  const auto n = round_to_integer<V>(x * static_cast<ElementOf<V>>(1.4426950408889634));
  V r = x - n.value * C::ln2_high;
  r = r - n.value * C::ln2_low;
  const V p = polynomial(r, C::exp) * (r * r) + r + 1;
  return scale_by_power_of_two(p, n.integer);
}

/// log of a normal, finite, positive number.
template <class V>
V log_of_normal(V x) {
  using C = ConstantsOf<V>;
  // x = m 2^n, m in [sqrt(1/2), sqrt(2)): adding (1 - sqrt(1/2)) to the bits carries into the exponent for m
  // >= sqrt(2)/2.
  const auto sqrt_half = bit_cast<typename C::Int>(static_cast<ElementOf<V>>(0.70710678118654752));
  const IntVec<V> bits = bit_cast<IntVec<V>>(x) - sqrt_half;
  const IntVec<V> exponent = bits >> C::mantissa_bits;
  const V n = to_real<V>(exponent);
  const V m = bit_cast<V>(bit_cast<IntVec<V>>(x) - (exponent << C::mantissa_bits));
  const V f = m - 1;
  const V s = f / (f + 2);
  const V z = s * s;
  const V half_square = f * f / 2;
  // log(1+f) = f - (f²/2 - s (f²/2 + R)), which keeps f exact.
  const V tail = half_square - (s * (half_square + z * polynomial(z, C::log)) + n * C::ln2_low);
  return n * C::ln2_high + (f - tail);
}

template <class V>
struct SinCos {
  V sin;
  V cos;
};

/// sin and cos of quarter * 90° + 360° * t, |t| <= 1/8.
template <class V>
SinCos<V> sincos_turns(IntVec<V> quarter, V t) {
  using C = ConstantsOf<V>;
  constexpr int sign_shift = 8 * sizeof(ElementOf<V>) - 2;  // moves bit 1 to the sign
  const V square = t * t;
  const V s = t * polynomial(square, C::sin);
  const V c = polynomial(square, C::cos);
  const auto swap = (quarter & 1) != 0;
  const auto sin_bits = bit_cast<IntVec<V>>(select(swap, c, s)) ^ ((quarter & 2) << sign_shift);
  const auto cos_bits = bit_cast<IntVec<V>>(select(swap, s, c)) ^ (((quarter + 1) & 2) << sign_shift);
  return {bit_cast<V>(sin_bits), bit_cast<V>(cos_bits)};
}

}  // namespace
}  // namespace cann_host::kernels
