#include "cann_host/kernels/recurrent.h"

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"
#include "cann_host/kernels/recurrent_kernels.h"

namespace cann_host::kernels {
namespace {

const RecurrentKernels& recurrent_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::recurrent_kernels;
    case Isa::avx2:
      return avx2::recurrent_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::recurrent_kernels;
}

template <class Kernel, class Arguments>
void over_rows(Kernel kernel, const Arguments& a) {
  constexpr int64_t numbers_a_thread = 8192;  // of states, from which a second thread pays
  const int64_t grain = std::max<int64_t>(1, numbers_a_thread / std::max<int64_t>(1, a.hidden));
  parallel_for(a.rows, grain, 1, [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
}

}  // namespace

void recurrent_step(const RecurrentStep& a) {
  over_rows(recurrent_kernels().forward[static_cast<int>(a.kind)], a);
}

void recurrent_step_backward(const RecurrentStepBackward& a) {
  over_rows(recurrent_kernels().backward[static_cast<int>(a.kind)], a);
}

}  // namespace cann_host::kernels
