#pragma once

// Vectors as wide as the registers of the instruction set that the including file is compiled for.
//
// Only files that are compiled once per instruction set include this. All of it has internal linkage on
// purpose: functions of the same name that were compiled with different flags must never be merged by the
// linker. For the same reason these files use no std templates at run time.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cann_host/kernels/data_type.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cann_host::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

template <class T, int n>
struct VectorOf {
  typedef T type __attribute__((vector_size(n * sizeof(T))));
};
template <int n>
struct VectorOf<bool, n> : VectorOf<uint8_t, n> {};

/// n elements of type T; bool as bytes.
template <class T, int n>
using Lanes = typename VectorOf<T, n>::type;

template <class T>
constexpr int width = register_bytes / static_cast<int>(sizeof(T));

/// One register full of T.
template <class T>
using Vec = Lanes<T, width<T>>;

template <class V>
using ElementOf = std::remove_cvref_t<decltype(V{}[0])>;

template <class V>
V splat(ElementOf<V> value) {
  return value - V{};
}

template <class V>
V load_vector(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// load_vector in halves where a vector is 64 bytes: beyond the L2 cache that is 5 to 20 % faster on Zen 4,
/// and nowhere slower.
template <class V>
V load_stream(const void* p) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    const auto* half = static_cast<const __m256i*>(p);
    return (V)_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(half)),
                                 _mm256_loadu_si256(half + 1), 1);
  }
#endif
  return load_vector<V>(p);
}

template <class V>
void store_vector(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

/// A store that bypasses the caches, where the machine has one; p is aligned to the size of v. Large results
/// are written that way: their lines need not be read first. Ends with stream_fence().
template <class V>
void store_streaming(void* p, V v) {
#if defined(__AVX512F__)
  if constexpr (sizeof v == 64) return _mm512_stream_si512(static_cast<__m512i*>(p), (__m512i)v);
#endif
#if defined(__AVX__)
  if constexpr (sizeof v == 32) return _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)v);
#endif
#if defined(__SSE2__)
  if constexpr (sizeof v == 16) return _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)v);
#endif
  store_vector(p, v);
}

/// Makes streaming stores visible to other threads before what follows.
inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// 0, 1, 2, … in the lanes.
template <class T>
Vec<T> lane_numbers() {
  Vec<T> v;
  for (int i = 0; i < width<T>; ++i) v[i] = static_cast<T>(i);
  return v;
}

/// a where mask is set (all ones), else b.
template <class Mask, class V>
V select(Mask mask, V a, V b) {
  return mask ? a : b;
}

