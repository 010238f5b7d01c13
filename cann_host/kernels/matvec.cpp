#include "cann_host/kernels/matvec.h"

#include <vector>

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/matvec_kernels.h"
#include "cann_host/kernels/parallel.h"

namespace cann_host::kernels {
namespace {

const MatVecKernels& matvec_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::matvec_kernels;
    case Isa::avx2:
      return avx2::matvec_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::matvec_kernels;
}

}  // namespace

bool matvec(const MatVec& a) {
  const auto& kernels = matvec_kernels();
  const bool quantized = a.weight_type == DataType::int8;
  if (!kernels.widen[a.type] || (!quantized && a.weight_type != a.type)) return false;
  const auto kernel = quantized ? kernels.int8[a.type] : kernels.same[a.type];
  std::vector<float> wide(a.rows * a.inner + a.rows);
  kernels.widen[a.type](a, wide.data());
  constexpr int64_t elements_a_thread = 1 << 16;  // of the weight, from which a second thread pays
  const int64_t grain = std::max<int64_t>(16, elements_a_thread / std::max<int64_t>(1, a.inner));
  parallel_for(a.columns, grain, 16, [&](int64_t begin, int64_t end) { kernel(a, wide.data(), begin, end); });
  return true;
}

}  // namespace cann_host::kernels
