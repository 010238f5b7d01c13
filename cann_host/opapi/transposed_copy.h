#pragma once

#include "cann_host/opapi/descriptor.h"

namespace cann_host {

/// to = from where the elements of `to`, in the order in which they lie in memory, are those of transposed
/// matrices in `from`: transposes themselves, images whose channels move to the end or back. False, having
/// written nothing, for tensors that share memory, for other strides, dtypes or element sizes, and where
/// there is little to copy.
bool copy_transposed(const aclTensor& from, const aclTensor& to);

}  // namespace cann_host
