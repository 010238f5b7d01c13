#include "torch_npu/csrc/graph/npu_graph.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/activity.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/mempool.h"

namespace torch_npu::graph {
namespace {

aclmdlRICaptureMode to_acl(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal:
      return ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL;
    case at::GraphCaptureMode::Relaxed:
      return ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
    default:
      return ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
  }
}

aclmdlRI model_of(aclrtStream stream) {
  aclmdlRICaptureStatus status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  aclmdlRI model = nullptr;
  cann::api().aclmdlRICaptureGetInfo.checked(stream, &status, &model);
  return status == ACL_MODEL_RI_CAPTURE_STATUS_NONE ? nullptr : model;
}

/// While it lives, this thread may make calls that captures of other threads forbid.
class RelaxedCaptureMode {
 public:
  RelaxedCaptureMode() { exchange(); }
  ~RelaxedCaptureMode() { exchange(); }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;

 private:
  void exchange() {
    const aclError code = cann::api().aclmdlRICaptureThreadExchangeMode(&mode_);
    if (code != ACL_SUCCESS) TORCH_WARN("aclmdlRICaptureThreadExchangeMode failed with ", code);
  }

  aclmdlRICaptureMode mode_ = ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
};

}  // namespace

c10::MempoolId_t pool_handle() { return memory::new_pool_id(); }

NPUGraph::~NPUGraph() {
  if (!device::in_bad_fork()) release();
}

void NPUGraph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  TORCH_CHECK(recording_ == nullptr,
              "This NPUGraph instance already owns a captured graph. To capture a new graph, create a new "
              "instance, or call reset() before.");
  const auto index = device::current_device();
  const c10::Stream stream = device::current_stream(index);
  TORCH_CHECK(stream != device::default_stream(index),
              "NPU graphs must be captured on a non-default stream (they can be replayed on any): use "
              "torch.npu.graph, or `with torch.npu.stream(torch.npu.Stream()):` around the capture.");
  TORCH_CHECK(pool.first == 0 || pool.second == 0, "(", pool.first, ", ", pool.second,
              ") is no memory pool: pass graph_pool_handle() or another graph's pool()");
  if (pool == c10::MempoolId_t{0, 0}) pool = memory::new_pool_id();

  auto& allocator = memory::caching_allocator();
  const aclrtStream handle = device::current_stream_handle(index);
  allocator.begin_capture(index);
  if (const aclError code = cann::api().aclmdlRICaptureBegin(handle, to_acl(mode)); code != ACL_SUCCESS) {
    allocator.end_capture(index);
    cann::check(code, "aclmdlRICaptureBegin");
  }
  capturing_ = stream;
  recording_ = std::make_unique<Recording>(index, pool);
  const aclmdlRI model = model_of(handle);
  begin(model, *recording_);
  try {
    allocator.begin_allocate_to_pool(index, pool,
                                     [model](memory::StreamHandle s) { return model_of(s) == model; });
    pool_before_ = allocator.pool_bytes(index, pool, /*restart_peak=*/true);
  } catch (...) {
    abandon();
    throw;
  }
}

/// Ends the capture on the stream and everything that goes with it; null if CANN refuses.
aclmdlRI NPUGraph::end_model(c10::Stream stream) {
  const aclrtStream handle = device::stream_handle(stream);
  device::activate(stream.device_index());
  aclmdlRI model = nullptr;
  const aclError code = cann::api().aclmdlRICaptureEnd(handle, &model);
  // It goes on if another thread must end it.
  if (code != ACL_SUCCESS && model_of(handle) != nullptr) cann::check(code, "aclmdlRICaptureEnd");
  capturing_.reset();
  end(*recording_);
  auto& allocator = memory::caching_allocator();
  const auto used = allocator.pool_bytes(recording_->device, recording_->pool, /*restart_peak=*/false);
  memory_ = {used.peak - pool_before_.current, used.current - pool_before_.current,
             used.allocated - pool_before_.allocated};
  allocator.end_allocate_to_pool(recording_->device, recording_->pool);
  allocator.end_capture(recording_->device);
  if (code != ACL_SUCCESS) {
    try {
      cann::check(code, "aclmdlRICaptureEnd");
    } catch (...) {
      release();
      throw;
    }
  }
  return model;
}

