// What clients link to or look up and cannot use here: every function says so when it is called. In
// declarations of our own, with untyped pointers where CANN has structures, as nothing is read from them.
#pragma once

#include <cann/acl.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// ---- profiling
aclError aclprofInit(const char* profilerResultPath, size_t length);
aclError aclprofFinalize(void);
aclError aclprofStart(const void* profilerConfig);
aclError aclprofStop(const void* profilerConfig);
void* aclprofCreateConfig(uint32_t* deviceIdList, uint32_t deviceNums, int aicoreMetrics,
                          const void* aicoreEvents, uint64_t dataTypeConfig);
aclError aclprofDestroyConfig(const void* profilerConfig);
void* aclprofCreateStepInfo(void);
void aclprofDestroyStepInfo(void* stepInfo);
aclError aclprofGetStepTimestamp(void* stepInfo, int tag, aclrtStream stream);

int32_t MsprofRegisterCallback(uint32_t moduleId, void* callback);
int32_t MsprofReportApi(uint32_t agingFlag, const void* api);
int32_t MsprofReportCompactInfo(uint32_t agingFlag, const void* data, uint32_t length);
int32_t MsprofReportAdditionalInfo(uint32_t agingFlag, const void* data, uint32_t length);
uint64_t MsprofSysCycleTime(void);
uint64_t MsprofGetHashId(const char* text, size_t length);

// ---- dumps
aclError aclmdlInitDump(void);
aclError aclmdlSetDump(const char* configPath);
aclError aclmdlFinalizeDump(void);
aclError aclopStartDumpArgs(uint32_t dumpType, const char* path);
aclError aclopStopDumpArgs(uint32_t dumpType);

// ---- addresses of device code, and the older interface to it
aclError aclrtGetFunctionAddr(void* funcHandle, void** aicAddr, void** aivAddr);
int32_t rtDevBinaryRegister(const void* binary, void** handle);
int32_t rtFunctionRegister(void* binHandle, const void* stubFunc, const char* stubName,
                           const void* kernelInfoExt, uint32_t funcMode);
int32_t rtKernelLaunch(const void* stubFunc, uint32_t numBlocks, void* args, uint32_t argsSize, void* smDesc,
                       void* stream);
int32_t rtGetC2cCtrlAddr(uint64_t* address, uint32_t* length);
aclError aclrtSetExceptionInfoCallback(void* callback);

// ---- memory shared between processes
aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType,
                                         uint64_t flags, uint64_t* shareableHandle);
aclError aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId,
                                           aclrtDrvMemHandle* handle);
aclError aclrtMemSetPidToShareableHandle(uint64_t shareableHandle, int32_t* pid, size_t pidNum);

// ---- channels that carry data between device and host
void* acltdtCreateChannelWithCapacity(uint32_t deviceId, const char* name, size_t capacity);
aclError acltdtDestroyChannel(void* handle);
aclError acltdtReceiveTensor(const void* handle, void* dataset, int32_t timeout);
void* acltdtCreateDataset(void);
aclError acltdtDestroyDataset(void* dataset);
void* acltdtGetDataItem(const void* dataset, size_t index);
size_t acltdtGetDatasetSize(const void* dataset);
void* acltdtGetDataAddrFromItem(const void* dataItem);
size_t acltdtGetDataSizeFromItem(const void* dataItem);
aclDataType acltdtGetDataTypeFromItem(const void* dataItem);
size_t acltdtGetDimNumFromItem(const void* dataItem);
aclError acltdtGetDimsFromItem(const void* dataItem, int64_t* dims, size_t dimNum);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
