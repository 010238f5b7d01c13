#include "opapi/host_functions.h"

namespace cann_host::host {

void SplitWithSize(const at::Tensor& self, at::IntArrayRef splitSize, int64_t dim,
                   std::vector<at::Tensor>& out) {
  const auto parts = self.split_with_sizes(splitSize, dim);
  for (size_t i = 0; i < out.size(); ++i) out[i].copy_(parts[i]);
}

// Clients give an inverse or counts output of no elements if they do not want it.

void Unique(const at::Tensor& self, bool sorted, bool returnInverse, DynamicOutput& valueOut,
            at::Tensor& inverseOut) {
  const auto [values, inverse] = at::_unique(self, sorted, returnInverse);
  valueOut.set(values);
  if (returnInverse) inverseOut.copy_(inverse);
}

void Unique2(const at::Tensor& self, bool sorted, bool, bool returnCounts, DynamicOutput& valueOut,
             at::Tensor& inverseOut, DynamicOutput& countsOut) {
  const bool wants_inverse = inverseOut.numel() > 0;
  const auto [values, inverse, counts] = at::_unique2(self, sorted, wants_inverse, returnCounts);
  valueOut.set(values);
  if (wants_inverse) inverseOut.copy_(inverse);
  if (returnCounts) countsOut.set(counts);
}

void UniqueDim(const at::Tensor& self, bool sorted, bool, int64_t dim, DynamicOutput& valueOut,
               at::Tensor& inverseOut, DynamicOutput& countsOut) {
  const auto [values, inverse, counts] =
      at::unique_dim(self, dim, sorted, /*return_inverse=*/true, /*return_counts=*/true);
  valueOut.set(values);
  if (inverseOut.numel() > 0) inverseOut.copy_(inverse);
  countsOut.set(counts);
}

void UniqueConsecutive(const at::Tensor& self, bool returnInverse, bool returnCounts, int64_t dim,
                       DynamicOutput& valueOut, at::Tensor& inverseOut, DynamicOutput& countsOut) {
  constexpr int64_t kNoDim = 1000;
  const auto along = dim == kNoDim ? std::nullopt : std::optional(dim);
  const auto [values, inverse, counts] = at::unique_consecutive(self, returnInverse, returnCounts, along);
  valueOut.set(values);
  if (returnInverse) inverseOut.copy_(inverse);
  if (returnCounts) countsOut.set(counts);
}

}  // namespace cann_host::host
