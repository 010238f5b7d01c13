#include "cann_host/opapi/groups.h"

namespace cann_host {

std::vector<Group> groups_of(const at::Tensor& list, int64_t type) {
  TORCH_CHECK(0 <= type && type <= 2, "groupListType is ", type, "; known: 0, 1, 2");
  const auto values = list.to(at::kLong).contiguous();
  const auto* value = values.const_data_ptr<int64_t>();
  std::vector<Group> groups;
  int64_t begin = 0;
  for (int64_t i = 0; i < values.size(0); ++i) {
    const int64_t number = type == 2 ? value[2 * i] : i;
    const int64_t end = type == 0 ? value[i] : begin + value[type == 2 ? 2 * i + 1 : i];
    TORCH_CHECK(begin <= end, "groupList: group ", i, " starts at ", begin, " and ends at ", end);
    groups.push_back({number, begin, end});
    begin = end;
  }
  return groups;
}

at::Tensor group_of_rows(const at::Tensor& list, int64_t type, int64_t rows) {
  TORCH_CHECK(type == 0 || type == 1, "groupListType is ", type, "; known: 0 (ends), 1 (lengths)");
  const auto ends = type == 0 ? list.to(at::kLong).contiguous() : list.to(at::kLong).cumsum(0);
  return at::searchsorted(ends, at::arange(rows), /*out_int32=*/false, /*right=*/true);
}

}  // namespace cann_host
