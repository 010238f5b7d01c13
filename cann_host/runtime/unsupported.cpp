// What a client may link to but cannot use here: it says so when it is called. Profilers are told at
// registration that nothing will be reported; device binaries, data channels and memory shared between
// processes need hardware.
#include <cann/unsupported.h>

#include <cstring>

#include "error.h"
#include "event.h"

using namespace cann_host;

namespace {

aclError no(const char* function, const char* what) {
  return entry(function,
               [&] { refuse(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "cann_host does not support %s", what); });
}

aclError no_profiling(const char* function) {
  return entry(function, [] {
    refuse(ACL_ERROR_PROF_MODULES_UNSUPPORTED,
           "cann_host does not support profiling of devices; use torch.profiler");
  });
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// ---- profiling
aclError aclprofInit(const char*, size_t) { return no_profiling(__func__); }
aclError aclprofFinalize() { return no_profiling(__func__); }
aclError aclprofStart(const void*) { return no_profiling(__func__); }
aclError aclprofStop(const void*) { return no_profiling(__func__); }
void* aclprofCreateConfig(uint32_t*, uint32_t, int, const void*, uint64_t) {
  no_profiling(__func__);
  return nullptr;
}
aclError aclprofDestroyConfig(const void*) { return no_profiling(__func__); }
void* aclprofCreateStepInfo() {
  no_profiling(__func__);
  return nullptr;
}
void aclprofDestroyStepInfo(void*) {}
aclError aclprofGetStepTimestamp(void*, int, aclrtStream) { return no_profiling(__func__); }

// The callback would be told when profiling begins, which it never does.
int32_t MsprofRegisterCallback(uint32_t, void*) { return ACL_SUCCESS; }
int32_t MsprofReportApi(uint32_t, const void*) { return no_profiling(__func__); }
int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return no_profiling(__func__); }
int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return no_profiling(__func__); }
uint64_t MsprofSysCycleTime() { return now_ns(); }
uint64_t MsprofGetHashId(const char* text, size_t length) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; text && i < length; ++i)
    hash = (hash ^ static_cast<unsigned char>(text[i])) * 1099511628211u;
  return hash;
}

// ---- dumps
aclError aclmdlInitDump() { return no(__func__, "dumps of operators"); }
aclError aclmdlSetDump(const char*) { return no(__func__, "dumps of operators"); }
aclError aclmdlFinalizeDump() { return no(__func__, "dumps of operators"); }
aclError aclopStartDumpArgs(uint32_t, const char*) { return no(__func__, "dumps of operators"); }
aclError aclopStopDumpArgs(uint32_t) { return no(__func__, "dumps of operators"); }

// ---- addresses of device code, and the older interface to it
aclError aclrtGetFunctionAddr(void*, void**, void**) { return no(__func__, "device binaries"); }
int32_t rtDevBinaryRegister(const void*, void**) { return no(__func__, "device binaries"); }
int32_t rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) {
  return no(__func__, "device binaries");
}
int32_t rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) {
  return no(__func__, "device binaries");
}
int32_t rtGetC2cCtrlAddr(uint64_t*, uint32_t*) {
  return no(__func__, "synchronisation between device cores");
}

// ---- memory shared between processes
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  return no(__func__, "memory shared between processes");
}
aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) {
  return no(__func__, "memory shared between processes");
}
aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) {
  return no(__func__, "memory shared between processes");
}

// ---- channels that carry data between device and host
void* acltdtCreateChannelWithCapacity(uint32_t, const char*, size_t) {
  no(__func__, "data channels");
  return nullptr;
}
aclError acltdtDestroyChannel(void*) { return no(__func__, "data channels"); }
aclError acltdtReceiveTensor(const void*, void*, int32_t) { return no(__func__, "data channels"); }
void* acltdtCreateDataset() {
  no(__func__, "data channels");
  return nullptr;
}
aclError acltdtDestroyDataset(void*) { return no(__func__, "data channels"); }
void* acltdtGetDataItem(const void*, size_t) {
  no(__func__, "data channels");
  return nullptr;
}
size_t acltdtGetDatasetSize(const void*) { return 0; }
void* acltdtGetDataAddrFromItem(const void*) { return nullptr; }
size_t acltdtGetDataSizeFromItem(const void*) { return 0; }
aclDataType acltdtGetDataTypeFromItem(const void*) { return ACL_DT_UNDEFINED; }
size_t acltdtGetDimNumFromItem(const void*) { return 0; }
aclError acltdtGetDimsFromItem(const void*, int64_t*, size_t) { return no(__func__, "data channels"); }

aclError aclrtSetExceptionInfoCallback(void*) {
  return no(__func__, "callbacks on exceptions of the device");
}

}  // extern "C"
#pragma GCC visibility pop
