#include "cann_host/kernels/matmul.h"

#include <vector>

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/matmul_kernels.h"

namespace cann_host::kernels {
namespace {

const SmallMatmulKernels& matmul_kernels() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return avx512::matmul_kernels;
    case Isa::avx2:
      return avx2::matmul_kernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::matmul_kernels;
}

}  // namespace

bool small_matmul(const SmallMatmul& m) {
  const auto kernel = matmul_kernels().by_type[m.type];
  if (!kernel || (m.b_inner != 1 && m.b_column != 1)) return false;
  // On the calling thread: such products take less than a second thread needs to begin.
  const bool in_place = m.type == DataType::float32 && (m.b_column == 1 || m.a_inner == 1);
  std::vector<float> scratch(in_place ? 0 : matmul_row_block * m.inner);
  kernel(m, scratch.data());
  return true;
}

}  // namespace cann_host::kernels
