// Philox and the distributions. Compiled once per instruction set, with -ffp-contract=off: without fused
// multiply-adds every operation is an IEEE one, so all instruction sets give the same bits.

#include "cann_host/kernels/random_kernels.h"

#include "cann_host/kernels/math.h"
#include "cann_host/kernels/simd.h"

namespace cann_host::kernels {
namespace {

using U32 = Vec<uint32_t>;
using U64 = Vec<uint64_t>;
using I32 = Vec<int32_t>;
using F32 = Vec<float>;
using F64 = Vec<double>;

constexpr int block32 = 64;     // elements of a block of 32-bit draws
constexpr int block64 = 32;     // elements of a block of 64-bit draws
constexpr int group_words = 4;  // what one run of Philox gives
constexpr int groups = 16;      // groups of a block: elements of neighbouring words are this far apart
static_assert(random_block == block32 && block32 % block64 == 0 && groups % width<uint32_t> == 0);

constexpr uint64_t second_stream_bit = uint64_t{1} << 63;
constexpr uint64_t low32 = 0xffffffff;

// ---- Philox4x32-10 ----

/// The four words of one group per 64-bit lane, in the low halves; the high halves hold rubbish.
struct WideWords {
  U64 word[group_words];
};

inline WideWords philox4x32(Philox philox, U64 group) {
  constexpr uint64_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
  constexpr uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;
  U64 c0 = splat<U64>(philox.offset & low32), c1 = splat<U64>(philox.offset >> 32), c2 = group,
      c3 = group >> 32;
  uint32_t key0 = static_cast<uint32_t>(philox.seed), key1 = static_cast<uint32_t>(philox.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const U64 product0 = multiply_low32(c0, splat<U64>(multiplier0));
    const U64 product1 = multiply_low32(c2, splat<U64>(multiplier1));
    c0 = (product1 >> 32) ^ c1 ^ uint64_t{key0};
    c1 = product1;
    c2 = (product0 >> 32) ^ c3 ^ uint64_t{key1};
    c3 = product0;
    key0 += weyl0;
    key1 += weyl1;
  }
  return {{c0, c1, c2, c3}};
}

/// The four words of width<uint32_t> neighbouring groups.
struct Words {
  U32 word[group_words];
};

inline Words draw32(Philox philox, uint64_t group) {
  const U64 even = group + 2 * lane_numbers<uint64_t>();
  const WideWords a = philox4x32(philox, even), b = philox4x32(philox, even + 1);
  Words words;
  for (int i = 0; i < group_words; ++i) {
    words.word[i] = bit_cast<U32>((a.word[i] & low32) | (b.word[i] << 32));
  }
  return words;
}

/// Two 64-bit draws of width<uint64_t> neighbouring groups.
struct LongWords {
  U64 word[2];
};

inline LongWords draw64(Philox philox, uint64_t group) {
  const WideWords w = philox4x32(philox, group + lane_numbers<uint64_t>());
  return {{(w.word[0] & low32) | (w.word[1] << 32), (w.word[2] & low32) | (w.word[3] << 32)}};
}

// ---- Loops over elements: store(out, words) puts results of word i to out[16 * i] and its neighbours ----

template <class T, class Store>
void for_each_draw32(Philox philox, T* out, int64_t begin, int64_t end, Store store) {
  const auto fill_block = [&](int64_t first, T* block) {
    for (int lane = 0; lane < groups; lane += width<uint32_t>) {
      store(block + lane, draw32(philox, first / group_words + lane), first + lane);
    }
  };
  int64_t first = begin;
  for (; first + block32 <= end; first += block32) fill_block(first, out + first);
  if (first < end) {
    T block[block32];
    fill_block(first, block);
    std::memcpy(out + first, block, (end - first) * sizeof(T));
  }
}

template <class T, class Store>
void for_each_draw64(Philox philox, uint64_t stream, T* out, int64_t begin, int64_t end, Store store) {
  const auto fill_block = [&](int64_t first, T* block) {
    for (int lane = 0; lane < groups; lane += width<uint64_t>) {
      store(block + lane, draw64(philox, (first / 2 + lane) | stream));
    }
  };
  int64_t first = begin;
  for (; first + block64 <= end; first += block64) fill_block(first, out + first - begin);
  if (first < end) {
    T block[block64];
    fill_block(first, block);
    std::memcpy(out + first - begin, block, (end - first) * sizeof(T));
  }
}

// ---- From words to numbers ----

/// [0, 1), 24 bits.
inline F32 unit(U32 word) { return __builtin_convertvector(bit_cast<I32>(word >> 8), F32) * 0x1p-24f; }

/// (0, 1], 31 bits where small.
inline F32 positive_unit(U32 word) {
  return __builtin_convertvector(bit_cast<I32>(word >> 1), F32) * 0x1p-31f + 0x1p-32f;
}

/// [0, 1), 52 bits.
inline F64 unit(U64 word) { return bit_cast<F64>((word >> 12) | 0x3ff0000000000000u) - 1.0; }

/// (0, 1], 52 bits.
inline F64 positive_unit(U64 word) { return 2.0 - bit_cast<F64>((word >> 12) | 0x3ff0000000000000u); }

/// sin and cos of 2^-32 turns.
inline SinCos<F32> sincos_of_turns(I32 turns) {
  const U32 bits = bit_cast<U32>(turns) + (1u << 29);
  const I32 quarter = bit_cast<I32>(bits) >> 30;
  const I32 rest = bit_cast<I32>((bits & ((1u << 30) - 1)) - (1u << 29));
  return sincos_turns<F32>(quarter, __builtin_convertvector(rest, F32) * 0x1p-32f);
}

inline SinCos<F64> sincos_of_turns(F64 turns) {
  const auto quarter = round_to_integer<F64>(turns * 4);
  return sincos_turns<F64>(quarter.integer, turns - quarter.value * 0.25);
}

inline SinCos<F32> sincos_of_angle(U32 word) { return sincos_of_turns(bit_cast<I32>(word)); }
inline SinCos<F64> sincos_of_angle(U64 word) { return sincos_of_turns(unit(word) - 0.5); }

/// tan of an angle in (-90°, 90°), never exactly at the ends.
inline F32 tan_of_word(U32 word) {
  const auto angle = sincos_of_turns((bit_cast<I32>(word) >> 1) | 1);
  return angle.sin / angle.cos;
}
inline F64 tan_of_word(U64 word) {
  const auto angle = sincos_of_turns((unit(word) - 0.5 + 0x1p-53) * 0.5);
  return angle.sin / angle.cos;
}

/// Box-Muller: two independent standard normal numbers per pair of words.
template <class W>
auto normal_pair(W radius_word, W angle_word) {
  const auto radius = sqrt(log_of_normal(positive_unit(radius_word)) * -2);
  auto pair = sincos_of_angle(angle_word);
  pair.cos *= radius;
  pair.sin *= radius;
  return pair;
}

/// -log of (0, 1]; where that is 0, half of the smallest step below 1.
template <class W>
auto standard_exponential(W word) {
  const auto value = -log_of_normal(positive_unit(word));
  using Real = ElementOf<decltype(value)>;
  constexpr Real smallest = sizeof(Real) == 4 ? 0x1p-25 : 0x1p-54;
  return select(value > 0, value, splat<std::remove_const_t<decltype(value)>>(smallest));
}

template <class V>
V ceil_of_positive(V x) {
  const V rounded = round_to_integer(x).value;
  const V up = select(rounded < x, rounded + 1, rounded);
  return select(x < ConstantsOf<V>::round_magic / 4, up,
                x);  // larger ones are integers, or differ from one by rounding
}

// ---- Stores ----

template <class T>
void store_integer_valued(T* out, F64 value) {
  for (int i = 0; i < width<double>; ++i) out[i] = static_cast<T>(value[i]);
}

/// 1 where mask is set, else 0.
template <class T>
void store_bits(T* out, I32 mask) {
  if constexpr (std::is_same_v<Compute<T>, float>) {
    narrow(out, select(mask, splat<F32>(1), F32{}));
  } else {
    store_vector(out, __builtin_convertvector(mask & 1, Lanes<T, width<int32_t>>));
  }
}

template <class T>
void store_integers(T* out, U64 value) {
  if constexpr (is_half_width_float<T>) {
    for (int i = 0; i < width<uint64_t>; ++i) {
      out[i] = from_float<T>(static_cast<float>(static_cast<int64_t>(value[i])));
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    store_vector(out, __builtin_convertvector((value != 0) & 1, Lanes<uint8_t, width<uint64_t>>));
  } else if constexpr (std::is_floating_point_v<T>) {
    for (int i = 0; i < width<uint64_t>; ++i) out[i] = static_cast<T>(static_cast<int64_t>(value[i]));
  } else {
    store_vector(out, __builtin_convertvector(value, Lanes<T, width<uint64_t>>));
  }
}

// ---- Distributions ----

/// Fills with f(word), 32-bit draws for types computed in float and 64-bit draws for double.
template <class T, class F>
void fill_each(Philox philox, T* out, int64_t begin, int64_t end, F f) {
  if constexpr (std::is_same_v<T, double>) {
    for_each_draw64(philox, 0, out + begin, begin, end, [&](T* to, const LongWords& w) {
      for (int i = 0; i < 2; ++i) narrow(to + groups * i, f(w.word[i]));
    });
  } else {
    for_each_draw32(philox, out, begin, end, [&](T* to, const Words& w, int64_t) {
      for (int i = 0; i < group_words; ++i) narrow(to + groups * i, f(w.word[i]));
    });
  }
}

/// Fills with f(standard normal).
template <class T, class F>
void fill_from_normal(Philox philox, T* out, int64_t begin, int64_t end, F f) {
  if constexpr (std::is_same_v<T, double>) {
    for_each_draw64(philox, 0, out + begin, begin, end, [&](T* to, const LongWords& w) {
      const auto pair = normal_pair(w.word[0], w.word[1]);
      narrow(to, f(pair.cos));
      narrow(to + groups, f(pair.sin));
    });
  } else {
    for_each_draw32(philox, out, begin, end, [&](T* to, const Words& w, int64_t) {
      for (int i = 0; i < group_words; i += 2) {
        const auto pair = normal_pair(w.word[i], w.word[i + 1]);
        narrow(to + groups * i, f(pair.cos));
        narrow(to + groups * (i + 1), f(pair.sin));
      }
    });
  }
}

template <class T>
T round_to(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

template <class T>
Compute<T> to_compute(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}

/// The next smaller number of type T.
template <class T>
T predecessor(T value) {
  using Bits =
      std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  constexpr Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(T) - 1));
  const Bits bits = bit_cast<Bits>(value);
  if ((bits & ~sign) == 0) return bit_cast<T>(static_cast<Bits>(sign | 1));
  return bit_cast<T>(static_cast<Bits>(bits & sign ? bits + 1 : bits - 1));
}

template <class T>
void uniform(Philox philox, void* out, int64_t begin, int64_t end, double a, double b) {
  using C = Compute<T>;
  const C low = to_compute(round_to<T>(a)), high = to_compute(round_to<T>(b));
  const C below_high = to_compute(predecessor(round_to<T>(b)));
  const C last = below_high > low ? below_high : low;
  fill_each(philox, static_cast<T*>(out), begin, end, [=](auto word) {
    const auto value = unit(word) * (high - low) + low;
    return select(value > last, splat<std::remove_const_t<decltype(value)>>(last), value);
  });
}

template <class T>
void normal(Philox philox, void* out, int64_t begin, int64_t end, double mean, double std) {
  using C = Compute<T>;
  const C shift = static_cast<C>(mean), scale = static_cast<C>(std);
  fill_from_normal(philox, static_cast<T*>(out), begin, end, [=](auto z) { return z * scale + shift; });
}

template <class T>
void log_normal(Philox philox, void* out, int64_t begin, int64_t end, double mean, double std) {
  using C = Compute<T>;
  const C shift = static_cast<C>(mean), scale = static_cast<C>(std);
  fill_from_normal(philox, static_cast<T*>(out), begin, end, [=](auto z) { return exp(z * scale + shift); });
}

template <class T>
void cauchy(Philox philox, void* out, int64_t begin, int64_t end, double median, double scale) {
  using C = Compute<T>;
  const C shift = static_cast<C>(median), factor = static_cast<C>(scale);
  fill_each(philox, static_cast<T*>(out), begin, end,
            [=](auto word) { return tan_of_word(word) * factor + shift; });
}

template <class T>
void exponential(Philox philox, void* out, int64_t begin, int64_t end, double rate, double) {
  using C = Compute<T>;
  const C scale = static_cast<C>(1 / rate);
  constexpr C smallest = std::is_same_v<T, Half> ? 0x1p-24f : 0;  // float16 would round smaller ones to 0
  fill_each(philox, static_cast<T*>(out), begin, end, [=](auto word) {
    const auto value = standard_exponential(word) * scale;
    return select(value < smallest, splat<std::remove_const_t<decltype(value)>>(smallest), value);
  });
}

template <class T>
void geometric(Philox philox, void* out, int64_t begin, int64_t end, double p, double) {
  const double scale = -1 / __builtin_log1p(-p);  // 0 for p = 1
  const auto trials = [=](auto word) {
    const auto e = standard_exponential(word);
    const auto count = ceil_of_positive(e * static_cast<ElementOf<decltype(e)>>(scale));
    return select(count < 1, splat<std::remove_const_t<decltype(count)>>(1), count);
  };
  if constexpr (std::is_integral_v<T>) {
    for_each_draw64(philox, 0, static_cast<T*>(out) + begin, begin, end, [&](T* to, const LongWords& w) {
      for (int i = 0; i < 2; ++i) store_integer_valued(to + groups * i, trials(w.word[i]));
    });
  } else {
    fill_each(philox, static_cast<T*>(out), begin, end, trials);
  }
}

/// Whether a word is kept by an event of probability p: its upper 31 bits are at most this. -1: never.
inline int32_t highest_accepted(double p) {
  return static_cast<int32_t>(__builtin_floor(p * 0x1p31 + 0.5) - 1);
}

inline I32 accepted(U32 word, int32_t highest) { return bit_cast<I32>(word >> 1) <= highest; }

template <class T>
void bernoulli_scalar(Philox philox, void* out, int64_t begin, int64_t end, double p, double) {
  const int32_t highest = highest_accepted(p);
  for_each_draw32(philox, static_cast<T*>(out), begin, end, [=](T* to, const Words& w, int64_t) {
    for (int i = 0; i < group_words; ++i) store_bits(to + groups * i, accepted(w.word[i], highest));
  });
}

template <class P>
F32 load_probabilities(const P* p) {
  return widen(p);
}
inline F32 load_probabilities(const double* p) {
  return __builtin_convertvector(load_vector<Lanes<double, width<float>>>(p), F32);
}

template <class P, class T>
void bernoulli_tensor(Philox philox, const void* probabilities, void* out, int64_t begin, int64_t end) {
  const P* p = static_cast<const P*>(probabilities);
  const auto fill = [&](const P* p_of_first, int64_t first, int64_t last) {
    for_each_draw32(philox, static_cast<T*>(out), first, last, [&](T* to, const Words& w, int64_t element) {
      for (int i = 0; i < group_words; ++i) {
        store_bits(to + groups * i,
                   unit(w.word[i]) < load_probabilities(p_of_first + (element - first) + groups * i));
      }
    });
  };
  const int64_t whole = end / block32 * block32;
  fill(p + begin, begin, whole);
  if (whole < end) {  // the last block reads all of its 64 probabilities
    P padded[block32] = {};
    std::memcpy(padded, p + whole, (end - whole) * sizeof(P));
    fill(padded, whole, end);
  }
}

template <class T>
void integers(Philox philox, void* out, int64_t begin, int64_t end, int64_t low, uint64_t range) {
  const uint64_t base = static_cast<uint64_t>(low);
  const auto fill = [&](auto scale) {
    for_each_draw64(philox, 0, static_cast<T*>(out) + begin, begin, end, [&](T* to, const LongWords& w) {
      for (int i = 0; i < 2; ++i) store_integers(to + groups * i, scale(w.word[i]) + base);
    });
  };
  if (range == 0) {
    fill([](U64 word) { return word; });
  } else if (range <= low32) {  // floor(word * range / 2^64) from two 32-bit products
    const U64 factor = splat<U64>(range);
    fill([=](U64 word) {
      return (multiply_low32(word >> 32, factor) + (multiply_low32(word, factor) >> 32)) >> 32;
    });
  } else {
    fill([=](U64 word) {
      for (int i = 0; i < width<uint64_t>; ++i) {
        word[i] = static_cast<uint64_t>((static_cast<unsigned __int128>(word[i]) * range) >> 64);
      }
      return word;
    });
  }
}

// ---- Dropout ----

/// The 64 bits of a block of the mask.
inline uint64_t keep_bits(Philox philox, int64_t first, int32_t highest) {
  uint64_t bits = 0;
  for (int lane = 0; lane < groups; lane += width<uint32_t>) {
    const Words w = draw32(philox, first / group_words + lane);
    for (int i = 0; i < group_words; ++i) {
      bits |= uint64_t{mask_bits(accepted(w.word[i], highest))} << (groups * i + lane);
    }
  }
  return bits;
}

/// Writes the first n <= 64 bits.
inline void store_mask(uint8_t* mask, uint64_t bits, int64_t n) {
  if (n < block32) bits &= (uint64_t{1} << n) - 1;
  std::memcpy(mask, &bits, (n + 7) / 8);
}

inline uint64_t load_mask(const uint8_t* mask, int64_t n) {
  uint64_t bits = 0;
  std::memcpy(&bits, mask, (n + 7) / 8);
  return bits;
}

template <class T>
void apply_bits(const T* x, T* out, uint64_t bits, Compute<T> scale) {
  if constexpr (std::is_same_v<T, double>) {
    for (int i = 0; i < block32; ++i) out[i] = x[i] * ((bits >> i) & 1 ? scale : 0);
  } else {
    const F32 kept = splat<F32>(scale);
    for (int i = 0; i < block32; i += width<float>) {
      const I32 mask = mask_from_bits(static_cast<uint32_t>(bits >> i));
      narrow(out + i, widen(x + i) * select(mask, kept, F32{}));
    }
  }
}

/// next_bits(first, count) gives the mask of the block that starts at element `first`.
template <class T, class NextBits>
void apply_blocks(const T* x, T* out, int64_t begin, int64_t end, double p, NextBits next_bits) {
  const auto scale = static_cast<Compute<T>>(p < 1 ? 1 / (1 - p) : 0);
  int64_t first = begin;
  for (; first + block32 <= end; first += block32) {
    apply_bits(x + first, out + first, next_bits(first, int64_t{block32}), scale);
  }
  if (first < end) {
    T block[block32] = {};
    std::memcpy(block, x + first, (end - first) * sizeof(T));
    apply_bits(block, block, next_bits(first, end - first), scale);
    std::memcpy(out + first, block, (end - first) * sizeof(T));
  }
}

void dropout_mask(Philox philox, uint8_t* mask, int64_t begin, int64_t end, double p) {
  const int32_t highest = highest_accepted(1 - p);
  for (int64_t first = begin; first < end; first += block32) {
    const int64_t count = end - first < block32 ? end - first : block32;
    store_mask(mask + first / 8, keep_bits(philox, first, highest), count);
  }
}

template <class T>
void dropout_apply(const void* x, const uint8_t* mask, void* out, int64_t begin, int64_t end, double p) {
  apply_blocks(static_cast<const T*>(x), static_cast<T*>(out), begin, end, p,
               [&](int64_t first, int64_t count) { return load_mask(mask + first / 8, count); });
}

template <class T>
void dropout(Philox philox, const void* x, void* out, uint8_t* mask, int64_t begin, int64_t end, double p) {
  const int32_t highest = highest_accepted(1 - p);
  apply_blocks(static_cast<const T*>(x), static_cast<T*>(out), begin, end, p,
               [&](int64_t first, int64_t count) {
                 const uint64_t bits = keep_bits(philox, first, highest);
                 store_mask(mask + first / 8, bits, count);
                 return bits;
               });
}

void words(Philox philox, bool second_stream, uint64_t* out, int64_t begin, int64_t end) {
  for_each_draw64(philox, second_stream ? second_stream_bit : 0, out, begin, end,
                  [](uint64_t* to, const LongWords& w) {
                    store_vector(to, w.word[0]);
                    store_vector(to + groups, w.word[1]);
                  });
}

// ---- Table ----

using Fill = RandomKernels::Fill;
using GeometricTypes = TypeList<float, Half, BFloat16, double, int32_t, int64_t>;

template <class P>
constexpr ByType<RandomKernels::Bernoulli> bernoulli_table =
    by_type<RandomKernels::Bernoulli>(AllTypes{}, []<class T> { return &bernoulli_tensor<P, T>; });

}  // namespace

namespace CANN_HOST_ISA {

extern const RandomKernels random_kernels = {
    .fill = {by_type<Fill>(RealTypes{}, []<class T> { return &uniform<T>; }),
             by_type<Fill>(RealTypes{}, []<class T> { return &normal<T>; }),
             by_type<Fill>(RealTypes{}, []<class T> { return &log_normal<T>; }),
             by_type<Fill>(RealTypes{}, []<class T> { return &cauchy<T>; }),
             by_type<Fill>(RealTypes{}, []<class T> { return &exponential<T>; }),
             by_type<Fill>(GeometricTypes{}, []<class T> { return &geometric<T>; }),
             by_type<Fill>(AllTypes{}, []<class T> { return &bernoulli_scalar<T>; })},
    .bernoulli = by_type<const ByType<RandomKernels::Bernoulli>*>(
        RealTypes{}, []<class P> { return &bernoulli_table<P>; }),
    .integers = by_type<RandomKernels::Integers>(AllTypes{}, []<class T> { return &integers<T>; }),
    .dropout_mask = &dropout_mask,
    .dropout_apply = by_type<RandomKernels::Apply>(RealTypes{}, []<class T> { return &dropout_apply<T>; }),
    .dropout = by_type<RandomKernels::Dropout>(RealTypes{}, []<class T> { return &dropout<T>; }),
    .words = &words,
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
