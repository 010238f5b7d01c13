// Groups of rows, as lists of ends or lengths name them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace cann_host {

/// A range of rows (or, for group type 2 of GroupedMatmul, of the inner dimension) and the weight that it
/// meets.
struct Group {
  int64_t number, begin, end;

  int64_t length() const { return end - begin; }
};

/// groupListType 0: where each group ends; 1: how long it is; 2: [number, length] of those that are not
/// empty.
std::vector<Group> groups_of(const at::Tensor& list, int64_t type);

/// The number of the group of each of `rows` rows; a row of no group has that of the last one plus one.
at::Tensor group_of_rows(const at::Tensor& list, int64_t type, int64_t rows);

}  // namespace cann_host
