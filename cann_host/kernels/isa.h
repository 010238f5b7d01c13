#pragma once

namespace cann_host::kernels {

/// Instruction sets that the kernels are compiled for. `baseline` is what the compiler assumes of any
/// machine: SSE2 on x86-64, NEON on aarch64.
enum class Isa : int { baseline = 0, avx2 = 1, avx512 = 2 };

/// The best set of this machine, unless limit_isa() lowered it.
Isa active_isa() noexcept;

/// Makes all kernels use at most `isa`, for tests and measurements. Returns the set that is active from now
/// on.
Isa limit_isa(Isa isa) noexcept;

}  // namespace cann_host::kernels
