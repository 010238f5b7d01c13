// What every generated kernel begins with: vectors of 16 lanes, loads and stores of any element type, and
// elementary functions. It includes nothing, so that a kernel compiles in a tenth of a second.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef long i64;
typedef float F __attribute__((vector_size(64)));
typedef int I __attribute__((vector_size(64)));
typedef unsigned U __attribute__((vector_size(64)));
typedef double D __attribute__((vector_size(128)));
typedef i64 L __attribute__((vector_size(128)));
typedef unsigned long UL __attribute__((vector_size(128)));
typedef I M;  // a bool: 0 or -1 in each lane
typedef short H16 __attribute__((vector_size(32)));
typedef signed char C16 __attribute__((vector_size(16)));
typedef u8 B16 __attribute__((vector_size(16)));
typedef u16 S16 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))

constexpr int lanes = 16;
constexpr I lane_number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

INLINE F splat(float x) { return x - F{}; }
INLINE D splat(double x) { return x - D{}; }
INLINE I splat(int x) { return x - I{}; }
INLINE L splat(i64 x) { return x - L{}; }
template <class To, class From>
INLINE To cast_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)from;
}

// ---- masks
// GCC compares and selects a vector of 128 bytes element by element: its halves are registers.
typedef i64 L8 __attribute__((vector_size(64)));
typedef double D8 __attribute__((vector_size(64)));
typedef int I8 __attribute__((vector_size(32)));
template <class Whole, class Half>
union Halves {
  Whole whole;
  Half half[2];
};
INLINE Halves<L, L8> halves(L x) { return {x}; }
INLINE Halves<D, D8> halves(D x) { return {x}; }
INLINE Halves<I, I8> halves(I x) { return {x}; }

template <class V, class Compare>
INLINE M compare(V a, V b, Compare holds) {
  if constexpr (sizeof(V) == sizeof(M)) {
    return (M)holds(a, b);
  } else {
    const auto x = halves(a), y = halves(b);
    Halves<I, I8> result;
    for (int h = 0; h < 2; ++h) result.half[h] = __builtin_convertvector(holds(x.half[h], y.half[h]), I8);
    return result.whole;
  }
}
struct Equal {
  template <class V>
  __attribute__((always_inline)) auto operator()(V a, V b) const {
    return a == b;
  }
};
struct Less {
  template <class V>
  __attribute__((always_inline)) auto operator()(V a, V b) const {
    return a < b;
  }
};
struct LessOrEqual {
  template <class V>
  __attribute__((always_inline)) auto operator()(V a, V b) const {
    return a <= b;
  }
};
template <class V>
INLINE M eq_(V a, V b) {
  return compare(a, b, Equal());
}
template <class V>
INLINE M ne_(V a, V b) {
  return ~compare(a, b, Equal());
}
template <class V>
INLINE M lt_(V a, V b) {
  return compare(a, b, Less());
}
template <class V>
INLINE M le_(V a, V b) {
  return compare(a, b, LessOrEqual());
}

template <class V>
INLINE V select_wide(M m, V a, V b) {
  const auto x = halves(a), y = halves(b);
  const auto condition = halves(m);
  auto result = x;
  for (int h = 0; h < 2; ++h)
    result.half[h] = __builtin_convertvector(condition.half[h], L8) ? x.half[h] : y.half[h];
  return result.whole;
}
INLINE M mask(I x) { return x; }
INLINE M mask(L x) { return __builtin_convertvector(x, I); }
INLINE F select(M m, F a, F b) { return m ? a : b; }
INLINE I select(M m, I a, I b) { return m ? a : b; }
INLINE D select(M m, D a, D b) { return select_wide(m, a, b); }
INLINE L select(M m, L a, L b) { return select_wide(m, a, b); }
/// Lanes below `count`.
INLINE M first_lanes(i64 count) { return lane_number < splat((int)(count < lanes ? count : lanes)); }

