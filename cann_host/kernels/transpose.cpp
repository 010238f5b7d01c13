#include "cann_host/kernels/transpose.h"

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"
#include "cann_host/kernels/transpose_kernels.h"

namespace cann_host::kernels {
namespace {

TransposeKernel transpose_kernel() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::transpose_kernel;
    case Isa::avx2:
      return avx2::transpose_kernel;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::transpose_kernel;
}

}  // namespace

void transpose(const Transpose& a) {
  constexpr int64_t elements_a_thread = 1 << 16;
  const int64_t grain = std::max<int64_t>(64, elements_a_thread / std::max<int64_t>(1, a.rows));
  parallel_for(a.columns, grain, 64, [&](int64_t begin, int64_t end) {
    Transpose some = a;
    some.from = static_cast<const char*>(a.from) + begin * a.element_bytes;
    some.to = static_cast<char*>(a.to) + begin * a.to_stride * a.element_bytes;
    some.columns = end - begin;
    transpose_kernel()(some);
  });
}

}  // namespace cann_host::kernels
