#include "cann_host/kernels/attention.h"

#include <vector>

#include "cann_host/kernels/attention_kernels.h"
#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"

namespace cann_host::kernels {
namespace {

const ByType<DecodeKernel>& decode_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::decode_kernels;
    case Isa::avx2:
      return avx2::decode_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::decode_kernels;
}

}  // namespace

void decode_attention(const DecodeAttention& a) {
  const auto kernel = decode_kernels()[a.type];
  const int64_t rows = a.heads / a.key_heads * a.queries;
  constexpr int64_t elements_a_thread = 1 << 15;  // of keys and values, from which a second thread pays
  const int64_t elements = std::max<int64_t>(1, a.keys * (a.head_size + a.value_size));
  const int64_t grain = std::max<int64_t>(1, elements_a_thread / elements);
  parallel_for(a.batch * a.key_heads, grain, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(attention_scratch(rows, a.head_size, a.value_size));
    kernel(a, begin, end, scratch.data());
  });
}

}  // namespace cann_host::kernels
