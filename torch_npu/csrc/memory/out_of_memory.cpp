#include <c10/util/Exception.h>

#include "torch_npu/csrc/memory/device_pool.h"
#include "torch_npu/csrc/memory/sizes.h"

// The one message that tells of a full device or pool.
namespace torch_npu::memory {

using c10::CachingAllocator::format_size;

namespace {

/// What the message tells, collected under the lock.
struct Shortage {
  size_t requested, free, total, allocated, reserved, in_private_pools;
  c10::DeviceIndex device;
  double fraction;
  bool has_reservation = false;
  PoolUsage usage;  // of the VMMemoryPool that should have served the request, if there is one
};

/// Free addresses suffice, but not in one piece; or there are not enough.
std::string state_of_reservation(const Shortage& s) {
  if (!s.has_reservation) return "";
  return c10::str(" The VMMemoryPool in use has ", format_size(s.usage.size), ", of which ",
                  format_size(s.usage.in_use), " is used by ", s.usage.live, " tensors, and ",
                  format_size(s.usage.mapped), " is backed by memory.");
}

std::string advice(const Shortage& s) {
  std::string text = "\nTo try: smaller batches; freeing tensors that are not needed";
  const size_t unallocated = s.reserved - s.allocated;
  if (s.has_reservation && s.usage.size - s.usage.in_use < s.requested) text += "; a larger VMMemoryPool";
  if (s.in_private_pools > 0) text += "; deleting graphs and MemPools that are not needed";
  if (s.fraction < 1) text += "; a larger memory fraction (torch.npu.set_per_process_memory_fraction)";
  if (unallocated >= s.requested && !settings().expandable_segments && !s.has_reservation) {
    text +=
        "; PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, for what is reserved but unallocated would "
        "suffice "
        "if it were in one piece";
  }
  return text + ".";
}

[[noreturn]] void raise(const Shortage& s, const std::string& holders) {
  TORCH_CHECK_WITH(OutOfMemoryError, s.requested < kExabyte,
                   "NPU out of memory. Tried to allocate more than 1EB memory.");
  const std::string fraction =
      s.fraction < 1 ? c10::str(" This process may use ",
                                format_size(static_cast<uint64_t>(s.fraction * static_cast<double>(s.total))),
                                " (memory fraction ", s.fraction, ").")
                     : "";
  const std::string& text = settings().text;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", format_size(s.requested), ". Device ",
      static_cast<int>(s.device), " has a total capacity of ", format_size(s.total), " of which ",
      format_size(s.free), " is free.", fraction, " Of the memory in use, ", format_size(s.allocated),
      " is allocated by PyTorch and ", format_size(s.reserved - s.allocated),
      " is reserved by PyTorch but unallocated; graphs and MemPools have ", format_size(s.in_private_pools),
      " (settings: PYTORCH_NPU_ALLOC_CONF=", text.empty() ? "unset" : text, ").", state_of_reservation(s),
      holders.empty() ? "" : "\nLargest holders:", holders, advice(s));
}

}  // namespace

/// The live allocations of an arena; null: of all.
std::vector<Holding> DevicePool::holdings(const Arena* arena) {
  std::vector<Holding> result;
  for (const auto& [address, segment] : segments_) {
    if (arena && &segment.head->pool->arena != arena) continue;
    for (const Block* block = segment.head; block; block = block->next) {
      if (block->allocated) result.push_back({block->size, block->context});
    }
  }
  return result;
}

void DevicePool::raise_out_of_memory(std::unique_lock<std::mutex>& lock, size_t requested, Arena& arena) {
  ++stats_.num_ooms;
  Shortage s{};
  s.requested = requested;
  std::tie(s.free, s.total) = driver_.memory_info(device_);
  s.allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
  s.reserved = reserved_;
  s.device = device_;
  s.fraction = fraction_;
  s.has_reservation = arena.reservation != nullptr;
  if (s.has_reservation) s.usage = usage_of(arena);
  for (const Arena* other : arenas()) {
    if (!other->is_private() || other->reservation) continue;
    s.in_private_pools += static_cast<size_t>(stats_.reserved_bytes_by_private_pools[other->id][0].current);
  }
  history_.record(History::Event::Action::OOM, device_, reinterpret_cast<void*>(s.free), requested, nullptr,
                  arena.id, context_);
  std::vector<Holding> live = requested < kExabyte ? holdings(nullptr) : std::vector<Holding>();
  lock.unlock();  // before Python is asked for lines

  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(requested), static_cast<int64_t>(s.allocated),
                                   static_cast<int64_t>(s.reserved),
                                   c10::Device(c10::DeviceType::PrivateUse1, device_));
  raise(s, largest_holders(std::move(live)));
}

}  // namespace torch_npu::memory