// ---- conversions
INLINE F to_F(I x) { return __builtin_convertvector(x, F); }
INLINE F to_F(L x) { return __builtin_convertvector(x, F); }
INLINE F to_F(D x) { return __builtin_convertvector(x, F); }
INLINE D to_D(F x) { return __builtin_convertvector(x, D); }
INLINE D to_D(I x) { return __builtin_convertvector(x, D); }
INLINE D to_D(L x) { return __builtin_convertvector(x, D); }
INLINE I to_I(F x) { return __builtin_convertvector(x, I); }
INLINE I to_I(D x) { return __builtin_convertvector(x, I); }
INLINE I to_I(L x) { return __builtin_convertvector(x, I); }
INLINE L to_L(F x) { return __builtin_convertvector(x, L); }
INLINE L to_L(D x) { return __builtin_convertvector(x, L); }
INLINE L to_L(I x) { return __builtin_convertvector(x, L); }
INLINE I wrap_i8(I x) { return (x << 24) >> 24; }
INLINE I wrap_u8(I x) { return x & 255; }
INLINE I wrap_i16(I x) { return (x << 16) >> 16; }
/// The rounded bfloat16 of each lane in the upper half of its bits; the lower half is anything.
#if defined(__AVX512BW__)
// Written out, for GCC makes twice as many instructions: a mask says which lanes are odd, and one instruction
// takes what is NaN from x, quiet.
INLINE U bf16_in_upper_half(F x) {
  const I bits = cast_bits<I>(x);
  const I even = bits + 0x7fff;
  const u16 odd = __builtin_ia32_ptestmd512(bits, splat(0x10000), (u16)-1);
  const F rounded = cast_bits<F>(__builtin_ia32_paddd512_mask(even, splat(1), even, odd));
  const I quiet_nan_of_x = splat(0x22);  // for both kinds of NaN; 0 for the other classes: they stay
  return cast_bits<U>(__builtin_ia32_fixupimmps512_mask(rounded, x, quiet_nan_of_x, 0, (u16)-1, 4));
}
typedef short H32 __attribute__((vector_size(64)));
typedef long long Quads __attribute__((vector_size(64)));
typedef long long HalfQuads __attribute__((vector_size(32)));
constexpr H32 odd_halves = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                            1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
constexpr H32 doubled_halves = {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
                                8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
INLINE S16 bf16_bits(F x) {
  const H32 all =
      __builtin_ia32_permvarhi512_mask((H32)bf16_in_upper_half(x), odd_halves, H32{}, (unsigned)-1);
  return (S16)__builtin_ia32_extracti64x4_mask((Quads)all, 0, HalfQuads{}, (u8)-1);
}
INLINE F bf16_value(S16 bits) {
  const H32 low = (H32)__builtin_ia32_si512_256si((I8)bits);
  return cast_bits<F>(__builtin_ia32_permvarhi512_mask(low, doubled_halves, H32{}, 0xaaaaaaaa));
}
#else
INLINE U bf16_in_upper_half(F x) {
  const U bits = cast_bits<U>(x);
  const U rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return (U)select((M)(x != x), (I)(U{} + 0x7fc00000), (I)rounded);
}
INLINE S16 bf16_bits(F x) { return __builtin_convertvector(bf16_in_upper_half(x) >> 16, S16); }
INLINE F bf16_value(S16 bits) { return cast_bits<F>(__builtin_convertvector(bits, U) << 16); }
#endif
INLINE F round_bf16(F x) { return cast_bits<F>(bf16_in_upper_half(x) & 0xffff0000); }
#if defined(__AVX512F__)
INLINE S16 f16_bits(F x) { return (S16)__builtin_ia32_vcvtps2ph512_mask(x, 8, (H16){}, (u16)-1); }
INLINE F f16_value(S16 x) { return __builtin_ia32_vcvtph2ps512_mask((H16)x, F{}, (u16)-1, 4); }
#else
/// float16 by integers: the machine has no instruction for it, or not on whole vectors.
INLINE S16 f16_bits(F value) {
  const U x = cast_bits<U>(value);
  const U sign = (x >> 16) & 0x8000;
  const U magnitude = x & 0x7fffffff;
  const U normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 puts the bits of a denormal result, rounded, at the end of the mantissa.
  const U denormal = cast_bits<U>(cast_bits<F>(magnitude) + 0.5f) - 0x3f000000;
  U bits = magnitude < 0x38800000 ? denormal : normal;
  bits = magnitude >= 0x477ff000 ? U{} + 0x7c00 : bits;
  bits = magnitude > 0x7f800000 ? U{} + 0x7e00 : bits;
  return __builtin_convertvector(bits | sign, S16);
}
INLINE F f16_value(S16 half) {
  const U x = __builtin_convertvector(half, U);
  const U sign = (x & 0x8000) << 16;
  const U magnitude = x & 0x7fff;
  const F scaled = cast_bits<F>(magnitude << 13) * 0x1p112f;
  const U special = (magnitude << 13) | 0x7f800000;
  return cast_bits<F>((magnitude >= 0x7c00 ? special : cast_bits<U>(scaled)) | sign);
}
#endif
INLINE F round_f16(F x) { return f16_value(f16_bits(x)); }

// ---- memory: `count` lanes of it, the others are 0; a compiler that sees count >= 16 drops the rest

/// The line of the cache that will be read later on: into the first cache, or the second.
INLINE void ask_for(const void* line, bool first) {
  if (first) {
    __builtin_prefetch(line, 0, 3);
  } else {
    __builtin_prefetch(line, 0, 2);
  }
}

template <class V, class T>
INLINE V load_raw(const T* p, i64 count) {
  V v = {};
  if (count >= lanes) {
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
#if defined(__AVX512F__)
  const unsigned bits = (1u << count) - 1;
  if constexpr (sizeof(V) == 64) return (V)__builtin_ia32_loaddqusi512_mask((const int*)p, (I){}, (u16)bits);
#endif
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
template <class V, class T>
INLINE void store_raw(T* p, V v, i64 count) {
  if (count >= lanes) {
    __builtin_memcpy(p, &v, sizeof v);
    return;
  }
#if defined(__AVX512F__)
  const unsigned bits = (1u << count) - 1;
  if constexpr (sizeof(V) == 64) return __builtin_ia32_storedqusi512_mask((int*)p, (I)v, (u16)bits);
#endif
  for (int i = 0; i < count; ++i) p[i] = v[i];
}
INLINE F load_float32(const float* p, i64 n) { return load_raw<F>(p, n); }
INLINE D load_float64(const double* p, i64 n) { return load_raw<D>(p, n); }
INLINE I load_int32(const int* p, i64 n) { return load_raw<I>(p, n); }
INLINE L load_int64(const i64* p, i64 n) { return load_raw<L>(p, n); }
INLINE F load_bfloat16(const u16* p, i64 n) { return bf16_value(load_raw<S16>(p, n)); }
INLINE F load_float16(const u16* p, i64 n) { return f16_value(load_raw<S16>(p, n)); }
INLINE I load_int16(const short* p, i64 n) { return __builtin_convertvector(load_raw<H16>(p, n), I); }
INLINE I load_int8(const signed char* p, i64 n) { return __builtin_convertvector(load_raw<C16>(p, n), I); }
INLINE I load_uint8(const u8* p, i64 n) { return __builtin_convertvector(load_raw<B16>(p, n), I); }
INLINE M load_bool(const u8* p, i64 n) { return load_uint8(p, n) != 0; }

INLINE void store_float32(float* p, F v, i64 n) { store_raw(p, v, n); }
INLINE void store_float64(double* p, D v, i64 n) { store_raw(p, v, n); }
INLINE void store_int32(int* p, I v, i64 n) { store_raw(p, v, n); }
INLINE void store_int64(i64* p, L v, i64 n) { store_raw(p, v, n); }
INLINE void store_bfloat16(u16* p, F v, i64 n) { store_raw(p, bf16_bits(v), n); }
INLINE void store_float16(u16* p, F v, i64 n) { store_raw(p, f16_bits(v), n); }
INLINE void store_int16(short* p, I v, i64 n) { store_raw(p, __builtin_convertvector(v, H16), n); }
INLINE void store_int8(signed char* p, I v, i64 n) { store_raw(p, __builtin_convertvector(v, C16), n); }
INLINE void store_uint8(u8* p, I v, i64 n) { store_raw(p, __builtin_convertvector(v, B16), n); }
INLINE void store_bool(u8* p, M v, i64 n) { store_uint8(p, v & 1, n); }

/// One element in all lanes.
INLINE F splat_float32(const float* p) { return splat(*p); }
INLINE D splat_float64(const double* p) { return splat(*p); }
INLINE F splat_float16(const u16* p) { return f16_value(S16{} + *p); }
INLINE F splat_bfloat16(const u16* p) { return bf16_value(S16{} + *p); }
INLINE L splat_int64(const i64* p) { return splat(*p); }
INLINE I splat_int32(const int* p) { return splat(*p); }
INLINE I splat_int16(const short* p) { return splat((int)*p); }
INLINE I splat_int8(const signed char* p) { return splat((int)*p); }
INLINE I splat_uint8(const u8* p) { return splat((int)*p); }
INLINE M splat_bool(const u8* p) { return splat(*p ? -1 : 0); }

/// Elements `stride` apart, packed so that the loads and stores above take them.
template <class T>
struct Packed {
  T lane[lanes];
};
template <class T>
INLINE Packed<T> gather(const T* p, i64 stride, i64 count) {
  Packed<T> packed = {};
  for (int i = 0; i < lanes; ++i)
    if (i < count) packed.lane[i] = p[i * stride];
  return packed;
}
template <class T>
INLINE Packed<T> gather(const T* p, i64 stride, L index, i64 index_stride, i64 count) {
  Packed<T> packed = {};
  for (int i = 0; i < lanes; ++i)
    if (i < count) packed.lane[i] = p[i * stride + index[i] * index_stride];
  return packed;
}
template <class T>
INLINE void scatter(T* p, i64 stride, Packed<T> packed, i64 count) {
  for (int i = 0; i < lanes; ++i)
    if (i < count) p[i * stride] = packed.lane[i];
}
/// Lanes [low, high) of what lies at p; the others are 0 and their memory is not touched.
template <class T>
INLINE Packed<T> window(const T* p, i64 stride, i64 low, i64 high) {
  Packed<T> packed = {};
  for (int i = 0; i < lanes; ++i)
    if (i >= low && i < high) packed.lane[i] = p[i * stride];
  return packed;
}

// ---- elementary functions; polynomials are minimax fits, their errors relative and before rounding
template <class V, class T, int n>
INLINE V polynomial(V x, const T (&c)[n]) {
  V sum = splat(c[n - 1]);
#pragma GCC unroll 16
  for (int i = n - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}
/// A function of the C library on each lane.
template <class V, class Function>
INLINE V each(V x, Function function) {
  for (int i = 0; i < lanes; ++i) x[i] = function(x[i]);
  return x;
}
template <class V, class Function>
INLINE V each(V x, V y, Function function) {
  for (int i = 0; i < lanes; ++i) x[i] = function(x[i], y[i]);
  return x;
}
INLINE F abs_(F x) { return cast_bits<F>(cast_bits<I>(x) & 0x7fffffff); }
INLINE D abs_(D x) { return cast_bits<D>(cast_bits<L>(x) & 0x7fffffffffffffff); }
INLINE I abs_(I x) { return select(x < 0, -x, x); }
INLINE L abs_(L x) { return (x ^ (x >> 63)) - (x >> 63); }
INLINE F copysign_(F a, F b) {
  return cast_bits<F>(cast_bits<I>(abs_(a)) | (cast_bits<I>(b) & (int)0x80000000));
}
INLINE D copysign_(D a, D b) {
  return each(a, b, [](double x, double y) { return __builtin_copysign(x, y); });
}
INLINE M signbit_(F x) { return cast_bits<I>(x) < 0; }
INLINE M signbit_(D x) { return mask(cast_bits<L>(x) < 0); }
INLINE F sign_(F x) { return select(x > 0, splat(1.0f), select(x < 0, splat(-1.0f), splat(0.0f))); }
INLINE D sign_(D x) { return select(lt_(D{}, x), splat(1.0), select(lt_(x, D{}), splat(-1.0), D{})); }
INLINE I sign_(I x) { return (x < 0) - (x > 0); }
INLINE L sign_(L x) { return to_L(lt_(x, L{}) - lt_(L{}, x)); }
// `b` where it is NaN or greater: a comparison with NaN is false, so that NaN stays in `a` and goes through
// from `b`.
#if defined(__AVX512F__)
// The machine's maximum gives its second argument where one is NaN or both are equal.
INLINE F max_or_second(F a, F b) { return __builtin_ia32_maxps512_mask(a, b, b, (u16)-1, 4); }
INLINE F min_or_second(F a, F b) { return __builtin_ia32_minps512_mask(a, b, b, (u16)-1, 4); }
#else
INLINE F max_or_second(F a, F b) { return select(a > b, a, b); }
INLINE F min_or_second(F a, F b) { return select(a < b, a, b); }
#endif
INLINE F maximum_(F a, F b) { return select(b != b, b, max_or_second(b, a)); }
INLINE F minimum_(F a, F b) { return select(b != b, b, min_or_second(b, a)); }
INLINE D maximum_(D a, D b) { return select(lt_(a, b) | ne_(b, b), b, a); }
INLINE D minimum_(D a, D b) { return select(lt_(b, a) | ne_(b, b), b, a); }
INLINE I maximum_(I a, I b) { return select(b > a, b, a); }
INLINE I minimum_(I a, I b) { return select(b < a, b, a); }
INLINE L maximum_(L a, L b) { return select(lt_(a, b), b, a); }
INLINE L minimum_(L a, L b) { return select(lt_(b, a), b, a); }
template <class V>
INLINE V fmax_(V a, V b) {
  return select(lt_(a, b) | ne_(a, a), b, a);
}
template <class V>
INLINE V fmin_(V a, V b) {
  return select(lt_(b, a) | ne_(a, a), b, a);
}
template <class V>
INLINE V relu_(V x) {
  return select(le_(x, V{}), V{}, x);
}
#if defined(__AVX512F__)
INLINE F sqrt_(F x) { return __builtin_ia32_sqrtps512_mask(x, x, (u16)-1, 4); }
#else
INLINE F sqrt_(F x) {
  return each(x, [](float v) { return __builtin_sqrtf(v); });
}
#endif
INLINE D sqrt_(D x) {
  return each(x, [](double v) { return __builtin_sqrt(v); });
}
#if defined(__AVX512F__)
INLINE F round_(F x) { return __builtin_ia32_rndscaleps_mask(x, 8, x, (u16)-1, 4); }
INLINE F floor_(F x) { return __builtin_ia32_rndscaleps_mask(x, 9, x, (u16)-1, 4); }
INLINE F ceil_(F x) { return __builtin_ia32_rndscaleps_mask(x, 10, x, (u16)-1, 4); }
INLINE F trunc_(F x) { return __builtin_ia32_rndscaleps_mask(x, 11, x, (u16)-1, 4); }
#else
INLINE F round_(F x) {
  return each(x, [](float v) { return __builtin_rintf(v); });
}
INLINE F floor_(F x) {
  return each(x, [](float v) { return __builtin_floorf(v); });
}
INLINE F ceil_(F x) {
  return each(x, [](float v) { return __builtin_ceilf(v); });
}
INLINE F trunc_(F x) {
  return each(x, [](float v) { return __builtin_truncf(v); });
}
#endif
INLINE D round_(D x) {
  return each(x, [](double v) { return __builtin_rint(v); });
}
INLINE D floor_(D x) {
  return each(x, [](double v) { return __builtin_floor(v); });
}
INLINE D ceil_(D x) {
  return each(x, [](double v) { return __builtin_ceil(v); });
}
INLINE D trunc_(D x) {
  return each(x, [](double v) { return __builtin_trunc(v); });
}

/// x 2^n with one rounding, also into the denormals; x in (1/2, 2), n is an integer, |n| <= 252. What rounds
/// to zero is made zero: some processors take over a hundred cycles to compute it.
INLINE F scale(F x, F n) {
#if defined(__AVX512F__)
  const u16 stays = __builtin_ia32_cmpps512_mask(n, splat(-150.0f), 5, (u16)-1, 4);  // not below, and NaN
  return __builtin_ia32_scalefps512_mask(x, n, F{}, stays, 4);
#else
  const I whole = to_I(n);
  const I first = whole >> 1;
  const I last = (whole - first + 127) << 23;
  return x * cast_bits<F>((first + 127) << 23) * cast_bits<F>(select(n < -150.0f, I{}, last));
#endif
}
/// The integer next to x, |x| < 2^22.
INLINE F nearest(F x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
/// exp(sign x), sign is 1 or -1, |x| <= 105: the exponent and the fraction lose nothing.
INLINE F exp_in_range(F x, float sign) {
  // (exp(r) - 1 - r) / r^2, |r| <= ln(2)/2; 4e-9
  static constexpr float terms[] = {0.500000008f, 0.166665257f, 0.0416662339f, 0.00836824942f,
                                    0.00139490367f};
  const F n = nearest(x * (sign * 1.44269504f));
  const F r = (x * sign - n * 0.693359375f) + n * 2.12194440e-4f;
  return scale(polynomial(r, terms) * (r * r) + r + 1, n);
}
INLINE F exp_(F x) {
  // NaN goes through to the product.
  return exp_in_range(min_or_second(splat(89.0f), max_or_second(splat(-105.0f), x)), 1);
}
INLINE F log_(F x) {
  // (log((1+s)/(1-s)) - 2s) / s^3 in s^2, |s| <= 0.1716; 2e-11
  static constexpr float terms[] = {0.666666662f, 0.400002412f, 0.285424404f, 0.23495821f};
  const M tiny = x < 0x1p-126f;
  const F y = select(tiny, x * 0x1p25f, x);
  // y = m 2^n, m in [sqrt(1/2), sqrt(2))
  const I exponent = (cast_bits<I>(y) - 0x3f3504f3) >> 23;
  const F n = to_F(exponent) - select(tiny, splat(25.0f), F{});
  const F f = cast_bits<F>(cast_bits<I>(y) - (exponent << 23)) - 1;
  const F s = f / (f + 2);
  const F z = s * s;
  const F half_square = f * f * 0.5f;
  const F tail = half_square - (s * (half_square + z * polynomial(z, terms)) + n * -2.12194440e-4f);
  const F result = n * 0.693359375f + (f - tail);
  const F bad = select(x == 0, splat(-__builtin_inff()), splat(__builtin_nanf("")));
  return select(x > 0, select(x < __builtin_inff(), result, x), select(x <= 0, bad, x));
}
INLINE F tanh_(F x) {
  // (tanh(x) - x) / x^3 in x^2, |x| <= 0.65; 4e-10
  static constexpr float terms[] = {-0.33333332f,  0.133332305f,    -0.0539478947f,
                                    0.0216993401f, -0.00816025113f, 0.00211770228f};
  const F magnitude = abs_(x);
  const F square = x * x;
  const F far = 1 - 2 / (exp_(magnitude * 2) + 1);
  return select(magnitude < 0.625f, polynomial(square, terms) * square * x + x, copysign_(far, x));
}
INLINE F sigmoid_(F x) {
  const F e = exp_(-abs_(x));
  const F positive = 1 / (e + 1);
  // e / (1 + e) = e - e^2 / (1 + e): the error of 1 + e weighs less that way.
  return select(x < 0, e - e * (e * positive), positive);
}
#if defined(__AVX512F__)
/// One instruction holds x within both ends; it loses NaN, which the numerator keeps.
INLINE F silu_(F x) {
  const F held = __builtin_ia32_rangeps512_mask(x, splat(105.0f), 2, x, (u16)-1, 4);
  return x / (1 + exp_in_range(held, -1));
}
#else
INLINE F silu_(F x) { return x / (1 + exp_(-x)); }
#endif
INLINE F erf_(F x) {
  // erf(x) / x - 1 in x^2, |x| <= 0.95; 6e-10
  static constexpr float odd[] = {0.12837917f,    -0.376126316f,    0.112836641f,  -0.0268577067f,
                                  0.00519695396f, -0.000809771052f, 8.18508618e-5f};
  // log(1 - erf(x)), 0.9 <= x <= 4; the error of 1 - exp is 2e-9
  static constexpr float log_erfc[] = {-0.000166456095f, -1.1277972f,     -0.636976168f,  -0.10411359f,
                                       0.0223151619f,    -0.00306547494f, 0.000198217792f};
  const F magnitude = abs_(x);
  const F near = polynomial(x * x, odd) * x + x;
  const F far = 1 - exp_(polynomial(select(magnitude > 4, splat(4.0f), magnitude), log_erfc));
  return select(magnitude < 0.925f, near, copysign_(far, x));
}
/// x times the normal distribution's integral at x: the exact gelu.
INLINE F gelu_(F x) {
  // log2 of that integral at -x, 0 <= x <= 6, falling ever faster beyond; the error of the product is 2e-8
  static constexpr float terms[] = {-0.9999998602f,   -1.151112345f,  -0.4591478122f,
                                    -0.05268325961f,  0.00733890542f, -0.0003508356085f,
                                    -9.670956171e-5f, 2.04108231e-5f, -1.244042218e-6f};
  // (2^r - 1) / r, |r| <= 1/2; 2e-9
  static constexpr float power_terms[] = {0.6931472024f,   0.240226513f,    0.05550332954f,
                                          0.009618007903f, 0.001339874915f, 0.0001547535573f};
  F power = polynomial(abs_(x), terms);
  power = select(power < -150, splat(-151.0f), power);
  const F n = nearest(power);
  const F r = power - n;
  const F below = scale(polynomial(r, power_terms) * r + 1, n);
  // exp2 of a polynomial that has overflowed is 0; inf times 0 would be NaN.
  const F factor = select(x < 0, below, 1 - below);
  return select(x == -__builtin_inff(), splat(__builtin_nanf("")), x * factor);
}
/// sin (quarter 0) or cos (quarter 1): reduced to [-pi/4, pi/4] in three steps for small x. For others, and
/// without fused multiply-add, the C library does it: the reduction would lose digits near the zeros.
INLINE F sine(F x, int quarter) {
  // (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2, |r| <= pi/4; 3e-9 and 2e-9
  static constexpr float odd[] = {-0.166666546f, 8.33216087e-3f, -1.95152959e-4f};
  static constexpr float even[] = {4.16666456e-2f, -1.38873162e-3f, 2.44331571e-5f};
  const F n = nearest(x * 0.636619772f);
  const F r = ((x - n * 1.5703125f) - n * 4.83751297e-4f) - n * 7.54978995e-8f;
  const F square = r * r;
  const F s = polynomial(square, odd) * square * r + r;
  const F c = polynomial(square, even) * square * square - square * 0.5f + 1;
  const I turn = to_I(n) + quarter;
  const F value = select((turn & 1) != 0, c, s);
  F result = cast_bits<F>(cast_bits<I>(value) ^ ((turn & 2) << 30));
#if defined(__FMA__)
  const M far = ~(abs_(x) < 256);
#else
  const M far = splat(-1);
#endif
  for (int i = 0; i < lanes; ++i)
    if (far[i]) result[i] = quarter ? __builtin_cosf(x[i]) : __builtin_sinf(x[i]);
  return result;
}
INLINE F sin_(F x) { return sine(x, 0); }
INLINE F cos_(F x) { return sine(x, 1); }
INLINE F exp2_(F x) {
  return each(x, [](float v) { return __builtin_exp2f(v); });
}
INLINE F expm1_(F x) {
  return each(x, [](float v) { return __builtin_expm1f(v); });
}
INLINE F log2_(F x) {
  return each(x, [](float v) { return __builtin_log2f(v); });
}
INLINE F log10_(F x) {
  return each(x, [](float v) { return __builtin_log10f(v); });
}
INLINE F log1p_(F x) {
  return each(x, [](float v) { return __builtin_log1pf(v); });
}
INLINE F tan_(F x) {
  return each(x, [](float v) { return __builtin_tanf(v); });
}
INLINE F asin_(F x) {
  return each(x, [](float v) { return __builtin_asinf(v); });
}
INLINE F acos_(F x) {
  return each(x, [](float v) { return __builtin_acosf(v); });
}
INLINE F atan_(F x) {
  return each(x, [](float v) { return __builtin_atanf(v); });
}
INLINE F sinh_(F x) {
  return each(x, [](float v) { return __builtin_sinhf(v); });
}
INLINE F cosh_(F x) {
  return each(x, [](float v) { return __builtin_coshf(v); });
}
INLINE F asinh_(F x) {
  return each(x, [](float v) { return __builtin_asinhf(v); });
}
INLINE F acosh_(F x) {
  return each(x, [](float v) { return __builtin_acoshf(v); });
}
INLINE F atanh_(F x) {
  return each(x, [](float v) { return __builtin_atanhf(v); });
}
INLINE F erfc_(F x) {
  return each(x, [](float v) { return __builtin_erfcf(v); });
}
INLINE F lgamma_(F x) {
  return each(x, [](float v) { return __builtin_lgammaf(v); });
}
INLINE F pow_(F x, F y) {
  return each(x, y, [](float a, float b) { return __builtin_powf(a, b); });
}
INLINE F fmod_(F x, F y) {
  return each(x, y, [](float a, float b) { return __builtin_fmodf(a, b); });
}
INLINE F atan2_(F x, F y) {
  return each(x, y, [](float a, float b) { return __builtin_atan2f(a, b); });
}
INLINE F hypot_(F x, F y) {
  return each(x, y, [](float a, float b) { return __builtin_hypotf(a, b); });
}
INLINE F nextafter_(F x, F y) {
  return each(x, y, [](float a, float b) { return __builtin_nextafterf(a, b); });
}
INLINE D exp_(D x) {
  return each(x, [](double v) { return __builtin_exp(v); });
}
INLINE D exp2_(D x) {
  return each(x, [](double v) { return __builtin_exp2(v); });
}
INLINE D expm1_(D x) {
  return each(x, [](double v) { return __builtin_expm1(v); });
}
INLINE D log_(D x) {
  return each(x, [](double v) { return __builtin_log(v); });
}
INLINE D log2_(D x) {
  return each(x, [](double v) { return __builtin_log2(v); });
}
INLINE D log10_(D x) {
  return each(x, [](double v) { return __builtin_log10(v); });
}
INLINE D log1p_(D x) {
  return each(x, [](double v) { return __builtin_log1p(v); });
}
INLINE D sin_(D x) {
  return each(x, [](double v) { return __builtin_sin(v); });
}
INLINE D cos_(D x) {
  return each(x, [](double v) { return __builtin_cos(v); });
}
INLINE D tan_(D x) {
  return each(x, [](double v) { return __builtin_tan(v); });
}
INLINE D asin_(D x) {
  return each(x, [](double v) { return __builtin_asin(v); });
}
INLINE D acos_(D x) {
  return each(x, [](double v) { return __builtin_acos(v); });
}
INLINE D atan_(D x) {
  return each(x, [](double v) { return __builtin_atan(v); });
}
INLINE D sinh_(D x) {
  return each(x, [](double v) { return __builtin_sinh(v); });
}
INLINE D cosh_(D x) {
  return each(x, [](double v) { return __builtin_cosh(v); });
}
INLINE D tanh_(D x) {
  return each(x, [](double v) { return __builtin_tanh(v); });
}
INLINE D asinh_(D x) {
  return each(x, [](double v) { return __builtin_asinh(v); });
}
INLINE D acosh_(D x) {
  return each(x, [](double v) { return __builtin_acosh(v); });
}
INLINE D atanh_(D x) {
  return each(x, [](double v) { return __builtin_atanh(v); });
}
INLINE D erf_(D x) {
  return each(x, [](double v) { return __builtin_erf(v); });
}
INLINE D erfc_(D x) {
  return each(x, [](double v) { return __builtin_erfc(v); });
}
INLINE D lgamma_(D x) {
  return each(x, [](double v) { return __builtin_lgamma(v); });
}
INLINE D sigmoid_(D x) {
  return each(x, [](double v) { return 1 / (1 + __builtin_exp(-v)); });
}
INLINE D silu_(D x) {
  return each(x, [](double v) { return v / (1 + __builtin_exp(-v)); });
}
INLINE D gelu_(D x) {
  return each(x, [](double v) { return v * 0.5 * __builtin_erfc(-v * 0.70710678118654752); });
}
INLINE D pow_(D x, D y) {
  return each(x, y, [](double a, double b) { return __builtin_pow(a, b); });
}
INLINE D fmod_(D x, D y) {
  return each(x, y, [](double a, double b) { return __builtin_fmod(a, b); });
}
INLINE D atan2_(D x, D y) {
  return each(x, y, [](double a, double b) { return __builtin_atan2(a, b); });
}
INLINE D hypot_(D x, D y) {
  return each(x, y, [](double a, double b) { return __builtin_hypot(a, b); });
}
INLINE D nextafter_(D x, D y) {
  return each(x, y, [](double a, double b) { return __builtin_nextafter(a, b); });
}

// ---- division of integers; by zero it gives what dividing by one gives, and no trap
template <class V>
INLINE V div_trunc(V a, V b) {
  b = select(mask(b == 0), V{} + 1, b);
  // The least integer over -1 would trap: negation wraps.
  return select(mask(b == -1), -a, a / select(mask(b == -1), V{} + 1, b));
}
template <class V>
INLINE V integer_remainder(V a, V b) {
  return a - div_trunc(a, b) * select(mask(b == 0), V{} + 1, b);
}
template <class V>
INLINE V floor_quotient(V a, V b) {
  const V rest = integer_remainder(a, b);
  const M below = mask((rest != 0) & ((rest < 0) != (b < 0)));
  return select(below, div_trunc(a, b) - 1, div_trunc(a, b));
}
template <class V>
INLINE V floor_remainder(V a, V b) {
  const V rest = integer_remainder(a, b);
  return select(mask((rest != 0) & ((rest < 0) != (b < 0))), rest + b, rest);
}
INLINE I div_floor(I a, I b) { return floor_quotient(a, b); }
INLINE L div_floor(L a, L b) { return floor_quotient(a, b); }
INLINE I remainder_(I a, I b) { return floor_remainder(a, b); }
INLINE L remainder_(L a, L b) { return floor_remainder(a, b); }
template <class V>
INLINE V float_remainder(V a, V b) {
  const V rest = fmod_(a, b);
  return select(mask((rest != 0) & ((rest < 0) != (b < 0))), rest + b, rest);
}
template <class V>
INLINE V float_floor_quotient(V a, V b) {
  const V rest = fmod_(a, b);
  V quotient = (a - rest) / b;
  quotient = select(mask((rest != 0) & ((rest < 0) != (b < 0))), quotient - 1, quotient);
  V whole = floor_(quotient);
  whole = select(mask(quotient - whole > V{} + 0.5f), whole + 1, whole);
  whole = select(mask(quotient == 0), copysign_(V{}, a / b), whole);
  return select(mask(b == 0), a / b, whole);
}
INLINE F remainder_(F a, F b) { return float_remainder(a, b); }
INLINE D remainder_(D a, D b) { return float_remainder(a, b); }
INLINE F div_floor(F a, F b) { return float_floor_quotient(a, b); }
INLINE D div_floor(D a, D b) { return float_floor_quotient(a, b); }
// Shifts by less than nothing or by all bits leave only the sign, to the left nothing.
template <class V>
INLINE V shl_(V a, V b) {
  constexpr int last = sizeof(a[0]) * 8 - 1;
  return select(mask((b < 0) | (b > last)), V{}, a << (b & last));
}
template <class V>
INLINE V shr_(V a, V b) {
  constexpr int last = sizeof(a[0]) * 8 - 1;
  return a >> select(mask((b < 0) | (b > last)), V{} + last, b);
}

// ---- folding the lanes of a register; the result is in all lanes
INLINE I lanes_from(int first, F) { return (lane_number + first) & (lanes - 1); }
INLINE I lanes_from(int first, I) { return (lane_number + first) & (lanes - 1); }
INLINE L lanes_from(int first, D) { return to_L(lanes_from(first, I{})); }
INLINE L lanes_from(int first, L) { return to_L(lanes_from(first, I{})); }
template <class V, class Combine>
INLINE V fold(V v, Combine combine) {
#pragma GCC unroll 4
  for (int half = lanes / 2; half > 0; half /= 2) v = combine(v, __builtin_shuffle(v, lanes_from(half, v)));
  return v;
}
/// Folds 16 registers; lane r of the result is the fold of v[r]. With other arguments `count` of them from
/// `first` on. Recursion, and no loop, so that the registers never become an array in memory.
template <int first = 0, int count = lanes, class V, class Combine>
INLINE V fold_rows(V (&v)[lanes], Combine combine) {
  if constexpr (count == 1) {
    return v[first];
  } else {
    // Lanes in groups of `size`: a pair of registers becomes one, of which every other group is the first's.
    constexpr int size = count / 2;
    const V a = fold_rows<first, size>(v, combine);
    const V b = fold_rows<first + size, size>(v, combine);
    const I group = lane_number / size & 1;
    const I low = lane_number - group * size + group * lanes;
    const auto from = [&](I index) {
      if constexpr (sizeof(V) == sizeof(L)) {
        return to_L(index);
      } else {
        return index;
      }
    };
    return combine(__builtin_shuffle(a, b, from(low)), __builtin_shuffle(a, b, from(low + size)));
  }
}

/// `corrected`, and `quotient` in lanes where that is zero, infinite or NaN.
INLINE D unless_special(D quotient, D corrected) {
  return select(lt_(abs_(quotient), splat(__builtin_inf())) & ne_(quotient, D{}), corrected, quotient);
}
INLINE F unless_special(F quotient, F corrected) {
#if defined(__AVX512DQ__)
  constexpr int zero_infinite_or_nan = 0x9f;
  const u16 special = __builtin_ia32_fpclassps512_mask(quotient, zero_infinite_or_nan, (u16)-1);
  return __builtin_ia32_movaps512_mask(quotient, corrected, special);
#else
  return select((abs_(quotient) < __builtin_inff()) & (quotient != 0), corrected, quotient);
#endif
}
/// A row's value by which its elements are divided: the product with its inverse, corrected by what that
/// leaves over, is the quotient bit by bit. Where it could overflow, and without fused multiply-add, it is a
/// division.
template <class V>
struct Divisor {
  V value, inverse;
  bool plain;
  __attribute__((always_inline)) explicit Divisor(V v) : value(v), inverse(1 / v) {
#if defined(__FMA__)
    const auto magnitude = v[0] < 0 ? -v[0] : v[0];
    plain = magnitude > 0x1p-60f && magnitude < 0x1p60f;
#else
    plain = false;
#endif
  }
  __attribute__((always_inline)) V divide(V x) const {
    if (!plain) return x / value;
    const V quotient = x * inverse;
    const V corrected = quotient + (x - quotient * value) * inverse;
    return unless_special(quotient, corrected);
  }
};
