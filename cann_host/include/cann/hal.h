// What clients look up in libascend_hal, the library of CANN's driver.
#pragma once

#include <cann/acl.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/// Devices of the machine, whether they are visible to the process or not.
int32_t drvGetDevNum(uint32_t* count);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
