// Products with a bfloat16 matrix in FRACTAL_NZ, by instructions that multiply pairs of bfloat16. Compiled
// once per instruction set, of which AVX-512 alone may have them.

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")
#endif

#include "cann_host/kernels/fractal_nz_panels.h"

namespace cann_host::kernels {
namespace {

#if defined(__AVX512F__)
/// Two products a lane: the instruction adds them in float and takes denormals for zero, as oneDNN's products
/// do.
struct InPairs {
  using Number = BFloat16;
  using X = BFloat16;
  using Factor = __m512bh;
  static constexpr int elements = 2 * lanes, deep = 2, parts = 1, turned = 8;

  static __m512bh load(const BFloat16* weight) { return (__m512bh)load_stream<__m512i>(weight); }
  static __m512bh load_deep(const BFloat16* weight) {
    // clang-format off
    const __m512i order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
        23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    // clang-format on
    return (__m512bh)_mm512_permutexvar_epi16(order, load_vector<__m512i>(weight));
  }
  static Vec<float> load_to_turn(const BFloat16* weight, int i) {
    const auto first = load_vector<__m256i>(weight + i * block);
    const auto second = load_vector<__m256i>(weight + (i + turned) * block);
    return (Vec<float>)_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }
  /// A vector has two rows of blocks.
  static __m512bh along_inner(const BFloat16* x, int) {
    return (__m512bh)_mm512_broadcast_i64x4(load_vector<__m256i>(x));
  }
  static __m512bh spread(const BFloat16* x) { return (__m512bh)_mm512_set1_epi32(load_vector<int32_t>(x)); }
  static Vec<float> multiply_add(Vec<float> sum, __m512bh weight, __m512bh factor) {
    return _mm512_dpbf16_ps(sum, weight, factor);
  }
};
constexpr const NzProduct* pairs = &product<InPairs>;
#else
constexpr const NzProduct* pairs = nullptr;
#endif

}  // namespace

namespace CANN_HOST_ISA {

extern const NzProduct* const nz_pairs_of_bfloat16 = pairs;

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
