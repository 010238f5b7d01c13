// Phase 1 of an aclnn call: everything that can be wrong with the arguments is found here, before any work is
// put on a stream, because clients treat an error of phase 2 as a broken device.
#pragma once

#include <initializer_list>
#include <string>

#include "cann_host/opapi/descriptor.h"

namespace cann_host {

/// The set of dtypes that one tensor argument may have, bit i = aclDataType i. 0: any dtype that the host
/// knows.
using DtypeMask = uint64_t;

/// Collects the first thing that is wrong with a call. Every method is a no-op once something is.
class Phase1 {
 public:
  explicit Phase1(const char* op) : op_(op) {}

  void tensor(const char* name, const aclTensor* tensor, DtypeMask allowed, bool optional);
  void tensors(const char* name, const aclTensorList* list, DtypeMask allowed, bool optional);
  template <class T>
  void required(const char* name, const T* argument) {
    if (argument == nullptr) null_argument(name);
  }

  /// out must have the broadcast shape of the inputs.
  void broadcast(const aclTensor* out, std::initializer_list<const aclTensor*> inputs);
  /// All inputs must have the shape of out.
  void same_shape(const aclTensor* out, std::initializer_list<const aclTensor*> inputs);
  /// What the operands promote to must convert to the dtype of out: no complex numbers to real ones, no
  /// fractions to integers, only bool to bool.
  void converts(const aclTensor* out, std::initializer_list<const aclTensor*> operands,
                const aclScalar* number = nullptr);
  /// out must have room for fractions.
  void quotient(const aclTensor* out);
  /// dim must lie in [-rank, rank) of tensor (rank 0 counts as 1).
  void dim(const aclTensor* tensor, int64_t dim);
  void dims(const aclTensor* tensor, const aclIntArray* dims);
  /// tensor must have that many dimensions.
  void rank(const char* name, const aclTensor* tensor, size_t rank);
  /// [.., n, k] x [.., k, m] -> [.., n, m]
  void matmul(const aclTensor* out, const aclTensor* a, const aclTensor* b);
  /// out holds a loss over the broadcast of the inputs: that shape for reduction 0 (none), one number for 1
  /// (mean) and 2 (sum).
  void reduced(const aclTensor* out, std::initializer_list<const aclTensor*> inputs, int64_t reduction);
  /// The shapes of a convolution: [N, C, spatial…] by [out, C / groups, kernel…] (the first two swapped where
  /// transposed); bias may be null.
  void convolution(const aclTensor* input, const aclTensor* weight, const aclTensor* bias,
                   const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation,
                   bool transposed, const aclIntArray* output_padding, int64_t groups,
                   const aclTensor* output);
  /// `outer` is `inner` with `padding` around its last `spatial` dimensions, the last one first; reflections
  /// and replications need something to repeat, reflections more than they repeat.
  void padded(const aclTensor* inner, const aclIntArray* padding, size_t spatial, bool reflects,
              const aclTensor* outer);
  /// All lists have as many tensors as out, with the same shapes.
  void lists(const aclTensorList* out, std::initializer_list<const aclTensorList*> inputs);
  /// Anything else: a condition with the reason in words.
  void require(bool condition, const char* reason);

  bool failed() const noexcept { return code_ != ACL_SUCCESS; }
  aclError code() const noexcept { return code_; }

 private:
  void null_argument(const char* name);
  void reject(const char* name, const aclTensor& tensor, DtypeMask allowed, int64_t numel);
  void fail(aclError code, std::string reason);

  const char* op_;
  aclError code_ = ACL_SUCCESS;
};

}  // namespace cann_host
