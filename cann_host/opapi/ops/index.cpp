#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// Indices as ATen wants them. Clients send an empty 1-d tensor of self's dtype (or null) for an index that
/// is not given. For a self of an index dtype this is also what a real empty index looks like; the callers
/// say how they tell.
c10::List<std::optional<at::Tensor>> optional_indices(const at::Tensor& self,
                                                      const std::vector<at::Tensor>& indices) {
  const auto is_placeholder = [&](const at::Tensor& index) {
    return !index.defined() ||
           (index.dim() == 1 && index.numel() == 0 && index.scalar_type() == self.scalar_type());
  };
  c10::List<std::optional<at::Tensor>> result;
  result.reserve(indices.size());
  for (const auto& index : indices) {
    result.push_back(is_placeholder(index) ? std::nullopt : std::optional(index));
  }
  return result;
}

bool any_given(const c10::List<std::optional<at::Tensor>>& indices) {
  for (const std::optional<at::Tensor>& index : indices) {
    if (index.has_value()) return true;
  }
  return false;
}

/// `reduce` of aclnnScatter*: 0 replaces, 1 adds, 2 multiplies.
const char* scatter_mode(int64_t reduce) { return reduce == 1 ? "add" : "multiply"; }

/// target[.., index[i], ..] += alpha * source[.., i, ..] along a dimension. Sums of 16 bits are rounded once.
void add_at(at::Tensor& target, int64_t dim, const at::Tensor& index, const at::Tensor& source,
            const at::Scalar& alpha) {
  if (!at::isReducedFloatingType(target.scalar_type())) {
    target.index_add_(dim, index, source, alpha);
    return;
  }
  const auto [places, place_of] = at::_unique(index.to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  // A place that is named once gets one sum, as with the rows that a mixture of experts adds.
  if (places.numel() == index.numel() && alpha.equal(1)) {
    target.index_add_(dim, index, source, alpha);
    return;
  }
  // Only what the index names is widened: few rows of a large table are common.
  const auto sums =
      widened(target.index_select(dim, places)).index_add_(dim, place_of, widened(source), alpha);
  target.index_copy_(dim, places, sums.to(target.scalar_type()));
}

/// The number of the only index, if there is just one and it is of integers; else -1.
int64_t only_index(const c10::List<std::optional<at::Tensor>>& indices) {
  int64_t found = -1;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!index.has_value()) continue;
    const bool is_integer = index->scalar_type() == at::kLong || index->scalar_type() == at::kInt;
    if (found >= 0 || !is_integer) return -1;
    found = static_cast<int64_t>(i);
  }
  return found;
}

/// index_put_ with one index, which adds.
void add_along(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& values) {
  at::DimVector sizes(self.sizes().slice(0, dim));
  sizes.append(index.sizes().begin(), index.sizes().end());
  sizes.append(self.sizes().begin() + dim + 1, self.sizes().end());
  TORCH_CHECK(at::is_expandable_to(values.sizes(), sizes), "shape mismatch: value tensor of shape ",
              values.sizes(), " cannot be broadcast to indexing result of shape ", sizes);
  if (index.numel() == 0) return;
  const int64_t size = self.size(dim);
  const auto least = index.min().item<int64_t>(), most = index.max().item<int64_t>();
  TORCH_CHECK_INDEX(-size <= least && most < size, "index ", least < -size ? least : most,
                    " is out of bounds for dimension ", dim, " with size ", size);
  const at::Tensor places = at::where(index.lt(0), index + size, index).flatten();
  at::DimVector rows(self.sizes());
  rows[dim] = index.numel();
  add_at(self, dim, places, values.expand(sizes).reshape(rows), 1);
}

}  // namespace

void Index(const at::Tensor& self, const std::vector<at::Tensor>& indices, at::Tensor& out) {
  if (out.numel() == 0)
    return;  // a real empty index leaves nothing to write; so from here on, empty means not given
  at::index_out(out, self, optional_indices(self, indices));
}

