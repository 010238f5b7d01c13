#include "cann_host/kernels/transpose.h"

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/transpose_kernels.h"

namespace cann_host::kernels {

void transpose(const Transpose& a) {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::transpose_kernel(a);
    case Isa::avx2:
      return avx2::transpose_kernel(a);
    case Isa::baseline:
      break;
  }
#endif
  baseline::transpose_kernel(a);
}

}  // namespace cann_host::kernels
