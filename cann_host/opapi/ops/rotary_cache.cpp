// Rotary embedding by a cache of cosines and sines.
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// Which kind of position each column of the cosines belongs to.
at::Tensor kind_of_columns(int64_t kinds, int64_t columns, at::IntArrayRef sections, int64_t mode) {
  TORCH_CHECK(sections.size() == static_cast<size_t>(kinds), "mropeSection has ", sections.size(),
              " numbers for ", kinds, " kinds of positions");
  const auto kind = at::zeros({columns}, at::kLong);
  if (mode == 1) {
    TORCH_CHECK(kinds == 3 && sections[1] == sections[2] && 3 * sections[1] <= columns,
                "in turn there must be three kinds, the last two with as many columns; mropeSection is ",
                sections, " for ", columns, " columns");
    for (int64_t i : {1, 2}) kind.slice(0, i, 3 * sections[i], 3).fill_(i);
    return kind;
  }
  int64_t begin = 0;
  for (int64_t i = 0; i < kinds; begin += sections[i++]) {
    TORCH_CHECK(0 <= sections[i] && begin + sections[i] <= columns, "mropeSection is ", sections, " for ",
                columns, " columns");
    kind.narrow(0, begin, sections[i]).fill_(i);
  }
  TORCH_CHECK(begin == columns, "mropeSection is ", sections, " for ", columns, " columns");
  return kind;
}

/// Cosines and sines of each token: [tokens, 2, columns].
at::Tensor angles_of(const at::Tensor& positions, const at::Tensor& cache, at::IntArrayRef sections,
                     int64_t mode) {
  TORCH_CHECK(positions.dim() == 1 || positions.dim() == 2, "positions have ", positions.dim(),
              " dimensions, not 1 or 2");
  TORCH_CHECK(cache.dim() == 2 && cache.size(1) % 2 == 0, "cosSinCache must be [positions, even]");
  const int64_t columns = cache.size(1) / 2, tokens = positions.size(-1);
  const auto rows = cache.to(at::kFloat).index_select(0, positions.reshape({-1}).to(at::kLong));
  if (positions.dim() == 1) return rows.view({tokens, 2, columns});
  const int64_t kinds = positions.size(0);
  const auto kind = kind_of_columns(kinds, columns, sections, mode);
  const auto index = kind.view({1, 1, 1, columns}).expand({1, tokens, 2, columns});
  return rows.view({kinds, tokens, 2, columns}).gather(0, index).squeeze(0);
}

void rotate(const at::Tensor& x, const at::Tensor& angles, int64_t head_size, bool halves, at::Tensor& out) {
  TORCH_CHECK(x.dim() == 2 && x.size(0) == angles.size(0) && x.size(1) % head_size == 0,
              "query and key must be [tokens, heads * headSize], not ", x.sizes());
  const int64_t columns = angles.size(2);
  TORCH_CHECK(2 * columns <= head_size, "a head has ", head_size, " elements, the cache ", 2 * columns);
  const auto heads = x.to(at::kFloat).reshape({x.size(0), x.size(1) / head_size, head_size});
  const auto turned = heads.narrow(2, 0, 2 * columns);
  const auto first = halves ? turned.narrow(2, 0, columns) : turned.slice(2, 0, std::nullopt, 2),
             second = halves ? turned.narrow(2, columns, columns) : turned.slice(2, 1, std::nullopt, 2);
  const auto cos = angles.select(1, 0).unsqueeze(1), sin = angles.select(1, 1).unsqueeze(1);
  const auto a = first * cos - second * sin, b = second * cos + first * sin;
  const auto result = halves ? at::cat({a, b}, 2) : at::stack({a, b}, 3).flatten(2);
  const auto rest = heads.narrow(2, 2 * columns, head_size - 2 * columns);
  out.copy_(at::cat({result, rest}, 2).view(x.sizes()));
}

}  // namespace

void RopeWithSinCosCacheV2(const at::Tensor& positions, const at::Tensor& queryIn, const at::Tensor& keyIn,
                           const at::Tensor& cosSinCache, at::IntArrayRef mropeSection, int64_t headSize,
                           bool isNeoxStyle, int64_t cacheMode, at::Tensor& queryOut, at::Tensor& keyOut) {
  const auto angles = angles_of(positions, cosSinCache, mropeSection, cacheMode);
  rotate(queryIn, angles, headSize, isNeoxStyle, queryOut);
  rotate(keyIn, angles, headSize, isNeoxStyle, keyOut);
}

}  // namespace cann_host::host
