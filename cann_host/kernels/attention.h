#pragma once

#include <cstdint>

#include "cann_host/kernels/data_type.h"

namespace cann_host::kernels {

/// Attention of few queries over long keys: each key and value is read once for all queries that share it, so
/// that memory bandwidth is the limit. Softmax is computed block by block (flash attention), in float32.
/// Strides count elements; the elements of a head are neighbours.
struct DecodeAttention {
  DataType type;  ///< float32, float16 or bfloat16; of query, key, value and out
  const void* query;
  int64_t query_strides[3];  ///< batch, head, query
  const void* key;
  int64_t key_strides[3];  ///< batch (or block), head, key
  const void* value;
  int64_t value_strides[3];
  void* out;
  int64_t out_strides[3];
  float* log_sum_exp;  ///< [batch, heads, queries], of the scores and the sink; may be null
  float* maximum;      ///< likewise
  int64_t batch;
  int64_t heads;
  int64_t key_heads;  ///< divides heads
  int64_t queries;
  int64_t keys;  ///< of each sequence, unless key_lengths says less
  int64_t head_size;
  int64_t value_size;
  float scale;
  const int64_t* key_lengths;  ///< [batch]; may be null
  const int32_t* block_table;  ///< [batch, blocks_per_sequence]: where blocks of keys lie; null: contiguous
  int64_t blocks_per_sequence;
  int64_t block_size;       ///< keys a block of the table
  const float* bias;        ///< added to scaled scores; may be null
  int64_t bias_strides[3];  ///< batch, head, query; keys are neighbours
  bool causal;              ///< the last query sees all keys, the one before all but one, …
  const float* sinks;       ///< [heads]: a score without a value; may be null
};
void decode_attention(const DecodeAttention& arguments);

/// Queries, and rows of queries that share a key, up to which it is faster than blocks of matrix products.
constexpr int64_t most_decode_queries = 8;
constexpr int64_t most_decode_rows = 32;

}  // namespace cann_host::kernels
