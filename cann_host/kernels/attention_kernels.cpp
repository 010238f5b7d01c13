// Attention of few queries over long keys. Compiled once per instruction set.

#include "cann_host/kernels/attention_kernels.h"

#include "cann_host/kernels/attention_rows.h"
#include "cann_host/kernels/softmax_weights.h"

namespace cann_host::kernels {
namespace {

/// Turns scores of a block into weights. False if nothing of the row is visible yet; else `kept` is the
/// factor for what was summed before.
template <class T>
bool weigh(const DecodeAttention& a, const Row& row, int64_t seen, const float* bias, float& kept) {
  const float maximum = maximum_over(seen, [&](int64_t i, auto place) {
    Vec<float> s = load(row.scores + i, place) * a.scale;
    if (bias != nullptr) s += load(bias + i, place);
    store(row.scores + i, s, place);
    return s;
  });
  // Comparisons are made so that NaN wins.
  const float largest = maximum > *row.maximum || maximum != maximum ? maximum : *row.maximum;
  if (largest == -__builtin_inff()) return false;
  kept = exp(splat<Vec<float>>(*row.maximum - largest))[0];
  const float sum = sum_over(seen, [&](int64_t i, auto place) {
    const Vec<float> weight = exp2_of_difference<T>((load(row.scores + i, place) - largest) * log2_e);
    store(row.scores + i, weight, place);
    return weight;
  });
  *row.sum = *row.sum * kept + sum;
  *row.maximum = largest;
  return true;
}

/// One block of keys and values, and what of it a row sees: `seen` keys, and the numbers that are added to
/// scores.
template <class T>
struct Block {
  const T* keys;
  const T* values;
};
struct View {
  int64_t seen;
  const float* bias;
};

/// Asks for the first lines of what is read next, in time: the processor notices it when it is read only.
template <class T>
void ask_for(const T* data) {
  constexpr int bytes = 4096, line = 64;
  for (int i = 0; i < bytes; i += line) __builtin_prefetch(reinterpret_cast<const char*>(data) + i, 0, 2);
}

template <class T>
void add_block(const DecodeAttention& a, const Row& row, const Block<T>& block, int64_t seen, float kept) {
  add_values(row.scores, block.values, a.value_strides[2], seen, a.value_size, kept, row.sum_of_values);
}

template <class T>
void take_block(const DecodeAttention& a, const Row& row, const Block<T>& block, const View& view) {
  if (view.seen <= 0) return;
  float kept;
  score(row.query, block.keys, a.key_strides[2], view.seen, a.head_size, row.scores);
  ask_for(block.values);
  if (!weigh<T>(a, row, view.seen, view.bias, kept)) return;
  ask_for(block.keys + view.seen * a.key_strides[2]);
  add_block(a, row, block, view.seen, kept);
}

/// The same for rows that see equally many keys.
template <class T>
void take_block(const DecodeAttention& a, const Row (&rows)[rows_at_once], const Block<T>& block,
                const View (&views)[rows_at_once]) {
  const int64_t seen = views[0].seen;
  if (seen <= 0) return;
  score_rows(rows, block.keys, a.key_strides[2], seen, a.head_size);
  ask_for(block.values);
  float kept[rows_at_once];
  bool visible[rows_at_once], all = true;
  for (int r = 0; r < rows_at_once; ++r) {
    visible[r] = weigh<T>(a, rows[r], seen, views[r].bias, kept[r]);
    all = all && visible[r];
  }
  ask_for(block.keys + seen * a.key_strides[2]);
  if (all) return add_values_to_rows(rows, kept, block.values, a.value_strides[2], seen, a.value_size);
  for (int r = 0; r < rows_at_once; ++r) {
    if (visible[r]) add_block(a, rows[r], block, seen, kept[r]);
  }
}

/// The score of a head's sink joins the sum; the result is written.
template <class T>
void finish(const DecodeAttention& a, const Row& row, int64_t batch, int64_t head, int64_t query) {
  float maximum = *row.maximum, sum = *row.sum, factor = 1;
  if (a.sinks != nullptr) {
    const float sink = a.sinks[head], largest = sink > maximum ? sink : maximum;
    const Vec<float> powers = exp(Vec<float>{maximum - largest, sink - largest});
    factor = powers[0];
    sum = sum * factor + powers[1];
    maximum = largest;
  }
  const int64_t place = (batch * a.heads + head) * a.queries + query;
  if (a.log_sum_exp != nullptr) a.log_sum_exp[place] = maximum + log(splat<Vec<float>>(sum))[0];
  if (a.maximum != nullptr) a.maximum[place] = maximum;
  T* out =
      static_cast<T*>(a.out) + batch * a.out_strides[0] + head * a.out_strides[1] + query * a.out_strides[2];
  const float scale = sum == 0 ? 0 : factor / sum;  // a query that sees nothing gives 0
  float result[group];
  each_group(a.value_size, [&](int64_t i, auto place) {
    const Pair sums = load_pair(row.sum_of_values + i);
    store_pair(result, in_order<T>({sums.first * scale, sums.second * scale}));
    each_vector(count_of(place),
                [&](int64_t k, auto part) { store(out + i + k, load(result + k, part), part); });
  });
}

template <class T>
void decode(const DecodeAttention& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t groups = a.heads / a.key_heads, rows = groups * a.queries;
  const int64_t head_size = whole_groups(a.head_size), value_size = whole_groups(a.value_size);
  const int64_t block = attention_block(rows);
  float* queries = scratch;
  float* sums_of_values = queries + rows * head_size;
  float* scores = sums_of_values + rows * value_size;
  float* statistics = scores + rows * block;
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t batch = pair / a.key_heads, key_head = pair % a.key_heads;
    const int64_t keys = a.key_lengths == nullptr ? a.keys : a.key_lengths[batch];
    const auto head_of = [&](int64_t r) { return key_head * groups + r / a.queries; };
    const auto row = [&](int64_t r) {
      return Row{queries + r * head_size, scores + r * block, sums_of_values + r * value_size,
                 statistics + 2 * r, statistics + 2 * r + 1};
    };
    for (int64_t r = 0; r < rows; ++r) {
      const T* query = static_cast<const T*>(a.query) + batch * a.query_strides[0] +
                       head_of(r) * a.query_strides[1] + r % a.queries * a.query_strides[2];
      each_group(a.head_size, [&](int64_t i, auto place) {
        store_pair(queries + r * head_size + i, load_group(query + i, place));
      });
      *row(r).maximum = -__builtin_inff();
      *row(r).sum = 0;
    }
    std::memset(sums_of_values, 0, rows * value_size * sizeof(float));
    for (int64_t start = 0; start < keys;) {
      int64_t count = keys - start < block ? keys - start : block;
      int64_t place = batch, within = start;
      if (a.block_table != nullptr) {
        place = a.block_table[batch * a.blocks_per_sequence + start / a.block_size];
        within = start % a.block_size;
        count = count < a.block_size - within ? count : a.block_size - within;
      }
      const T* key = static_cast<const T*>(a.key) + place * a.key_strides[0] + key_head * a.key_strides[1] +
                     within * a.key_strides[2];
      const T* value = static_cast<const T*>(a.value) + place * a.value_strides[0] +
                       key_head * a.value_strides[1] + within * a.value_strides[2];
      const auto view = [&](int64_t r) {
        const int64_t query = r % a.queries, visible = a.causal ? keys - (a.queries - 1 - query) : keys;
        const float* bias = a.bias == nullptr
                                ? nullptr
                                : a.bias + batch * a.bias_strides[0] + head_of(r) * a.bias_strides[1] +
                                      query * a.bias_strides[2] + start;
        return View{visible - start < count ? visible - start : count, bias};
      };
      for (int64_t r = 0; r < rows;) {
        const auto sees_as_many = [&](int64_t other) { return view(other).seen == view(r).seen; };
        if (r + rows_at_once <= rows && sees_as_many(r + 1) && sees_as_many(r + 2) && sees_as_many(r + 3)) {
          static_assert(rows_at_once == 4);
          take_block<T>(a, {row(r), row(r + 1), row(r + 2), row(r + 3)}, {key, value},
                        {view(r), view(r + 1), view(r + 2), view(r + 3)});
          r += rows_at_once;
        } else {
          take_block<T>(a, row(r), {key, value}, view(r));
          ++r;
        }
      }
      start += count;
    }
    for (int64_t r = 0; r < rows; ++r) finish<T>(a, row(r), batch, head_of(r), r % a.queries);
  }
}

}  // namespace

namespace CANN_HOST_ISA {

extern const ByType<DecodeKernel> decode_kernels =
    by_type<DecodeKernel>(TypeList<float, Half, BFloat16>{}, []<class T> { return &decode<T>; });

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
