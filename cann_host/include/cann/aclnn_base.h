// What all operators of libopapi.so share. Their own prototypes are in <cann/aclnn.h>.
#pragma once

#include <cann/acl.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnInit(const char* configPath);
aclnnStatus aclnnFinalize(void);
// For a client that gives up between the phases of an operator.
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
