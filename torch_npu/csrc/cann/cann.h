#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cann/acl.h"
#include "cann/aclnn_base.h"
#include "torch_npu/csrc/cann/function.h"

/// CANN, found at run time: nothing of it is linked. The first root whose libraries load, have every required
/// function and see a device is used. TORCH_NPU_CANN says which roots are tried:
///   auto (default)  $ASCEND_HOME_PATH, $ASCEND_TOOLKIT_HOME, then the software CANN that is bundled with
///   this package host            the bundled one only a path          that one only
namespace torch_npu::cann {

/// CANN's functions. Those in `required_` must exist in a root for the root to be used; test the others
/// before a call.
class Api {
  std::vector<Symbol*> required_;
  std::vector<Symbol*> optional_;

 public:
  Api() = default;
  Api(const Api&) = delete;

  /// Looks all names up in the libraries, first match wins; returns the required ones that none has.
  std::vector<std::string> resolve(const std::vector<void*>& libraries);

  // life and errors
  Function<decltype(::aclInit)> aclInit{required_, "aclInit"};
  Function<decltype(::aclGetRecentErrMsg)> aclGetRecentErrMsg{required_, "aclGetRecentErrMsg"};
  Function<decltype(::aclrtGetSocName)> aclrtGetSocName{required_, "aclrtGetSocName"};
  // devices
  Function<decltype(::aclrtGetDeviceCount)> aclrtGetDeviceCount{required_, "aclrtGetDeviceCount"};
  Function<decltype(::aclrtSetDevice)> aclrtSetDevice{required_, "aclrtSetDevice"};
  Function<decltype(::aclrtGetDevice)> aclrtGetDevice{required_, "aclrtGetDevice"};
  Function<decltype(::aclrtSynchronizeDevice)> aclrtSynchronizeDevice{required_, "aclrtSynchronizeDevice"};
  Function<decltype(::aclrtDeviceCanAccessPeer)> aclrtDeviceCanAccessPeer{required_,
                                                                          "aclrtDeviceCanAccessPeer"};
  Function<decltype(::aclGetDeviceCapability)> aclGetDeviceCapability{required_, "aclGetDeviceCapability"};
  // memory
  Function<decltype(::aclrtMalloc)> aclrtMalloc{required_, "aclrtMalloc"};
  Function<decltype(::aclrtFree)> aclrtFree{required_, "aclrtFree"};
  Function<decltype(::aclrtMallocHost)> aclrtMallocHost{required_, "aclrtMallocHost"};
  Function<decltype(::aclrtFreeHost)> aclrtFreeHost{required_, "aclrtFreeHost"};
  Function<decltype(::aclrtPointerGetAttributes)> aclrtPointerGetAttributes{required_,
                                                                            "aclrtPointerGetAttributes"};
  Function<decltype(::aclrtGetMemInfo)> aclrtGetMemInfo{required_, "aclrtGetMemInfo"};
  Function<decltype(::aclrtMemcpy)> aclrtMemcpy{required_, "aclrtMemcpy"};
  Function<decltype(::aclrtMemcpyAsync)> aclrtMemcpyAsync{required_, "aclrtMemcpyAsync"};
  Function<decltype(::aclrtMemset)> aclrtMemset{required_, "aclrtMemset"};
  Function<decltype(::aclrtMemsetAsync)> aclrtMemsetAsync{required_, "aclrtMemsetAsync"};
  // streams
  Function<decltype(::aclrtCreateStreamWithConfig)> aclrtCreateStreamWithConfig{
      required_, "aclrtCreateStreamWithConfig"};
  Function<decltype(::aclrtDestroyStream)> aclrtDestroyStream{required_, "aclrtDestroyStream"};
  Function<decltype(::aclrtStreamQuery)> aclrtStreamQuery{required_, "aclrtStreamQuery"};
  Function<decltype(::aclrtSynchronizeStream)> aclrtSynchronizeStream{required_, "aclrtSynchronizeStream"};
  // events
  Function<decltype(::aclrtCreateEventWithFlag)> aclrtCreateEventWithFlag{required_,
                                                                          "aclrtCreateEventWithFlag"};
  Function<decltype(::aclrtDestroyEvent)> aclrtDestroyEvent{required_, "aclrtDestroyEvent"};
  Function<decltype(::aclrtRecordEvent)> aclrtRecordEvent{required_, "aclrtRecordEvent"};
  Function<decltype(::aclrtStreamWaitEvent)> aclrtStreamWaitEvent{required_, "aclrtStreamWaitEvent"};
  Function<decltype(::aclrtQueryEventStatus)> aclrtQueryEventStatus{required_, "aclrtQueryEventStatus"};
  Function<decltype(::aclrtSynchronizeEvent)> aclrtSynchronizeEvent{required_, "aclrtSynchronizeEvent"};
  Function<decltype(::aclrtEventElapsedTime)> aclrtEventElapsedTime{required_, "aclrtEventElapsedTime"};
  // arguments of operators
  Function<decltype(::aclCreateTensor)> aclCreateTensor{required_, "aclCreateTensor"};
  Function<decltype(::aclCreateScalar)> aclCreateScalar{required_, "aclCreateScalar"};
  Function<decltype(::aclCreateIntArray)> aclCreateIntArray{required_, "aclCreateIntArray"};
  Function<decltype(::aclCreateFloatArray)> aclCreateFloatArray{required_, "aclCreateFloatArray"};
  Function<decltype(::aclCreateBoolArray)> aclCreateBoolArray{required_, "aclCreateBoolArray"};
  Function<decltype(::aclCreateTensorList)> aclCreateTensorList{required_, "aclCreateTensorList"};
  Function<decltype(::aclCreateScalarList)> aclCreateScalarList{required_, "aclCreateScalarList"};
  Function<decltype(::aclDestroyTensor)> aclDestroyTensor{required_, "aclDestroyTensor"};
  Function<decltype(::aclDestroyScalar)> aclDestroyScalar{required_, "aclDestroyScalar"};
  Function<decltype(::aclDestroyIntArray)> aclDestroyIntArray{required_, "aclDestroyIntArray"};
  Function<decltype(::aclDestroyFloatArray)> aclDestroyFloatArray{required_, "aclDestroyFloatArray"};
  Function<decltype(::aclDestroyBoolArray)> aclDestroyBoolArray{required_, "aclDestroyBoolArray"};
  Function<decltype(::aclDestroyTensorList)> aclDestroyTensorList{required_, "aclDestroyTensorList"};
  Function<decltype(::aclDestroyScalarList)> aclDestroyScalarList{required_, "aclDestroyScalarList"};
  Function<decltype(::aclDestroyAclOpExecutor)> aclDestroyAclOpExecutor{required_, "aclDestroyAclOpExecutor"};
  Function<decltype(::aclGetViewShape)> aclGetViewShape{required_, "aclGetViewShape"};