inline Vec<float> sqrt(Vec<float> x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#elif defined(__SSE2__)
  return _mm_sqrt_ps(x);
#else
  for (int i = 0; i < width<float>; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

inline Vec<double> sqrt(Vec<double> x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_pd(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(x);
#elif defined(__SSE2__)
  return _mm_sqrt_pd(x);
#else
  for (int i = 0; i < width<double>; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

/// Product of the low 32 bits of each 64-bit lane.
inline Vec<uint64_t> multiply_low32(Vec<uint64_t> a, Vec<uint64_t> b) {
#if defined(__AVX512F__)
  return (Vec<uint64_t>)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Vec<uint64_t>)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Vec<uint64_t>)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

/// One bit per lane, lane 0 lowest, of a mask as comparisons give it.
inline uint32_t mask_bits(Vec<int32_t> mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < width<int32_t>; ++i) bits |= (mask[i] & 1u) << i;
  return bits;
#endif
}

/// The inverse of mask_bits.
inline Vec<int32_t> mask_from_bits(uint32_t bits) {
  const Vec<int32_t> bit_of_lane = 1 << lane_numbers<int32_t>();
  return (splat<Vec<int32_t>>(static_cast<int32_t>(bits)) & bit_of_lane) != 0;
}

// ---- Elements in memory and values in registers: 16-bit floats are computed in float ----

template <class T>
constexpr bool is_half_width_float = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// The type that elements are computed in.
template <class T>
using Compute = std::conditional_t<is_half_width_float<T>, float, T>;

/// How many elements of type T a kernel handles at a time.
template <class T>
constexpr int step = width<Compute<T>>;

using HalfBits = Lanes<uint16_t, width<float>>;

inline Vec<uint32_t> load_half_bits(const void* p) {
#if defined(__AVX512F__)
  return (Vec<uint32_t>)_mm512_cvtepu16_epi32(load_vector<__m256i>(p));
#elif defined(__AVX2__)
  return (Vec<uint32_t>)_mm256_cvtepu16_epi32(load_vector<__m128i>(p));
#else
  return __builtin_convertvector(load_vector<HalfBits>(p), Vec<uint32_t>);
#endif
}

inline Vec<float> widen_bfloat16(const void* p) { return bit_cast<Vec<float>>(load_half_bits(p) << 16); }

inline Vec<float> widen_half(const void* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(load_vector<__m256i>(p));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(load_vector<__m128i>(p));
#else
  const Vec<uint32_t> bits = load_half_bits(p);
  const Vec<uint32_t> magnitude = bits & 0x7fff;
  // Multiplying by 2^112 moves the exponent from half's bias to float's and normalises denormals.
  Vec<uint32_t> value = bit_cast<Vec<uint32_t>>(bit_cast<Vec<float>>(magnitude << 13) * 0x1p112f);
  value = select(magnitude >= 0x7c00, (magnitude << 13) | 0x7f800000u, value);
  value = select(magnitude > 0x7c00, value | 0x400000u, value);
  return bit_cast<Vec<float>>(value | (bits & 0x8000) << 16);
#endif
}

/// Rounds to nearest even. NaN stays NaN and becomes quiet. (The bf16 instruction flushes denormals: not
/// used.)
inline HalfBits pack_bfloat16(Vec<float> v) {
  const auto bits = bit_cast<Vec<uint32_t>>(v);
  const Vec<uint32_t> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Vec<uint32_t> quiet = (bits >> 16) | 0x40;
  return __builtin_convertvector(select(v == v, rounded, quiet), HalfBits);
}

/// Rounds to nearest even.
inline HalfBits pack_half(Vec<float> v) {
#if defined(__AVX512F__)
  return (HalfBits)_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
  return (HalfBits)_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
#else
  const auto bits = bit_cast<Vec<uint32_t>>(v);
  const Vec<uint32_t> magnitude = bits & 0x7fffffff;
  const Vec<uint32_t> normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 leaves a half denormal, rounded to nearest even, in the low mantissa bits.
  const Vec<uint32_t> denormal =
      bit_cast<Vec<uint32_t>>(bit_cast<Vec<float>>(magnitude) + 0.5f) - bit_cast<uint32_t>(0.5f);
  Vec<uint32_t> value = select(magnitude < (113u << 23), denormal, normal);
  value = select(magnitude >= 0x477ff000u, splat<Vec<uint32_t>>(0x7c00), value);
  value = select(magnitude > 0x7f800000u, ((magnitude >> 13) & 0x3ff) | 0x7e00, value);
  return __builtin_convertvector(value | (bits & 0x80000000) >> 16, HalfBits);
#endif
}

/// step<T> elements as values.
template <class T>
Vec<Compute<T>> widen(const T* p) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return widen_bfloat16(p);
  } else if constexpr (std::is_same_v<T, Half>) {
    return widen_half(p);
  } else {
    return load_stream<Vec<T>>(p);
  }
}

/// Values as elements of type T lie in memory.
template <class T>
auto pack(Vec<Compute<T>> v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return pack_bfloat16(v);
  } else if constexpr (std::is_same_v<T, Half>) {
    return pack_half(v);
  } else {
    return v;
  }
}

template <class T>
void narrow(T* p, Vec<Compute<T>> v) {
  store_vector(p, pack<T>(v));
}

template <class T>
float to_float(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    T lanes[width<float>] = {value};
    return widen(lanes)[0];
  }
}

template <class T>
T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    T lanes[width<float>];
    narrow(lanes, splat<Vec<float>>(value));
    return lanes[0];
  }
}

}  // namespace
}  // namespace cann_host::kernels
