#include "torch_npu/csrc/device/generator.h"

#include <ATen/Utils.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <mutex>
#include <optional>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu {
namespace {

constexpr size_t kSeedBytes = sizeof(uint64_t);
constexpr size_t kOffsetBytes = sizeof(int64_t);
constexpr uint64_t kNumbersPerRound = 4;  // Philox 4x32

uint64_t round_up(uint64_t numbers) {
  return (numbers + kNumbersPerRound - 1) / kNumbersPerRound * kNumbersPerRound;
}

/// The default generators, made at first use; the seed that torch.manual_seed gave for those not yet made.
struct DefaultGenerators {
  std::mutex mutex;
  std::array<std::optional<at::Generator>, device::kMaxDevices> generators;
  std::optional<uint64_t> seed;
};

/// The generator's part in the graph that this thread's work is recorded into; null if the work runs.
graph::RecordedRandom* recorded_random(NPUGeneratorImpl& generator) {
  graph::Recording* recording = graph::current_recording(generator.device().index());
  if (recording == nullptr) [[likely]]
    return nullptr;
  const auto self = c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(&generator);
  return &recording->random(at::Generator(self));
}

DefaultGenerators& defaults() {
  static auto* instance = new DefaultGenerators;  // never destroyed: used until the process ends
  return *instance;
}

}  // namespace

NPUGeneratorImpl::NPUGeneratorImpl(c10::DeviceIndex index, uint64_t seed)
    : GeneratorImpl({c10::DeviceType::PrivateUse1, index < 0 ? device::current_device() : index},
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

uint64_t& NPUGeneratorImpl::position() {
  graph::RecordedRandom* recorded = recorded_random(*this);
  return recorded == nullptr ? offset_ : recorded->offset;
}

void NPUGeneratorImpl::set_current_seed(uint64_t seed) {
  if (seed != seed_) {
    TORCH_CHECK(
        graph::current_recording(device().index()) == nullptr,
        "NPUGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
        "as the original seed. The seed is ",
        seed_, ", the new one ", seed, ": seed the generator before the capture or between replays.");
  }
  seed_ = seed;
  position() = 0;
}

uint64_t NPUGeneratorImpl::current_seed() const { return seed_; }

uint64_t NPUGeneratorImpl::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return seed_;
}

void NPUGeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % kNumbersPerRound == 0, "offset must be a multiple of 4, got ", offset);
  position() = offset;
}

uint64_t NPUGeneratorImpl::get_offset() const { return const_cast<NPUGeneratorImpl*>(this)->position(); }

c10::intrusive_ptr<c10::TensorImpl> NPUGeneratorImpl::get_state() const {
  at::Tensor state =
      at::empty({static_cast<int64_t>(kSeedBytes + kOffsetBytes)}, at::TensorOptions(at::kByte));
  auto* bytes = state.mutable_data_ptr<uint8_t>();
  const uint64_t offset = get_offset();
  auto& self = const_cast<NPUGeneratorImpl&>(*this);
  if (graph::RecordedRandom* recorded = recorded_random(self)) recorded->read.insert(offset);
  std::memcpy(bytes, &seed_, kSeedBytes);
  std::memcpy(bytes + kSeedBytes, &offset, kOffsetBytes);
  return state.getIntrusivePtr();
}

void NPUGeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  const auto size = static_cast<size_t>(state.numel());
  TORCH_CHECK(size == kSeedBytes || size == kSeedBytes + kOffsetBytes,
              "the state of an npu generator is 16 bytes (seed, offset) or 8 (seed), got ", size);
  const auto* bytes = state.data_dtype_initialized<uint8_t>();
  uint64_t seed = 0;
  uint64_t offset = 0;
  std::memcpy(&seed, bytes, kSeedBytes);
  if (size > kSeedBytes) std::memcpy(&offset, bytes + kSeedBytes, kOffsetBytes);
  if (const graph::RecordedRandom* recorded = recorded_random(*this)) {
    TORCH_CHECK(seed != seed_ || recorded->read.contains(offset), "the generator's state with offset ",
                offset,
                " cannot be set in this capture: it was not read in it, and inside of a graph offsets count "
                "from where each replay begins. Read the state in the captured region, or set it before.");
  }
  set_current_seed(seed);
  set_offset(offset);
}

PhiloxInputs NPUGeneratorImpl::philox_inputs(uint64_t increment) {
  graph::RecordedRandom* recorded = recorded_random(*this);
  if (recorded == nullptr) [[likely]] {
    const auto [seed, offset] = philox_engine_inputs(increment);
    return {seed, offset, {}, {}};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t offset = recorded->offset;
  recorded->offset += round_up(increment);
  return {seed_, offset, recorded->seed(), recorded->start()};
}

std::pair<uint64_t, uint64_t> NPUGeneratorImpl::philox_engine_inputs(uint64_t increment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t offset = offset_;
  offset_ += round_up(increment);
  return {seed_, offset};
}

NPUGeneratorImpl* NPUGeneratorImpl::clone_impl() const {
  auto* copy = new NPUGeneratorImpl(device().index(), seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  if (index < 0) index = device::current_device();
  auto& all = defaults();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& slot = all.generators.at(index);
  if (!slot) {
    device::check_index(index);
    const uint64_t seed = all.seed ? *all.seed : c10::detail::getNonDeterministicRandom(true);
    slot = at::make_generator<NPUGeneratorImpl>(index, seed);
  }
  return *slot;
}

NPUGeneratorImpl& generator_or_default(const std::optional<at::Generator>& generator,
                                       c10::DeviceIndex index) {
  const at::Generator& chosen = generator && generator->defined() ? *generator : default_generator(index);
  TORCH_CHECK(chosen.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'npu' device type for generator but found '", chosen.device().type(), "'");
  return *chosen.get<NPUGeneratorImpl>();
}

void seed_default_generators(uint64_t seed) {
  auto& all = defaults();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.seed = seed;
  for (auto& generator : all.generators) {
    if (!generator) continue;
    std::lock_guard<std::mutex> generator_lock(generator->mutex());
    generator->set_current_seed(seed);
  }
}

}  // namespace torch_npu
