// Softmax of blocks of scores with weights in bfloat16, by the instruction that converts two vectors.
// Compiled once per instruction set, of which AVX-512 alone may have it.

#if defined(__AVX512F__)
#pragma GCC target("avx512bf16")
#endif

#include "cann_host/kernels/attention_blocks_kernels.h"
#include "cann_host/kernels/attention_softmax.h"

namespace cann_host::kernels {
namespace {

#if defined(__AVX512F__)
/// The instruction takes denormals for zero, of which exp2_of_difference() gives none.
void softmax(const SoftmaxBlock& a) {
  softmax_rows<BFloat16>(a, [](BFloat16* to, Vec<float> first, Vec<float> second) {
    store_vector(to, _mm512_cvtne2ps_pbh(second, first));
  });
}
constexpr auto converting_pairs = &softmax;
#else
constexpr void (*converting_pairs)(const SoftmaxBlock&) = nullptr;
#endif

}  // namespace

namespace CANN_HOST_ISA {

extern void (*const softmax_by_pairs)(const SoftmaxBlock&) = converting_pairs;

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