void NPUGraph::capture_end() {
  TORCH_CHECK(capturing_.has_value(), "capture_end() without a capture: call capture_begin() before");
  TORCH_CHECK(device::current_stream(recording_->device) == *capturing_,
              "Capture must end on the same stream it began on.");
  model_ = end_model(*capturing_);
  recording_->reserve_random_numbers();
}

void NPUGraph::continue_random_numbers_of(NPUGraph& earlier) {
  TORCH_CHECK(capturing_.has_value(), "continue_random_numbers_of() is called during the capture");
  earlier.captured("replay");
  recording_->continue_random_numbers_of(*earlier.recording_);
}

void NPUGraph::abandon() {
  // The thread that gives up may be another one than that which began.
  const RelaxedCaptureMode relaxed;
  try {
    model_ = end_model(*capturing_);
  } catch (const c10::Error&) {
    // What was recorded is thrown away: that it is not complete does not matter.
    if (capturing_.has_value()) throw;
  }
  release();
}

void NPUGraph::instantiate() { captured("instantiate"); }

const Recording& NPUGraph::captured(const char* caller) const {
  TORCH_CHECK(model_ != nullptr, "Called NPUGraph::", caller, " without a preceding successful capture.");
  return *recording_;
}

void NPUGraph::replay() {
  const auto index = captured("replay").device;
  const c10::DeviceGuard on(c10::Device(c10::DeviceType::PrivateUse1, index));
  require_no_recording("NPUGraph.replay", "a graph cannot be part of another one", index);
  recording_->advance_generators();
  replayed_ = true;
  const aclrtStream stream = device::current_stream_handle(index);
  const device::ActivityScope activity("aclmdlRIExecuteAsync", index, stream);
  cann::api().aclmdlRIExecuteAsync.checked(model_, stream);
}

void NPUGraph::reset() {
  if (capturing_.has_value()) return abandon();
  release();
}

void NPUGraph::release() noexcept {
  if (recording_ == nullptr) return;
  try {
    if (capturing_.has_value()) return abandon();
    const auto index = recording_->device;
    if (model_ != nullptr) {
      const c10::DeviceGuard on(c10::Device(c10::DeviceType::PrivateUse1, index));
      const RelaxedCaptureMode relaxed;
      // A replay may be queued still, and uses the memory that goes now. Not device::synchronize, which
      // refuses during a capture: the graph may be a piece of garbage that is collected in the midst of one.
      device::activate(index);
      if (std::exchange(replayed_, false)) cann::api().aclrtSynchronizeDevice.checked();
      cann::api().aclmdlRIDestroy.checked(std::exchange(model_, nullptr));
    }
    memory::caching_allocator().release_pool(index, recording_->pool);
    recording_.reset();
  } catch (const std::exception& error) {
    TORCH_WARN("could not release an npu graph: ", error.what());
  }
}

c10::MempoolId_t NPUGraph::pool() const {
  TORCH_CHECK(recording_ != nullptr, "Called NPUGraph::pool() without a preceding successful capture.");
  return recording_->pool;
}

void NPUGraph::debug_dump(const std::string& path) {
  captured("debug_dump");
  device::activate(recording_->device);
  cann::api().aclmdlRIDebugJsonPrint.checked(model_, path.c_str(), 0);
}

size_t NPUGraph::node_count() const { return recording_ == nullptr ? 0 : recording_->nodes(); }

void NPUGraph::register_generator_state(const at::Generator& generator) {
  TORCH_CHECK(generator.defined() && generator.device().type() == c10::DeviceType::PrivateUse1,
              "expected a generator of an npu device");
}

}  // namespace torch_npu::graph

namespace at {

REGISTER_GRAPH_IMPL(NPU, torch_npu::graph::NPUGraph)

}  // namespace at
