#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace cann_host::kernels {

/// Calls body(begin, end) for pieces of [0, n) that cover it. Inner bounds are multiples of `align`. A piece
/// has at least `grain` elements, so small work stays on the calling thread and pays for no OpenMP region
/// (over 1 us). The number of threads is OpenMP's: OMP_NUM_THREADS, torch.set_num_threads.
template <class Body>
void parallel_for(int64_t n, int64_t grain, int64_t align, const Body& body) {
  if (n <= 0) return;
  if (n < 2 * grain) return body(int64_t{0}, n);
  const int64_t threads = omp_in_parallel() ? 1 : std::min<int64_t>(omp_get_max_threads(), n / grain);
  if (threads <= 1) return body(int64_t{0}, n);
  const int64_t piece = ((n + threads - 1) / threads + align - 1) / align * align;
#pragma omp parallel num_threads(static_cast<int>(threads))
  for (int64_t i = omp_get_thread_num(); i * piece < n; i += omp_get_num_threads()) {
    body(i * piece, std::min(n, (i + 1) * piece));
  }
}

}  // namespace cann_host::kernels