  // life and errors
  Function<decltype(::aclFinalize)> aclFinalize{optional_, "aclFinalize"};
  Function<decltype(::aclsysGetCANNVersion)> aclsysGetCANNVersion{optional_, "aclsysGetCANNVersion"};
  // devices
  Function<decltype(::aclrtDeviceEnablePeerAccess)> aclrtDeviceEnablePeerAccess{
      optional_, "aclrtDeviceEnablePeerAccess"};
  Function<decltype(::aclrtDeviceGetUuid)> aclrtDeviceGetUuid{optional_, "aclrtDeviceGetUuid"};
  Function<decltype(::aclrtGetDeviceUtilizationRate)> aclrtGetDeviceUtilizationRate{
      optional_, "aclrtGetDeviceUtilizationRate"};
  Function<decltype(::aclrtCtxSetSysParamOpt)> aclrtCtxSetSysParamOpt{optional_, "aclrtCtxSetSysParamOpt"};
  Function<decltype(::aclrtCtxGetSysParamOpt)> aclrtCtxGetSysParamOpt{optional_, "aclrtCtxGetSysParamOpt"};
  // memory
  Function<decltype(::aclrtHostRegister)> aclrtHostRegister{optional_, "aclrtHostRegister"};
  Function<decltype(::aclrtHostRegisterV2)> aclrtHostRegisterV2{optional_, "aclrtHostRegisterV2"};
  Function<decltype(::aclrtHostUnregister)> aclrtHostUnregister{optional_, "aclrtHostUnregister"};
  Function<decltype(::aclrtMemGetAllocationGranularity)> aclrtMemGetAllocationGranularity{
      optional_, "aclrtMemGetAllocationGranularity"};
  Function<decltype(::aclrtReserveMemAddress)> aclrtReserveMemAddress{optional_, "aclrtReserveMemAddress"};
  Function<decltype(::aclrtReleaseMemAddress)> aclrtReleaseMemAddress{optional_, "aclrtReleaseMemAddress"};
  Function<decltype(::aclrtMallocPhysical)> aclrtMallocPhysical{optional_, "aclrtMallocPhysical"};
  Function<decltype(::aclrtFreePhysical)> aclrtFreePhysical{optional_, "aclrtFreePhysical"};
  Function<decltype(::aclrtMapMem)> aclrtMapMem{optional_, "aclrtMapMem"};
  Function<decltype(::aclrtUnmapMem)> aclrtUnmapMem{optional_, "aclrtUnmapMem"};
  // limits, time limits and options
  Function<decltype(::aclrtGetDeviceResLimit)> aclrtGetDeviceResLimit{optional_, "aclrtGetDeviceResLimit"};
  Function<decltype(::aclrtSetDeviceResLimit)> aclrtSetDeviceResLimit{optional_, "aclrtSetDeviceResLimit"};
  Function<decltype(::aclrtGetStreamResLimit)> aclrtGetStreamResLimit{optional_, "aclrtGetStreamResLimit"};
  Function<decltype(::aclrtSetStreamResLimit)> aclrtSetStreamResLimit{optional_, "aclrtSetStreamResLimit"};
  Function<decltype(::aclrtResetStreamResLimit)> aclrtResetStreamResLimit{optional_,
                                                                          "aclrtResetStreamResLimit"};
  Function<decltype(::aclrtSetOpExecuteTimeOutV2)> aclrtSetOpExecuteTimeOutV2{optional_,
                                                                              "aclrtSetOpExecuteTimeOutV2"};
  Function<decltype(::aclrtDeviceTaskAbort)> aclrtDeviceTaskAbort{optional_, "aclrtDeviceTaskAbort"};
  Function<decltype(::aclSetCompileopt)> aclSetCompileopt{optional_, "aclSetCompileopt"};
  Function<decltype(::aclGetCompileopt)> aclGetCompileopt{optional_, "aclGetCompileopt"};
  Function<decltype(::aclGetCompileoptSize)> aclGetCompileoptSize{optional_, "aclGetCompileoptSize"};
  // streams and events
  Function<decltype(::aclrtResetEvent)> aclrtResetEvent{optional_, "aclrtResetEvent"};
  Function<decltype(::aclrtEventGetTimestamp)> aclrtEventGetTimestamp{optional_, "aclrtEventGetTimestamp"};
  Function<decltype(::aclrtLaunchHostFunc)> aclrtLaunchHostFunc{optional_, "aclrtLaunchHostFunc"};
  Function<decltype(::aclrtCreateEventExWithFlag)> aclrtCreateEventExWithFlag{optional_,
                                                                              "aclrtCreateEventExWithFlag"};
  // capture
  Function<decltype(::aclmdlRICaptureBegin)> aclmdlRICaptureBegin{optional_, "aclmdlRICaptureBegin"};
  Function<decltype(::aclmdlRICaptureGetInfo)> aclmdlRICaptureGetInfo{optional_, "aclmdlRICaptureGetInfo"};
  Function<decltype(::aclmdlRICaptureEnd)> aclmdlRICaptureEnd{optional_, "aclmdlRICaptureEnd"};
  Function<decltype(::aclmdlRICaptureThreadExchangeMode)> aclmdlRICaptureThreadExchangeMode{
      optional_, "aclmdlRICaptureThreadExchangeMode"};
  Function<decltype(::aclmdlRIExecute)> aclmdlRIExecute{optional_, "aclmdlRIExecute"};
  Function<decltype(::aclmdlRIExecuteAsync)> aclmdlRIExecuteAsync{optional_, "aclmdlRIExecuteAsync"};
  Function<decltype(::aclmdlRIDestroy)> aclmdlRIDestroy{optional_, "aclmdlRIDestroy"};
  Function<decltype(::aclmdlRIDebugPrint)> aclmdlRIDebugPrint{optional_, "aclmdlRIDebugPrint"};
  Function<decltype(::aclmdlRIDebugJsonPrint)> aclmdlRIDebugJsonPrint{optional_, "aclmdlRIDebugJsonPrint"};
  Function<decltype(::aclmdlRICaptureTaskGrpBegin)> aclmdlRICaptureTaskGrpBegin{
      optional_, "aclmdlRICaptureTaskGrpBegin"};
  Function<decltype(::aclmdlRICaptureTaskGrpEnd)> aclmdlRICaptureTaskGrpEnd{optional_,
                                                                            "aclmdlRICaptureTaskGrpEnd"};
  Function<decltype(::aclmdlRICaptureTaskUpdateBegin)> aclmdlRICaptureTaskUpdateBegin{
      optional_, "aclmdlRICaptureTaskUpdateBegin"};
  Function<decltype(::aclmdlRICaptureTaskUpdateEnd)> aclmdlRICaptureTaskUpdateEnd{
      optional_, "aclmdlRICaptureTaskUpdateEnd"};
  // extensions of cann_host
  Function<decltype(::cannHostDeviceMemoryIsHostAccessible)> cannHostDeviceMemoryIsHostAccessible{
      optional_, "cannHostDeviceMemoryIsHostAccessible"};
  Function<decltype(::cannHostLaunchFunction)> cannHostLaunchFunction{optional_, "cannHostLaunchFunction"};
  Function<decltype(::cannHostStreamRunsInline)> cannHostStreamRunsInline{optional_,
                                                                          "cannHostStreamRunsInline"};
};

namespace detail {
extern std::atomic<const Api*> loaded;
const Api& load();
}  // namespace detail

/// The functions of the CANN in use. The first call finds it; if none can be used, this and every later call
/// raises.
inline const Api& api() {
  const Api* api = detail::loaded.load(std::memory_order_acquire);
  return api ? *api : detail::load();
}

struct Refusal {
  std::string root;
  std::string reason;
};

/// What discovery found.
struct Info {
  std::string root;       // the CANN in use, empty if none
  std::string chosen_by;  // "TORCH_NPU_CANN", "ASCEND_HOME_PATH", "bundled", …
  bool is_host = false;   // it is the software CANN
  int device_count = 0;
  std::string soc;  // "Ascend910B3"
  std::vector<std::string> libraries;
  std::vector<Refusal> refused;  // roots that were tried before it
  std::string error;             // why no root can be used, empty if one is
};

/// Performs the discovery at the first call. A CANN that cannot be used is no exception but Info::error.
const Info& info();

/// Address of a function of the operator libraries (aclnnAdd, aclnnAddGetWorkspaceSize, …), null if there is
/// none.
void* find_aclnn(const char* name);

}  // namespace torch_npu::cann
