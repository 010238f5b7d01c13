#include "torch_npu/csrc/graph/recording.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/python_line.h"
#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::graph {
namespace {

struct Active {
  std::mutex mutex;
  std::vector<std::pair<aclmdlRI, Recording*>> recordings;
};

Active& active() {
  static auto* instance = new Active;  // outlives static destruction
  return *instance;
}

}  // namespace

Recording::Recording(c10::DeviceIndex device, c10::MempoolId_t pool)
    : device(device), pool(pool), begin_line(python_line()) {}

Recording::~Recording() {
  for (const auto& [block, kept] : kept_blocks_) {
    if (kept) memory::caching_allocator().unpin(block);
  }
}

void Recording::keep(const c10::Storage& storage) {
  if (storage.nbytes() == 0) return;
  memory::Block* block = memory::block_of(storage.data_ptr());
  const std::lock_guard lock(mutex_);
  if (block == nullptr) {
    const auto same = [&](const c10::Storage& kept) { return kept.is_alias_of(storage); };
    if (std::none_of(kept_storages_.begin(), kept_storages_.end(), same)) kept_storages_.push_back(storage);
    return;
  }
  const auto [found, is_new] = kept_blocks_.try_emplace(block, false);
  if (is_new) found->second = memory::caching_allocator().pin_unless_in(pool, block);
}

void Recording::borrow(const c10::Storage& storage) {
  memory::Block* block = storage.nbytes() == 0 ? nullptr : memory::block_of(storage.data_ptr());
  const std::lock_guard lock(mutex_);
  if (block != nullptr) kept_blocks_.try_emplace(block, false);
}

void Recording::keep(std::shared_ptr<void> object) {
  const std::lock_guard lock(mutex_);
  kept_objects_.push_back(std::move(object));
}

RecordedRandom& Recording::random(const at::Generator& generator) {
  const std::lock_guard lock(mutex_);
  RecordedRandom& random = randoms_[generator.unsafeGetGeneratorImpl()];
  if (!random.generator.defined()) {
    random.generator = generator;
    // Filled before the graph runs, so that it may not lie in memory which the graph uses for something else
    // before it draws: the default stream's memory is no graph's.
    const c10::StreamGuard outside(device::default_stream(device));
    const auto on = at::Device(at::kPrivateUse1, device);
    random.seed_and_offset = new_tensor({2}, {}, at::TensorOptions().device(on).dtype(at::kLong));
  }
  return random;
}

void Recording::continue_random_numbers_of(Recording& earlier) {
  const std::lock_guard lock(mutex_);
  for (auto& [impl, random] : earlier.randoms_) {
    RecordedRandom& own = randoms_[impl] = random;
    own.continued = &random;
  }
}

void Recording::reserve_random_numbers() {
  for (auto& [impl, random] : randoms_) {
    if (random.continued == nullptr || random.offset <= random.continued->offset) continue;
    random.continued->later = std::max(random.continued->later, random.offset - random.continued->offset);
  }
}

void Recording::advance_generators() {
  for (auto& [impl, random] : randoms_) {
    if (random.continued != nullptr) continue;
    const auto inputs =
        static_cast<NPUGeneratorImpl*>(impl)->philox_engine_inputs(random.offset + random.later);
    const std::array<uint64_t, 2> values{inputs.first, inputs.second};
    // Ordinary memory: the driver has read it when the call returns.
    cann::api().aclrtMemcpyAsync.checked(random.seed_and_offset.data_ptr(), sizeof values, values.data(),
                                         sizeof values, ACL_MEMCPY_HOST_TO_DEVICE,
                                         device::current_stream_handle(device));
  }
}

namespace detail {

std::atomic<int> active_captures{0};

Recording* current_recording(c10::DeviceIndex index) {
  return recording_on(device::current_stream_handle(index < 0 ? device::current_device() : index));
}

Recording* recording_on(aclrtStream stream) {
  aclmdlRICaptureStatus status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  aclmdlRI model = nullptr;
  cann::api().aclmdlRICaptureGetInfo.checked(stream, &status, &model);
  if (status == ACL_MODEL_RI_CAPTURE_STATUS_NONE) return nullptr;
  const std::lock_guard lock(active().mutex);
  for (const auto& [of, recording] : active().recordings) {
    if (of == model) return recording;
  }
  return nullptr;  // a capture that other code began
}

void refuse(const Recording& recording, const char* what, const char* why) {
  const std::string& line = python_line();
  const std::string where =
      line.empty() ? "in the backward pass of work whose capture began at " + recording.begin_line
                   : "at " + line;
  TORCH_CHECK(false, what, " cannot be recorded into a graph: ", why, ". It was called ", where,
              ". Keep it out of the captured region.");
}

}  // namespace detail

void begin(aclmdlRI model, Recording& recording) {
  const std::lock_guard lock(active().mutex);
  active().recordings.emplace_back(model, &recording);
  detail::active_captures.fetch_add(1);
}

void end(Recording& recording) {
  const std::lock_guard lock(active().mutex);
  const auto erased =
      std::erase_if(active().recordings, [&](const auto& r) { return r.second == &recording; });
  detail::active_captures.fetch_sub(static_cast<int>(erased));
}

}  // namespace torch_npu::graph
