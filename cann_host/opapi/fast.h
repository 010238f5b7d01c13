// Direct routes from descriptors to the kernels of cann_host/kernels, for contiguous tensors of one shape and
// dtype. Each returns false, having written nothing, for everything else: ATen then does the work.
#pragma once

#include <string>

#include "cann_host/kernels/pointwise.h"
#include "cann_host/opapi/descriptor.h"

namespace cann_host::fast {

using kernels::BinaryOp;
using kernels::CompareOp;
using kernels::UnaryOp;

/// out = self op alpha * other; alpha null is 1.
bool binary(BinaryOp op, const aclTensor* self, const aclTensor* other, aclTensor* out,
            const aclScalar* alpha = nullptr);
bool binary(BinaryOp op, const aclTensor* self, const aclScalar* other, aclTensor* out,
            const aclScalar* alpha = nullptr);

/// out (bool) = self op other.
bool compare(CompareOp op, const aclTensor* self, const aclTensor* other, aclTensor* out);
bool compare(CompareOp op, const aclTensor* self, const aclScalar* other, aclTensor* out);

bool unary(UnaryOp op, const aclTensor* self, aclTensor* out);

/// out = self, converted.
bool copy(const aclTensor* self, aclTensor* out);

/// out = value, converted.
bool fill(const aclScalar* value, aclTensor* out);

/// Whether a factor is 1.
bool is_one(const aclScalar* factor);

/// out = self mat2 (+ bias), for matrices or batches of them: small ones, or a self of few rows with the
/// transpose of a matrix whose rows lie in one piece (the weight of a linear layer).
bool matmul(const aclTensor* self, const aclTensor* mat2, const aclTensor* bias, aclTensor* out);

/// Over all of normalizedShape; mean and rstd must be wanted.
bool layer_norm(const aclTensor* input, const aclIntArray* normalizedShape, const aclTensor* weight,
                const aclTensor* bias, double epsilon, aclTensor* out, const aclTensor* mean,
                const aclTensor* rstd);

/// Slices of self along dim become those of source. An index out of range is left to ATen, which refuses it.
bool index_copy(aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source);

bool zero(aclTensor* self);

/// Over the last dimension.
bool softmax(const aclTensor* self, int64_t dim, aclTensor* out);

/// Over the last dimensions; a sum also over the first ones. No dimensions stand for all.
bool sum(const aclTensor* self, const aclIntArray* dims, aclDataType dtype, aclTensor* out);
bool mean(const aclTensor* self, const aclIntArray* dims, aclDataType dtype, aclTensor* out);
bool maximum(const aclTensor* self, const aclIntArray* dims, aclTensor* out);

/// Layout BNSD and up to eight queries. `is_plain`: nothing is added, hidden by a mask or dropped. The
/// statistics of the softmax may be null.
bool attention_of_few_queries(const aclTensor* query, const aclTensor* key, const aclTensor* value,
                              bool is_plain, double scale, const std::string& layout, int64_t sparse_mode,
                              const aclTensor* maximum, const aclTensor* sum, aclTensor* out);

/// The same of the operators for inference, in layouts BNSD, BSND and BSH: sequences of different lengths,
/// and keys in pages of `block_size` if there is a table. Sparse mode 3 is causal; log_sum_exp may be null.
bool inference_of_few_queries(const aclTensor* query, const aclTensorList* keys, const aclTensorList* values,
                              bool is_plain, const aclIntArray* key_lengths, const aclTensor* block_table,
                              int64_t heads, double scale, const std::string& layout, int64_t key_heads,
                              int64_t sparse_mode, int64_t block_size, aclTensor* log_sum_exp,
                              aclTensor* out);

/// Whether none of these optional arguments is given.
template <class... Arguments>
bool none(const Arguments*... arguments) {
  return (... && (arguments == nullptr));
}

/// Rows of a matrix. An index out of range is left to ATen, which refuses it.
bool embedding(const aclTensor* weight, const aclTensor* indices, aclTensor* out);

bool cat(const aclTensorList* tensors, int64_t dim, aclTensor* out);

}  // namespace cann_host::fast
