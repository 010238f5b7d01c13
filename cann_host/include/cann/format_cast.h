// What a storage has to be for another memory format. The cast itself is aclnnNpuFormatCast, <cann/aclnn.h>.
#pragma once

#include <cann/acl.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// The storage that aclnnNpuFormatCast needs for srcTensor in another format: its sizes, an array that the
// caller frees with delete[], and its format. 32 bytes of additionalDtype make a row of a block.
aclnnStatus aclnnNpuFormatCastCalculateSizeAndFormat(const aclTensor* srcTensor, int dstFormat,
                                                     int additionalDtype, int64_t** dstShape,
                                                     uint64_t* dstShapeSize, int* actualFormat);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
