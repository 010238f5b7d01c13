// HCCL, CANN's library of collectives (libhccl.so), found at run time beside the CANN that is in use.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

#include "cann/hccl.h"
#include "torch_npu/csrc/cann/function.h"

namespace torch_npu::distributed {

class Hccl {
  std::vector<cann::Symbol*> required_;
  std::vector<cann::Symbol*> optional_;

  template <class Signature>
  using Function = cann::Function<Signature>;

 public:
  /// Opens the library. Raises if the CANN in use has none, or one without a required function.
  Hccl();
  Hccl(const Hccl&) = delete;

  Function<decltype(::HcclGetRootInfo)> HcclGetRootInfo{required_, "HcclGetRootInfo"};
  Function<decltype(::HcclCommInitRootInfo)> HcclCommInitRootInfo{required_, "HcclCommInitRootInfo"};
  Function<decltype(::HcclCommDestroy)> HcclCommDestroy{required_, "HcclCommDestroy"};
  Function<decltype(::HcclGetCommName)> HcclGetCommName{required_, "HcclGetCommName"};
  Function<decltype(::HcclGetCommAsyncError)> HcclGetCommAsyncError{required_, "HcclGetCommAsyncError"};
  Function<decltype(::HcclGetErrorString)> HcclGetErrorString{required_, "HcclGetErrorString"};
  Function<decltype(::HcclAllReduce)> HcclAllReduce{required_, "HcclAllReduce"};
  Function<decltype(::HcclReduce)> HcclReduce{required_, "HcclReduce"};
  Function<decltype(::HcclBroadcast)> HcclBroadcast{required_, "HcclBroadcast"};
  Function<decltype(::HcclScatter)> HcclScatter{required_, "HcclScatter"};
  Function<decltype(::HcclAllGather)> HcclAllGather{required_, "HcclAllGather"};
  Function<decltype(::HcclReduceScatter)> HcclReduceScatter{required_, "HcclReduceScatter"};
  Function<decltype(::HcclAlltoAllV)> HcclAlltoAllV{required_, "HcclAlltoAllV"};
  Function<decltype(::HcclBarrier)> HcclBarrier{required_, "HcclBarrier"};
  Function<decltype(::HcclSend)> HcclSend{required_, "HcclSend"};
  Function<decltype(::HcclRecv)> HcclRecv{required_, "HcclRecv"};
  Function<decltype(::HcclBatchSendRecv)> HcclBatchSendRecv{required_, "HcclBatchSendRecv"};

  Function<decltype(::HcclCommInitRootInfoConfig)> HcclCommInitRootInfoConfig{optional_,
                                                                              "HcclCommInitRootInfoConfig"};
  Function<decltype(::HcclAllGatherV)> HcclAllGatherV{optional_, "HcclAllGatherV"};
  Function<decltype(::HcclReduceScatterV)> HcclReduceScatterV{optional_, "HcclReduceScatterV"};
};

/// Opened at the first question.
const Hccl& hccl();

/// Raises c10::DistBackendError (torch.distributed.DistBackendError) if `code` is not success: the call, what
/// the code means and CANN's message.
void check(HcclResult code, const char* call);

/// HCCL's name of a dtype, if it has one.
std::optional<HcclDataType> data_type(c10::ScalarType dtype);

}  // namespace torch_npu::distributed
