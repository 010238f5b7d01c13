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
  static constexpr float least_power = -150.0f;  // with which x < 2 does not become 0
  static constexpr float exp_lowest = -105.0f;   // below: 0
  static constexpr float exp_highest = 89.0f;    // above: inf
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
  static constexpr double least_power = -1075.0;
  static constexpr double exp_lowest = -747.0;
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

/// x * 2^n with one rounding, also into the denormals; x in (1/2, 2), |n| at most twice the exponent range.
/// What rounds to zero is made zero: some processors take over a hundred cycles to compute it.
template <class V>
V scale_by_power_of_two(V x, Rounded<V> n) {
  using C = ConstantsOf<V>;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<ElementOf<V>, float>) {
    const V least = splat<V>(C::least_power);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n.value, least, _CMP_NLT_UQ), x, n.value);
  }
  if constexpr (std::is_same_v<ElementOf<V>, double>) {
    const V least = splat<V>(C::least_power);
    return _mm512_maskz_scalef_pd(_mm512_cmp_pd_mask(n.value, least, _CMP_NLT_UQ), x, n.value);
  }
#endif
  const IntVec<V> first = n.integer >> 1;
  const IntVec<V> second = n.integer - first;
  const IntVec<V> last = (second + C::bias) << C::mantissa_bits;
  return x * bit_cast<V>((first + C::bias) << C::mantissa_bits) *
         bit_cast<V>(select(n.value < C::least_power, IntVec<V>{}, last));
}

