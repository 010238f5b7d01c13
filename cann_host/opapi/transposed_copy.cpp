#include "cann_host/opapi/transposed_copy.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "cann_host/kernels/transpose.h"
#include "cann_host/opapi/fractal_nz.h"

namespace cann_host {
namespace {

struct Dimension {
  int64_t size, from, to;  // the latter are strides
};

/// The dimensions of `to` as they lie in memory, outermost first; those that lie evenly in both tensors as
/// one. Empty if `to` has gaps.
std::vector<Dimension> merged_dimensions(const aclTensor& from, const aclTensor& to) {
  std::vector<Dimension> sorted;
  for (size_t d = 0; d < to.sizes.size(); ++d) {
    if (to.sizes[d] != 1) sorted.push_back({to.sizes[d], from.strides[d], to.strides[d]});
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Dimension& a, const Dimension& b) { return a.to > b.to; });
  std::vector<Dimension> merged;
  int64_t expected = 1;
  for (const Dimension& d : sorted) expected *= d.size;
  for (const Dimension& d : sorted) {
    expected /= d.size;
    if (d.to != expected) return {};
    if (!merged.empty() && merged.back().from == d.from * d.size) {
      merged.back() = {merged.back().size * d.size, d.from, d.to};
    } else {
      merged.push_back(d);
    }
  }
  return merged;
}

constexpr int64_t least_elements = 4096, least_side = 8;
constexpr int64_t most_batch_dimensions = 2;

}  // namespace

bool copy_transposed(const aclTensor& from, const aclTensor& to) {
  const auto bytes = static_cast<int64_t>(element_size(to.dtype));
  if (from.dtype != to.dtype || (bytes != 2 && bytes != 4) || from.sizes != to.sizes ||
      from.storage == to.storage || to.numel() < least_elements) {
    return false;
  }
  const std::vector<Dimension> all = merged_dimensions(from, to);
  if (all.size() < 2 || all.size() > 2 + most_batch_dimensions) return false;
  const Dimension columns = all[all.size() - 2], rows = all.back();  // of the matrices in `from`
  if (columns.from != 1 || rows.from < columns.size || columns.size < least_side || rows.size < least_side)
    return false;
  const Dimension one{1, 0, 0}, inner = all.size() > 2 ? all[all.size() - 3] : one,
                                outer = all.size() > 3 ? all.front() : one;
  constexpr int64_t together = 256;
  const int64_t strips = (columns.size + together - 1) / together;
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / (together * rows.size));
  at::parallel_for(0, outer.size * inner.size * strips, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t matrix = i / strips, first = i % strips * together;
      const int64_t a = matrix / inner.size, b = matrix % inner.size;
      kernels::transpose(
          {.element_bytes = bytes,
           .from = static_cast<const char*>(from.data()) + (a * outer.from + b * inner.from + first) * bytes,
           .from_stride = rows.from,
           .to = static_cast<char*>(to.data()) + (a * outer.to + b * inner.to + first * columns.to) * bytes,
           .to_stride = columns.to,
           .rows = rows.size,
           .columns = std::min(together, columns.size - first)});
    }
  });
  return true;
}

}  // namespace cann_host
