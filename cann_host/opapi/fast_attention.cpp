// The direct route of attention with few queries, as a step of decoding has it.

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

#include "cann_host/kernels/attention.h"
#include "cann_host/kernels/fused.h"
#include "cann_host/opapi/fast.h"
#include "cann_host/opapi/fast_types.h"

namespace cann_host::fast {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int64_t copies = 8;  // of each statistic of the softmax

/// A tensor as [batch, heads, sequence, head size].
struct Heads {
  void* data;
  int64_t sizes[4], strides[4];

  bool is_empty() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3] == 0; }
  bool has_neighbours() const { return strides[3] == 1 || sizes[3] == 1; }
};

/// Nothing for other layouts, and for tensors that do not have this one.
std::optional<Heads> by_heads(const aclTensor& t, const std::string& layout, int64_t heads) {
  const auto &n = t.sizes, &s = t.strides;
  const size_t rank = layout == "BSH" ? 3 : 4;
  if (n.size() != rank || heads <= 0) return {};
  if (layout == "BNSD") return Heads{t.data(), {n[0], n[1], n[2], n[3]}, {s[0], s[1], s[2], s[3]}};
  if (layout == "BSND") return Heads{t.data(), {n[0], n[2], n[1], n[3]}, {s[0], s[2], s[1], s[3]}};
  if (layout != "BSH" || n[2] % heads != 0) return {};
  const int64_t size = n[2] / heads;
  return Heads{t.data(), {n[0], heads, n[1], size}, {s[0], size * s[2], s[1], s[2]}};
}

bool are_of_one_attention(const Heads& q, const Heads& k, const Heads& v, const Heads& out) {
  const auto &a = q.sizes, &b = k.sizes, &c = v.sizes, &d = out.sizes;
  for (const auto* heads : {&q, &k, &v, &out}) {
    if (heads->is_empty() || !heads->has_neighbours()) return false;
  }
  return b[0] == c[0] && a[0] == d[0] && b[1] == c[1] && a[1] % b[1] == 0 && a[1] == d[1] && b[2] == c[2] &&
         a[2] == d[2] && a[3] == b[3] && c[3] == d[3];
}

/// The call with all keys of each sequence, which lie in one piece. Nothing if another kernel should have it.
std::optional<kernels::DecodeAttention> decode_call(aclDataType dtype, const Heads& q, const Heads& k,
                                                    const Heads& v, const Heads& out, double scale) {
  const auto type = kernel_type(dtype);
  const int64_t queries = q.sizes[2];
  if (!type || !kernels::is_fused_type(*type) || !are_of_one_attention(q, k, v, out) ||
      queries > kernels::most_decode_queries ||
      queries * q.sizes[1] / k.sizes[1] > kernels::most_decode_rows) {
    return {};
  }
  kernels::DecodeAttention call{};
  call.type = *type;
  call.query = q.data;
  call.key = k.data;
  call.value = v.data;
  call.out = out.data;
  std::copy_n(q.strides, 3, call.query_strides);
  std::copy_n(k.strides, 3, call.key_strides);
  std::copy_n(v.strides, 3, call.value_strides);
  std::copy_n(out.strides, 3, call.out_strides);
  call.batch = q.sizes[0];
  call.heads = q.sizes[1];
  call.key_heads = k.sizes[1];
  call.queries = queries;
  call.keys = k.sizes[2];
  call.head_size = q.sizes[3];
  call.value_size = v.sizes[3];
  call.scale = static_cast<float>(scale);
  return call;
}

bool are_of_type(aclDataType dtype, std::initializer_list<const aclTensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const auto* t) { return t->dtype == dtype; });
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

/// Pages of keys that a table lists for each sequence.
bool set_pages(kernels::DecodeAttention& call, const aclTensor& table, int64_t block_size) {
  if (table.dtype != ACL_INT32 || !table.is_contiguous() || table.sizes.size() != 2 ||
      table.sizes[0] != call.batch || block_size <= 0 || block_size != call.keys) {
    return false;
  }
  call.block_table = static_cast<const int32_t*>(table.data());
  call.blocks_per_sequence = table.sizes[1];
  call.block_size = block_size;
  call.keys = table.sizes[1] * block_size;
  return true;
}

