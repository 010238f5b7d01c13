#include "cann_host/kernels/isa.h"

#include <algorithm>
#include <atomic>

namespace cann_host::kernels {
namespace {

Isa detect() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::baseline;
}

std::atomic<Isa>& current() noexcept {
  static std::atomic<Isa> isa{detect()};
  return isa;
}

}  // namespace

Isa active_isa() noexcept { return current().load(std::memory_order_relaxed); }

Isa limit_isa(Isa isa) noexcept {
  const Isa active = std::min(isa, detect());
  current().store(active, std::memory_order_relaxed);
  return active;
}

}  // namespace cann_host::kernels
