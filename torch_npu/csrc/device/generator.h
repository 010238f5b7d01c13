#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GeneratorImpl.h>

#include <utility>

namespace torch_npu {

/// Where the random numbers of one operator begin. In eager mode `seed` and `offset` are all. While the
/// operator is recorded into a graph, the two tensors are defined: it reads the seed and the offset of the
/// graph's begin from them when it runs, and adds `offset`.
struct PhiloxInputs {
  uint64_t seed = 0;
  uint64_t offset = 0;
  at::Tensor seed_tensor;
  at::Tensor offset_tensor;

  bool recorded() const { return seed_tensor.defined(); }
};

/// Counter-based random numbers (Philox): a draw is a function of (seed, offset), and a kernel that needs n
/// numbers per thread takes the current pair and moves the offset on. get_state() is 16 bytes, as CUDA's:
/// seed, offset.
///
/// While this thread's work is recorded into a graph, the offset is the one within the graph: it starts at 0,
/// can be read and set (so that activation checkpointing repeats its random numbers), and counts for the
/// graph only; the seed cannot be changed. Each replay then draws from where the generator is, and moves it
/// on.
class NPUGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit NPUGeneratorImpl(c10::DeviceIndex device = -1, uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;  // also rewinds the offset to 0
  uint64_t current_seed() const override;
  uint64_t seed() override;  // draws a new seed from the system

  /// In units of one 32-bit number; must be a multiple of 4, as one Philox round yields four.
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;

  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  /// Takes (seed, offset) for one launch and advances the offset by `increment`, rounded up to a multiple
  /// of 4. Locks the generator: call it without holding mutex_.
  PhiloxInputs philox_inputs(uint64_t increment);

  /// The same in numbers, which work that is recorded must not depend on: for work that runs now.
  std::pair<uint64_t, uint64_t> philox_engine_inputs(uint64_t increment);

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

 private:
  NPUGeneratorImpl* clone_impl() const override;
  /// The offset that counts: of the generator, or of its part in the graph that is being recorded.
  uint64_t& position();

  uint64_t seed_;
  uint64_t offset_ = 0;
};

/// The generator that ops without a `generator` argument use; -1 is the current device. Makes no device
/// contact.
const at::Generator& default_generator(c10::DeviceIndex index = -1);

/// The generator an op was given, or its device's default one.
NPUGeneratorImpl& generator_or_default(const std::optional<at::Generator>& generator, c10::DeviceIndex index);

/// Seeds the default generators of all devices, also of those that nobody has used yet.
void seed_default_generators(uint64_t seed);

}  // namespace torch_npu
