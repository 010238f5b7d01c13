// Element types of HCCL and reductions over them.
#pragma once

#include <cann/hccl.h>

#include <cstddef>
#include <functional>

namespace cann_host::hccl {

/// Throws HCCL_E_PARA for a number that is no type.
size_t size_of(HcclDataType type);

/// out[i] = op over ranks of source(rank)[i], in the order of the ranks, so that all get the same bits.
/// 16-bit floats are accumulated in float.
using Reduce = void (*)(void* out, const std::function<const std::byte*(uint32_t)>& source, uint32_t ranks,
                        size_t count);

/// Throws HCCL_E_NOT_SUPPORT for types that cannot be added and HCCL_E_PARA for operations that do not exist.
Reduce reduction(HcclDataType type, HcclReduceOp op);

}  // namespace cann_host::hccl