template <class V>
V exp(V x) {
  using C = ConstantsOf<V>;
  // Comparisons are false for NaN, which therefore goes through to the product.
  x = select(x < C::exp_lowest, splat<V>(C::exp_lowest), x);
  x = select(x > C::exp_highest, splat<V>(C::exp_highest), x);
  const auto n = round_to_integer<V>(x * static_cast<ElementOf<V>>(1.4426950408889634));
  // exp(r) = 1 + r + r² p(r), r = high - low. The sum's rounding error is carried along: 1 + high is sum +
  // lost.
  const V high = x - n.value * C::ln2_high;
  const V low = n.value * C::ln2_low;
  const V r = high - low;
  const V sum = high + 1;
  const V lost = high - (sum - 1);
  return scale_by_power_of_two(sum + (lost + (polynomial(r, C::exp) * (r * r) - low)), n);
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

template <class V>
V absolute(V x) {
  using C = ConstantsOf<V>;
  constexpr typename C::Int all_but_sign = ~(typename C::Int{1} << (8 * sizeof(typename C::Int) - 1));
  return bit_cast<V>(bit_cast<IntVec<V>>(x) & all_but_sign);
}

/// The magnitude of one number with the sign of another.
template <class V>
V copy_sign(V magnitude, V sign) {
  return bit_cast<V>(bit_cast<IntVec<V>>(magnitude) |
                     (bit_cast<IntVec<V>>(sign) ^ bit_cast<IntVec<V>>(absolute(sign))));
}

// ---- float only ----

inline Vec<float> log(Vec<float> x) {
  using V = Vec<float>;
  constexpr float infinity = __builtin_inff();
  const auto denormal = x < 0x1p-126f;
  V result = log_of_normal(select(denormal, x * 0x1p25f, x));
  result = select(denormal, result - 17.3286795f, result);  // 25 log(2)
  const V of_infinity_or_nan = x;
  const V of_zero_or_negative = select(x == 0, splat<V>(-infinity), splat<V>(__builtin_nanf("")));
  return select(x > 0, select(x < infinity, result, of_infinity_or_nan),
                select(x <= 0, of_zero_or_negative, of_infinity_or_nan));
}

// For results of 16 bits, cheaper approximations do: off by a few 1e-6, where half a unit in the last place
// is 2e-4 (float16) or 2e-3 (bfloat16). The functions below choose by T, the type of the result.

/// 2^x to 4e-6, for |x| < 2^22.
inline Vec<float> exp2_coarse(Vec<float> x) {
  // (2^r - 1) / r, |r| <= 1/2; 3e-6
  static constexpr float terms[] = {0.6931236414f, 0.2402203647f, 0.05590931281f, 0.009681289723f};
  const auto n = round_to_integer(x);
  const Vec<float> r = x - n.value;
  return scale_by_power_of_two(polynomial(r, terms) * r + 1, n);
}

template <class T>
Vec<float> exp_for(Vec<float> x) {
  if constexpr (is_half_width_float<T>) {
    x *= 1.44269504f;
    x = select(x < -151, splat<Vec<float>>(-151), x);
    x = select(x > 129, splat<Vec<float>>(129), x);
    return exp2_coarse(x);
  } else {
    return exp(x);
  }
}

/// exp(-|x|)
template <class T>
Vec<float> exp_of_minus_magnitude(Vec<float> x) {
  if constexpr (is_half_width_float<T>) {
    const Vec<float> power = absolute(x) * -1.44269504f;
    return exp2_coarse(select(power < -151, splat<Vec<float>>(-151), power));
  } else {
    return exp(-absolute(x));
  }
}

template <class T>
Vec<float> tanh(Vec<float> x) {
  using V = Vec<float>;
  // (tanh(x) - x) / x³ in x², |x| <= 0.65; 4e-10
  static constexpr float odd[] = {-0.33333332f,  0.133332305f,    -0.0539478947f,
                                  0.0216993401f, -0.00816025113f, 0.00211770228f};
  const V magnitude = absolute(x);
  const V square = x * x;
  const V far = 1 - 2 / (exp_for<T>(magnitude * 2) + 1);
  if constexpr (is_half_width_float<T>) {
    return select(magnitude < 0.04f, x - square * x * 0.333333333f, copy_sign(far, x));
  } else {
    return select(magnitude < 0.625f, polynomial(square, odd) * square * x + x, copy_sign(far, x));
  }
}

/// factor * sigmoid(x). sigmoid is 1 / (1 + e) or, for negative x, e / (1 + e), e = exp(-|x|): no overflow,
/// and small results keep their precision.
template <class T>
Vec<float> times_sigmoid(Vec<float> factor, Vec<float> x) {
  const Vec<float> e = exp_of_minus_magnitude<T>(x);
  return select(x < 0, factor * e, factor) / (e + 1);
}

template <class T>
Vec<float> sigmoid(Vec<float> x) {
  if constexpr (is_half_width_float<T>) return times_sigmoid<T>(splat<Vec<float>>(1), x);
  const Vec<float> e = exp_of_minus_magnitude<T>(x);
  const Vec<float> positive = 1 / (e + 1);
  // e / (1 + e) = e - e² / (1 + e): the error of 1 + e weighs less that way.
  return select(x < 0, e - e * (e * positive), positive);
}

inline Vec<float> erf(Vec<float> x) {
  using V = Vec<float>;
  // erf(x) / x - 1 in x², |x| <= 0.95; 6e-10
  static constexpr float odd[] = {0.12837917f,    -0.376126316f,    0.112836641f,  -0.0268577067f,
                                  0.00519695396f, -0.000809771052f, 8.18508618e-5f};
  // log(1 - erf(x)), 0.9 <= x <= 4; the error of 1 - exp is 2e-9
  static constexpr float log_erfc[] = {-0.000166456095f, -1.1277972f,     -0.636976168f,  -0.10411359f,
                                       0.0223151619f,    -0.00306547494f, 0.000198217792f};
  const V magnitude = absolute(x);
  const V near = polynomial(x * x, odd) * x + x;
  const V far = 1 - exp(polynomial(select(magnitude > 4, splat<V>(4), magnitude), log_erfc));
  return select(magnitude < 0.925f, near, copy_sign(far, x));
}

/// 2^x to 2e-9 and the rounding of x, for |x| < 2^22.
inline Vec<float> exp2(Vec<float> x) {
  // (2^r - 1) / r, |r| <= 1/2
  static constexpr float terms[] = {0.6931472024f,   0.240226513f,    0.05550332954f,
                                    0.009618007903f, 0.001339874915f, 0.0001547535573f};
  const auto n = round_to_integer(x);
  const Vec<float> r = x - n.value;
  return scale_by_power_of_two(polynomial(r, terms) * r + 1, n);
}

/// Φ(x), the normal distribution.
template <class T>
Vec<float> normal_cdf(Vec<float> x) {
  using V = Vec<float>;
  // log2(Φ(-x)), 0 <= x <= 6, falling ever faster beyond; the error of x Φ(-x) is 2e-8, or 2e-6 for 16 bits
  static constexpr float fine[] = {-0.9999998602f,   -1.151112345f,  -0.4591478122f,
                                   -0.05268325961f,  0.00733890542f, -0.0003508356085f,
                                   -9.670956171e-5f, 2.04108231e-5f, -1.244042218e-6f};
  static constexpr float coarse[] = {-1.000010611f,   -1.150823946f,   -0.4602713054f,
                                     -0.05126847353f, 0.006752258733f, -0.0004118796318f};
  V power = is_half_width_float<T> ? polynomial(absolute(x), coarse) : polynomial(absolute(x), fine);
  // Zero instead of denormal numbers, which take some processors over a hundred cycles.
  power = select(power < -126, splat<V>(-151), power);
  const V below = is_half_width_float<T> ? exp2_coarse(power) : exp2(power);
  return select(x < 0, below, 1 - below);
}

/// x Φ(x): the exact gelu.
template <class T>
Vec<float> gelu(Vec<float> x) {
  return x * normal_cdf<T>(x);
}

}  // namespace
}  // namespace cann_host::kernels
