#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/dispatch/launch_log.h"

namespace torch_npu::cann {
namespace {

struct Meaning {
  aclError code;
  const char* name;
  const char* meaning;
  const char* advice;  // what to do, empty if the meaning says it
};

constexpr const char* kReadMessage = "Read CANN's message above; it names the argument.";
constexpr const char* kOutOfResources =
    "Destroy streams, events or graphs that are no longer used, or use fewer.";
constexpr const char* kDeviceFault =
    "The device state is lost: restart the process. If it comes back, check the device with npu-smi info.";
constexpr const char* kOpFault =
    "The launch that failed is an earlier one. Run with CANN_HOST_ASYNC=0 (software CANN) or "
    "ASCEND_LAUNCH_BLOCKING=1 "
    "(hardware) to see it where it happens.";
constexpr const char* kCapture = "End the capture before, or keep this call out of the captured region.";

constexpr Meaning kMeanings[] = {
    {ACL_ERROR_INVALID_PARAM, "ACL_ERROR_INVALID_PARAM", "an argument is invalid", kReadMessage},
    {ACL_ERROR_UNINITIALIZE, "ACL_ERROR_UNINITIALIZE", "CANN is not initialised",
     "Call torch.npu.init() first."},
    {ACL_ERROR_OP_NOT_FOUND, "ACL_ERROR_OP_NOT_FOUND", "this CANN has no such operator", "Use a newer CANN."},
    {ACL_ERROR_RT_PARAM_INVALID, "ACL_ERROR_RT_PARAM_INVALID", "an argument is invalid", kReadMessage},
    {ACL_ERROR_RT_INVALID_DEVICEID, "ACL_ERROR_RT_INVALID_DEVICEID", "there is no such device",
     "Compare the index with torch.npu.device_count()."},
    {ACL_ERROR_RT_CONTEXT_NULL, "ACL_ERROR_RT_CONTEXT_NULL", "the calling thread has selected no device",
     "Call torch.npu.set_device(index) in this thread."},
    {ACL_ERROR_RT_STREAM_CONTEXT, "ACL_ERROR_RT_STREAM_CONTEXT",
     "the stream belongs to another device or context",
     "Use a stream of the current device: torch.npu.current_stream()."},
    {ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID",
     "the event has no time stamp yet",
     "Record both events and synchronise before asking for the time between them."},
    {ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL",
     "the end event was recorded before the start event", "Swap the events."},
    {ACL_ERROR_RT_INVALID_MEMORY_TYPE, "ACL_ERROR_RT_INVALID_MEMORY_TYPE", "the memory is of the wrong kind",
     "Device and host pointers were mixed up; read CANN's message above."},
    {ACL_ERROR_RT_INVALID_HANDLE, "ACL_ERROR_RT_INVALID_HANDLE", "the stream, event or graph does not exist",
     "It was destroyed, or is not of this CANN."},
    {ACL_ERROR_RT_WAIT_TIMEOUT, "ACL_ERROR_RT_WAIT_TIMEOUT", "waiting took longer than the time limit", ""},
    {ACL_ERROR_RT_STREAM_CAPTURED, "ACL_ERROR_RT_STREAM_CAPTURED", "the stream is being captured", kCapture},
    {ACL_ERROR_RT_EVENT_CAPTURED, "ACL_ERROR_RT_EVENT_CAPTURED", "the event belongs to a capture", kCapture},
    {ACL_ERROR_RT_STREAM_UNJOINED, "ACL_ERROR_RT_STREAM_UNJOINED",
     "a stream that joined the capture was not joined back",
     "Let the capturing stream wait for it (wait_stream) before the capture ends."},
    {ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT",
     "this call is not allowed while a stream is captured", kCapture},
    {ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT",
     "the default stream would depend on a captured one", kCapture},
    {ACL_ERROR_BAD_ALLOC, "ACL_ERROR_BAD_ALLOC", "out of host memory", ""},
    {ACL_ERROR_API_NOT_SUPPORT, "ACL_ERROR_API_NOT_SUPPORT", "this CANN or device does not support the call",
     ""},
    {ACL_ERROR_INVALID_DEVICE, "ACL_ERROR_INVALID_DEVICE", "there is no such device",
     "Compare the index with torch.npu.device_count()."},
    {ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
     "this CANN or device does not support the call", ""},
    {ACL_ERROR_RT_MEMORY_ALLOCATION, "ACL_ERROR_RT_MEMORY_ALLOCATION", "out of memory",
     "Free tensors, or call torch.npu.empty_cache()."},
    {ACL_ERROR_RT_NO_DEVICE, "ACL_ERROR_RT_NO_DEVICE", "no device is visible",
     "Check ASCEND_RT_VISIBLE_DEVICES and npu-smi info; TORCH_NPU_CANN=host selects the bundled software "
     "CANN."},
    {ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL", "out of streams, events or tasks",
     kOutOfResources},
    {ACL_ERROR_INTERNAL_ERROR, "ACL_ERROR_INTERNAL_ERROR", "internal error of CANN", ""},
    {ACL_ERROR_RT_INTERNAL_ERROR, "ACL_ERROR_RT_INTERNAL_ERROR", "internal error of CANN's runtime", ""},
    {ACL_ERROR_RT_MODEL_EXECUTE, "ACL_ERROR_RT_MODEL_EXECUTE", "a captured graph failed while it ran",
     kOpFault},
    {ACL_ERROR_RT_AICORE_EXCEPTION, "ACL_ERROR_RT_AICORE_EXCEPTION", "an operator failed on the device",
     kOpFault},
    {ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", "waiting for a stream timed out",
     ""},
    {ACL_ERROR_RT_DEVICE_MEM_ERROR, "ACL_ERROR_RT_DEVICE_MEM_ERROR", "the device reported a memory error",
     kDeviceFault},
    {ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR",
     "the device's memory has an uncorrectable error", kDeviceFault},
    {ACLNN_ERR_PARAM_NULLPTR, "ACLNN_ERR_PARAM_NULLPTR", "the operator got no value for an argument it needs",
     ""},
    {ACLNN_ERR_PARAM_INVALID, "ACLNN_ERR_PARAM_INVALID", "the operator does not take these arguments",
     kReadMessage},
    {ACLNN_ERR_RUNTIME_ERROR, "ACLNN_ERR_RUNTIME_ERROR", "the operator could not call CANN's runtime", ""},
    {ACLNN_ERR_INNER, "ACLNN_ERR_INNER", "internal error of the operator", ""},
};

std::string describe(aclError code, const char* call) {
  std::string text = std::string(call) + " failed: ";
  const Meaning* known = std::find_if(std::begin(kMeanings), std::end(kMeanings),
                                      [code](const Meaning& m) { return m.code == code; });
  if (known != std::end(kMeanings)) {
    text += std::string(known->meaning) + " (" + known->name + ", " + std::to_string(code) + ")";
  } else {
    text += "CANN error " + std::to_string(code);
  }
  if (const char* message = api().aclGetRecentErrMsg(); message && *message) {
    text += "\nCANN says: " + std::string(message);
    if (const std::string lines = launched_by(message); !lines.empty()) text += "\nLaunched by " + lines;
  }
  if (known != std::end(kMeanings) && *known->advice) text += "\n" + std::string(known->advice);
  return text;
}

}  // namespace

void raise_error(aclError code, const char* call) {
  throw c10::AcceleratorError({call, __FILE__, __LINE__}, code, describe(code, call));
}

void raise_missing(const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the CANN at ", info().root, " has no function ", name,
                              ". Use a newer CANN, or TORCH_NPU_CANN=host for the bundled software CANN.");
}

}  // namespace torch_npu::cann