/// How many keys each sequence has, or all of them.
bool set_lengths(kernels::DecodeAttention& call, const aclIntArray* lengths, std::vector<int64_t>& memory) {
  if (lengths == nullptr || lengths->values.empty()) return true;
  memory = lengths->values;
  if (memory.size() == 1) memory.resize(call.batch, memory[0]);
  call.key_lengths = memory.data();
  return static_cast<int64_t>(memory.size()) == call.batch &&
         std::all_of(memory.begin(), memory.end(), [&](int64_t n) { return n >= 0 && n <= call.keys; });
}

}  // namespace

bool attention_of_few_queries(const aclTensor* query, const aclTensor* key, const aclTensor* value,
                              bool is_plain, double scale, const std::string& layout, int64_t sparse_mode,
                              const aclTensor* maximum, const aclTensor* sum, aclTensor* out) {
  if (!is_plain || layout != "BNSD" || !are_of_type(query->dtype, {key, value, out})) return false;
  constexpr int64_t any = 1;  // in this layout the heads are a dimension
  const auto q = by_heads(*query, layout, any), k = by_heads(*key, layout, any),
             v = by_heads(*value, layout, any), to = by_heads(*out, layout, any);
  if (!q || !k || !v || !to || q->sizes[0] != k->sizes[0]) return false;
  auto call = decode_call(query->dtype, *q, *k, *v, *to, scale);
  if (!call) return false;
  const int64_t rows = call->batch * call->heads * call->queries;
  const bool sees_all = sparse_mode == 0, is_causal = sparse_mode == 2 && call->queries == call->keys;
  if ((!sees_all && !is_causal) || !is_statistic(maximum, rows) || !is_statistic(sum, rows)) return false;
  std::vector<float> log_sum_exp(rows), maxima(rows);
  call->log_sum_exp = log_sum_exp.data();
  call->maximum = maxima.data();
  call->causal = is_causal;
  kernels::decode_attention(*call);
  set_statistic(maximum, rows, [&](int64_t row) { return maxima[row]; });
  set_statistic(sum, rows, [&](int64_t row) {
    return maxima[row] == -infinity ? 0 : std::exp(log_sum_exp[row] - maxima[row]);
  });
  return true;
}

bool inference_of_few_queries(const aclTensor* query, const aclTensorList* keys, const aclTensorList* values,
                              bool is_plain, const aclIntArray* key_lengths, const aclTensor* block_table,
                              int64_t heads, double scale, const std::string& layout, int64_t key_heads,
                              int64_t sparse_mode, int64_t block_size, aclTensor* log_sum_exp,
                              aclTensor* out) {
  if (!is_plain || keys->values.size() != 1 || values->values.size() != 1) return false;
  const aclTensor *key = keys->values[0].get(), *value = values->values[0].get();
  if (!are_of_type(query->dtype, {key, value, out})) return false;
  if (key_heads == 0) key_heads = heads;
  // Pages are [pages, N, page size, D] or [pages, page size, H], whatever the layout of queries.
  const bool is_paged = block_table != nullptr;
  const std::string of_keys = !is_paged ? layout : key->sizes.size() == 3 ? "BSH" : "BNSD";
  const auto q = by_heads(*query, layout, heads), k = by_heads(*key, of_keys, key_heads),
             v = by_heads(*value, of_keys, key_heads), to = by_heads(*out, layout, heads);
  if (!q || !k || !v || !to || q->sizes[1] != heads || k->sizes[1] != key_heads) return false;
  auto call = decode_call(query->dtype, *q, *k, *v, *to, scale);
  std::vector<int64_t> lengths;
  if (!call || (is_paged ? !set_pages(*call, *block_table, block_size) : k->sizes[0] != call->batch) ||
      !set_lengths(*call, key_lengths, lengths)) {
    return false;
  }
  const bool sees_all = sparse_mode == 0 || sparse_mode == 1;
  call->causal = sparse_mode == 3;
  if (!sees_all && !call->causal) return false;
  if (log_sum_exp != nullptr) {
    if (log_sum_exp->dtype != ACL_FLOAT || !log_sum_exp->is_contiguous() ||
        log_sum_exp->numel() != call->batch * heads * call->queries) {
      return false;
    }
    call->log_sum_exp = static_cast<float*>(log_sum_exp->data());
  }
  kernels::decode_attention(*call);
  return true;
}

}  // namespace cann_host::fast
