#include "cann_host/opapi/placement.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <array>

namespace cann_host {
namespace {

struct Slot {
  void* data;
  size_t bytes;
};

constexpr size_t kMaxSlots = 8;
thread_local std::array<Slot, kMaxSlots> t_slots;
thread_local size_t t_slot_count = 0;

void leave_memory_alone(void*) {}

/// The CPU allocator of the process, which first looks whether a waiting output has exactly the size asked
/// for.
class PlacingAllocator final : public c10::Allocator {
 public:
  explicit PlacingAllocator(c10::Allocator* next) : next_(next) {}

  c10::DataPtr allocate(size_t bytes) override {
    for (size_t i = 0; i < t_slot_count; ++i) {
      if (t_slots[i].bytes != bytes) continue;
      void* data = t_slots[i].data;
      t_slots[i] = t_slots[--t_slot_count];
      return {data, data, &leave_memory_alone, c10::Device(c10::DeviceType::CPU)};
    }
    return next_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return next_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    next_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* next_;
};

const bool g_installed = [] {
  // Above torch's own (0), below an adapter's override.
  constexpr uint8_t kPriority = 100;
  static PlacingAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, kPriority);
  return true;
}();

}  // namespace

void Placement::offer(std::initializer_list<at::Tensor> outputs) {
  t_slot_count = 0;
  for (const auto& out : outputs) {
    if (out.defined() && out.numel() > 0 && out.is_non_overlapping_and_dense() && t_slot_count < kMaxSlots) {
      t_slots[t_slot_count++] = {out.data_ptr(), out.nbytes()};
    }
  }
}

void Placement::withdraw(const at::Tensor& input) {
  if (t_slot_count == 0 || !input.defined() || input.numel() == 0) return;
  int64_t last = 0;  // of the elements from the first one; strides of CANN are not negative
  for (int64_t d = 0; d < input.dim(); ++d) last += (input.size(d) - 1) * input.stride(d);
  const auto* begin = static_cast<const char*>(input.const_data_ptr());
  const auto* end = begin + (last + 1) * static_cast<int64_t>(input.element_size());
  for (size_t i = 0; i < t_slot_count;) {
    const auto* data = static_cast<const char*>(t_slots[i].data);
    if (data < end && begin < data + t_slots[i].bytes) {
      t_slots[i] = t_slots[--t_slot_count];
    } else {
      ++i;
    }
  }
}

Placement::~Placement() { t_slot_count = 0; }

void assign(const at::Tensor& out, const at::Tensor& result) {
  if (result.data_ptr() != out.data_ptr() || out.numel() == 0) {
    out.copy_(result);
  } else if (result.strides() != out.strides() || result.scalar_type() != out.scalar_type()) {
    out.copy_(
        result.clone());  // same memory, other layout: an in-place permutation would read what it overwrote
  }
}

void assign(const std::optional<at::Tensor>& out, const at::Tensor& result) {
  if (out.has_value() && out->defined()) assign(*out, result);
}

}  // namespace cann_host