void IndexPutImpl(at::Tensor& selfRef, const std::vector<at::Tensor>& indices, const at::Tensor& values,
                  bool accumulate, bool unsafe) {
  const auto given = optional_indices(selfRef, indices);
  if (!any_given(given)) return;  // an index_put has an index: it is a real, empty one
  if (!accumulate || !at::isReducedFloatingType(selfRef.scalar_type())) {
    at::_index_put_impl_(selfRef, given, values, accumulate, unsafe);
  } else if (const int64_t dim = only_index(given); dim >= 0) {
    add_along(selfRef, dim, *given.get(dim), values);
  } else {  // sums of 16 bits are rounded once
    auto sums = widened(selfRef);
    selfRef.copy_(at::_index_put_impl_(sums, given, widened(values), accumulate, unsafe));
  }
}

void IndexAdd(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
              const at::Scalar& alpha, at::Tensor& out) {
  const bool in_place = out.data_ptr() == self.data_ptr() && out.strides() == self.strides();
  if (!in_place) out.copy_(self);
  add_at(out, dim, index, source, alpha);
}

void EmbeddingDenseBackward(const at::Tensor& grad, const at::Tensor& indices, int64_t numWeights,
                            int64_t paddingIdx, bool scaleGradByFreq, at::Tensor& out) {
  if (!at::isReducedFloatingType(grad.scalar_type())) {
    const Placement placement({out}, grad, indices);
    assign(out, at::embedding_dense_backward(grad, indices, numWeights, paddingIdx, scaleGradByFreq));
    return;
  }
  // Sums of 16 bits are rounded once. Only the rows that were read have a gradient.
  const auto [rows, row_of] = at::_unique(indices.to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  const auto padding = rows.eq(paddingIdx).nonzero();
  const int64_t padding_row = padding.numel() == 0 ? -1 : padding.item<int64_t>();
  const auto sums =
      at::embedding_dense_backward(widened(grad), row_of, rows.numel(), padding_row, scaleGradByFreq);
  out.zero_().index_copy_(0, rows, sums.to(out.scalar_type()));
}

void InplacePut(at::Tensor& selfRef, const at::Tensor& index, const at::Tensor& source, bool accumulate) {
  const at::Tensor positions = index.to(at::kLong);
  if (accumulate && at::isReducedFloatingType(selfRef.scalar_type())) {
    selfRef.copy_(widened(selfRef).put_(positions, widened(source), accumulate));
  } else {
    selfRef.put_(positions, source, accumulate);
  }
}

void Scatter(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
             int64_t reduce, at::Tensor& out) {
  const at::Tensor positions = index.to(at::kLong);
  if (reduce == 0) {
    at::scatter_out(out, self, dim, positions, src);
  } else {
    at::scatter_out(out, self, dim, positions, src, scatter_mode(reduce));
  }
}

void ScatterValue(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value,
                  int64_t reduce, at::Tensor& out) {
  const at::Tensor positions = index.to(at::kLong);
  if (reduce == 0) {
    at::scatter_out(out, self, dim, positions, value);
  } else {
    at::scatter_out(out, self, dim, positions, value, scatter_mode(reduce));
  }
}

void ScatterReduce(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                   int64_t reduction, bool includeSelf, at::Tensor& out) {
  constexpr std::array<const char*, 5> kNames = {"sum", "prod", "amax", "amin", "mean"};
  at::scatter_reduce_out(out, self, dim, index.to(at::kLong), src, kNames.at(reduction - 1), includeSelf);
}

// Row b of updates replaces the rows of data that start at indices[b] along axis; with indices of two
// columns, (batch, start) are read from there.
void InplaceScatterUpdate(at::Tensor& data, const at::Tensor& indices, const at::Tensor& updates,
                          int64_t axis) {
  const int64_t dim = at::maybe_wrap_dim(axis, data.dim());
  const at::Tensor positions = indices.to(at::kLong);
  const bool names_batch = positions.dim() == 2;
  for (int64_t row = 0; row < updates.size(0); ++row) {
    const int64_t batch = names_batch ? positions[row][0].item<int64_t>() : row;
    const int64_t start = (names_batch ? positions[row][1] : positions[row]).item<int64_t>();
    data[batch].narrow(dim - 1, start, updates.size(dim)).copy_(updates[row]);
  }
}

void ScatterNdUpdate(at::Tensor& varRef, const at::Tensor& indices, const at::Tensor& updates) {
  c10::List<std::optional<at::Tensor>> columns;
  for (const auto& column : indices.unbind(-1)) columns.push_back(column);
  varRef.index_put_(columns, updates);
}

void Embedding(const at::Tensor& weight, const at::Tensor& indices, at::Tensor& out) {
  const at::Tensor rows = indices.reshape({-1});
  if (out.is_contiguous()) {
    at::Tensor flat = out.view({rows.numel(), weight.size(1)});
    at::index_select_out(flat, weight, 0, rows);
  } else {
    out.copy_(at::index_select(weight, 0, rows).view(out.sizes()));
  }
}

void OneHot(const at::Tensor& self, int64_t numClasses, const at::Tensor& onValue, const at::Tensor& offValue,
            int64_t axis, at::Tensor& out) {
  const int64_t dim = at::maybe_wrap_dim(axis, out.dim());
  std::vector<int64_t> sizes(out.dim(), 1);
  sizes[dim] = numClasses;
  const at::Tensor classes = at::arange(numClasses, self.options().dtype(at::kLong)).view(sizes);
  const at::Tensor hit = self.unsqueeze(dim) == classes;
  out.copy_(at::where(hit, onValue.reshape({}), offValue.reshape({})));
}

void RepeatInterleaveGrad(const at::Tensor& yGrad, const at::Tensor& repeats, int64_t axis, at::Tensor& out) {
  const auto source = at::repeat_interleave(repeats.to(at::kLong));
  auto sum = at::zeros(out.sizes(), widened(out).options());
  out.copy_(sum.index_add_(axis, source, widened(yGrad)));
}

namespace {

/// The bag of each of `count` indices.
at::Tensor bags_of(const at::Tensor& offsets, int64_t bags, int64_t count) {
  const at::Tensor starts = offsets.to(at::kLong).contiguous();
  at::Tensor result = at::zeros({count}, at::kLong);
  const int64_t* start = starts.const_data_ptr<int64_t>();
  int64_t* bag_of = result.mutable_data_ptr<int64_t>();
  for (int64_t bag = 0; bag < bags; ++bag) {
    const int64_t end = bag + 1 < bags ? std::min(start[bag + 1], count) : count;
    for (int64_t i = std::max<int64_t>(start[bag], 0); i < end; ++i) bag_of[i] = bag;
  }
  return result;
}

}  // namespace

void EmbeddingBag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                  bool scaleGradByFreq, int64_t mode, bool sparse,
                  const std::optional<at::Tensor>& perSampleWeights, bool includeLastOffset,
                  int64_t paddingIdx, at::Tensor& output, at::Tensor& offset2bag, at::Tensor& bagSize,
                  at::Tensor& maxIndices) {
  const auto weights =
      perSampleWeights.has_value() ? std::optional(widened(*perSampleWeights)) : std::nullopt;
  auto table = weight, row_of = indices.to(at::kLong), rows = at::Tensor();
  if (at::isReducedFloatingType(
          weight.scalar_type())) {  // sums are rounded once; only rows that are read widen
    std::tie(rows, row_of) = at::_unique(row_of, /*sorted=*/true, /*return_inverse=*/true);
    table = widened(weight.index_select(0, rows));
    const auto padding = rows.eq(paddingIdx).nonzero();
    paddingIdx = padding.numel() == 0 ? -1 : padding.item<int64_t>();
  }
  const auto [sums, bags, counts, largest] =
      at::_embedding_bag(table, row_of, offsets.to(at::kLong), scaleGradByFreq, mode, sparse, weights,
                         includeLastOffset, paddingIdx);
  output.copy_(sums);
  // ATen leaves out what its own gradient does not need, and the client says by the shape what it wants.
  if (offset2bag.sizes() == indices.sizes()) {
    const bool known = bags.sizes() == indices.sizes();
    offset2bag.copy_(known ? bags : bags_of(offsets, sums.size(0), indices.numel()));
  }
  const int64_t known_sizes = std::min(bagSize.numel(), counts.numel());
  bagSize.zero_().narrow(0, 0, known_sizes).copy_(counts.narrow(0, 0, known_sizes));
  if (maxIndices.sizes() != largest.sizes()) return;
  maxIndices.copy_(rows.defined() && mode == 2 ? rows.index({largest}) : largest);
}

}  // namespace cann_host::host
