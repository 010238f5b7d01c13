// The direct route of attention with few queries, as a step of decoding has it.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cann_host/kernels/attention.h"
#include "cann_host/kernels/fused.h"
#include "cann_host/opapi/fast.h"
#include "cann_host/opapi/fast_types.h"

namespace cann_host::fast {
namespace {

constexpr size_t rank = 4;     // batch, heads, sequence, head size
constexpr int64_t copies = 8;  // of each statistic of the softmax

/// Four dimensions, something in each, and neighbours in the last one.
bool has_heads(const aclTensor& t, aclDataType dtype) {
  return t.dtype == dtype && t.sizes.size() == rank && t.numel() > 0 &&
         (t.strides[3] == 1 || t.sizes[3] == 1);
}

bool have_shapes_of_one_attention(const aclTensor& q, const aclTensor& k, const aclTensor& v,
                                  const aclTensor& out) {
  const auto &a = q.sizes, &b = k.sizes, &c = v.sizes, &d = out.sizes;
  return a[0] == b[0] && a[0] == c[0] && a[0] == d[0] && b[1] == c[1] && a[1] % b[1] == 0 && a[1] == d[1] &&
         b[2] == c[2] && a[2] == d[2] && a[3] == b[3] && c[3] == d[3];
}

bool is_statistic(const aclTensor* t, int64_t rows) {
  return t == nullptr || (t->dtype == ACL_FLOAT && t->is_contiguous() && t->numel() == rows * copies);
}

template <class Value>
void set_statistic(const aclTensor* t, int64_t rows, const Value& value) {
  if (t == nullptr) return;
  auto* to = static_cast<float*>(t->data());
  for (int64_t row = 0; row < rows; ++row) std::fill_n(to + row * copies, copies, value(row));
}

void set_strides(int64_t (&target)[3], const aclTensor& t) { std::copy_n(t.strides.begin(), 3, target); }

}  // namespace

bool attention_of_few_queries(const aclTensor* query, const aclTensor* key, const aclTensor* value,
                              bool is_plain, double scale, const std::string& layout, int64_t sparse_mode,
                              const aclTensor* maximum, const aclTensor* sum, aclTensor* out) {
  const auto type = kernel_type(query->dtype);
  if (!is_plain || !type || !kernels::is_fused_type(*type) || layout != "BNSD" ||
      !has_heads(*query, query->dtype) || !has_heads(*key, query->dtype) ||
      !has_heads(*value, query->dtype) || !has_heads(*out, query->dtype) ||
      !have_shapes_of_one_attention(*query, *key, *value, *out)) {
    return false;
  }
  const int64_t heads = query->sizes[1], queries = query->sizes[2], keys = key->sizes[2];
  const int64_t rows = query->sizes[0] * heads * queries;
  const bool sees_all = sparse_mode == 0, is_causal = sparse_mode == 2 && queries == keys;
  if ((!sees_all && !is_causal) || queries > kernels::most_decode_queries ||
      queries * heads / key->sizes[1] > kernels::most_decode_rows || !is_statistic(maximum, rows) ||
      !is_statistic(sum, rows)) {
    return false;
  }
  std::vector<float> log_sum_exp(rows), maxima(rows);
  kernels::DecodeAttention call{};
  call.type = *type;
  call.query = query->data();
  call.key = key->data();
  call.value = value->data();
  call.out = out->data();
  call.log_sum_exp = log_sum_exp.data();
  call.maximum = maxima.data();
  set_strides(call.query_strides, *query);
  set_strides(call.key_strides, *key);
  set_strides(call.value_strides, *value);
  set_strides(call.out_strides, *out);
  call.batch = query->sizes[0];
  call.heads = heads;
  call.key_heads = key->sizes[1];
  call.queries = queries;
  call.keys = keys;
  call.head_size = query->sizes[3];
  call.value_size = value->sizes[3];
  call.scale = static_cast<float>(scale);
  call.causal = is_causal;
  kernels::decode_attention(call);
  set_statistic(maximum, rows, [&](int64_t row) { return maxima[row]; });
  set_statistic(sum, rows, [&](int64_t row) {
    return std::isinf(maxima[row]) ? 0 : std::exp(log_sum_exp[row] - maxima[row]);
  });
  return true;
}

}  // namespace cann_host::fast
