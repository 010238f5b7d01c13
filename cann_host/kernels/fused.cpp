#include "cann_host/kernels/fused.h"

#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include "cann_host/kernels/fused_kernels.h"
#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/parallel.h"

namespace cann_host::kernels {
namespace {

constexpr int64_t grain = 16384;  // elements a thread from which a second thread pays

struct Tables {
  const NormKernels& norm;
  const GatedKernels& gated;
  const RowKernels& row;
};

Tables tables() noexcept {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::avx512:
      return {avx512::norm_kernels, avx512::gated_kernels, avx512::row_kernels};
    case Isa::avx2:
      return {avx2::norm_kernels, avx2::gated_kernels, avx2::row_kernels};
    case Isa::baseline:
      break;
  }
#endif
  return {baseline::norm_kernels, baseline::gated_kernels, baseline::row_kernels};
}

/// Runs the kernel over all rows, with `scratch_floats` floats for each piece.
template <class Arguments>
void over_rows(RowKernel<Arguments> kernel, const Arguments& a, int64_t rows, int64_t columns,
               int64_t scratch_floats = 0) {
  const int64_t grain_rows = std::max<int64_t>(1, grain / std::max<int64_t>(1, columns));
  parallel_for(rows, grain_rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(scratch_floats);
    kernel(a, begin, end, scratch.data());
  });
}

}  // namespace

void norm(const Norm& a) {
  const auto& kernels = tables().norm;
  const auto& by_type = a.parameter_type == a.type ? kernels.same : kernels.wide;
  over_rows(by_type[a.type], a, a.rows, a.columns, a.columns);
}

void norm_backward(const NormBackward& a) {
  const auto& kernels = tables().norm;
  const auto kernel = (a.parameter_type == a.type ? kernels.backward_same : kernels.backward_wide)[a.type];
  const int64_t n = a.columns;
  // Each piece sums over its own rows; the sums of all pieces are added in order, so that the result does not
  // depend on which thread was faster.
  std::mutex mutex;
  std::map<int64_t, std::vector<float>> pieces;
  parallel_for(a.rows, std::max<int64_t>(1, grain / n), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(4 * n);
    kernel(a, begin, end, scratch.data());
    const std::lock_guard lock(mutex);
    pieces.emplace(begin, std::move(scratch));
  });
  for (const auto& [result, offset] : {std::pair(a.dgamma, 2 * n), std::pair(a.dbeta, 3 * n)}) {
    if (result == nullptr) continue;
    std::fill_n(result, n, 0.0f);
    for (const auto& [begin, sums] : pieces) {
      for (int64_t i = 0; i < n; ++i) result[i] += sums[offset + i];
    }
  }
}

void gated(const Gated& a) {
  over_rows(tables().gated.forward[static_cast<int>(a.gate)][a.type], a, a.rows, a.columns);
}

void gated_backward(const GatedBackward& a) {
  over_rows(tables().gated.backward[static_cast<int>(a.gate)][a.type], a, a.rows, a.columns);
}

void rotary(const Rotary& a) {
  over_rows(tables().row.rotary[a.type], a, a.sizes[0] * a.sizes[1] * a.sizes[2], a.columns);
}

void masked_softmax(const MaskedSoftmax& a) {
  over_rows(tables().row.masked_softmax[a.type], a, a.sizes[0] * a.sizes[1] * a.sizes[2], a.columns,
            a.columns);
}

void fold_rows(const RowFold& a) {
  over_rows(tables().row.fold[static_cast<int>(a.fold)][a.type], a, a.rows, a.columns);
}

void cross_entropy(const CrossEntropy& a) {
  over_rows(tables().row.cross_entropy[a.type], a, a.rows, a.columns);
}

void adamw(const AdamW& a) {
  const auto& kernels = tables().row;
  const auto kernel = (a.gradient_type == a.type ? kernels.adamw_same : kernels.adamw_wide)[a.type];
  AdamWStep step{a};
  step.kept = static_cast<float>(1 - a.learning_rate * a.weight_decay);
  step.step_size = static_cast<float>(a.learning_rate / (1 - std::pow(a.beta1, a.step)));
  step.root_factor = static_cast<float>(1 / std::sqrt(1 - std::pow(a.beta2, a.step)));
  step.share1 = static_cast<float>(1 - a.beta1);
  step.share2 = static_cast<float>(1 - a.beta2);
  step.kept2 = static_cast<float>(a.beta2);
  step.epsilon_in_float = static_cast<float>(a.epsilon);
  parallel_for(a.count, grain, 64, [&](int64_t begin, int64_t end) { kernel(step, begin, end, nullptr); });
}

}  // namespace cann_host::kernels
