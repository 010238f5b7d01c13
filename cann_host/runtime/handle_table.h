#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

#include "error.h"

namespace cann_host {

/// Owner of the objects behind one kind of handle. They live in one range of addresses that is never given
/// back, so that any pointer a client passes can be told from a live handle in a few nanoseconds and without
/// reading foreign memory. A table is never destroyed: clients call from destructors that run at exit.
template <class T, size_t capacity>
class HandleTable {
 public:
  explicit constexpr HandleTable(const char* kind) : kind_(kind) {}

  template <class... Arguments>
  T* create(Arguments&&... arguments) {
    Slot* slot = take_slot();
    try {
      T* object = new (slot->storage) T(std::forward<Arguments>(arguments)...);
      slot->live.store(true, std::memory_order_release);
      return object;
    } catch (...) {
      give_slot(slot);
      throw;
    }
  }

  /// Null if the handle is not, or no longer, one of this table.
  T* find(const void* handle) const noexcept {
    uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - base_.load(std::memory_order_acquire);
    if (offset >= used_bytes_.load(std::memory_order_acquire) || offset % sizeof(Slot)) return nullptr;
    auto* slot = static_cast<Slot*>(const_cast<void*>(handle));
    return slot->live.load(std::memory_order_acquire) ? std::launder(reinterpret_cast<T*>(slot->storage))
                                                      : nullptr;
  }

  /// The object, or an error that names the argument.
  T& get(const void* handle, const char* argument) const {
    if (T* object = find(handle)) return *object;
    require_pointer(handle, argument);
    refuse(ACL_ERROR_RT_INVALID_HANDLE, "%s=%p is not %s, or was destroyed", argument, handle, kind_);
  }

  void destroy(T& object) {
    auto* slot = reinterpret_cast<Slot*>(&object);
    slot->live.store(false, std::memory_order_release);
    object.~T();
    give_slot(slot);
  }

  template <class Function>
  void for_each(Function&& function) {
    std::lock_guard lock(mutex_);
    auto* slots = reinterpret_cast<Slot*>(base_.load(std::memory_order_relaxed));
    for (size_t i = 0; i < used_; ++i) {
      if (slots[i].live.load(std::memory_order_acquire)) function(*reinterpret_cast<T*>(slots[i].storage));
    }
  }

 private:
  struct Slot {
    alignas(T) std::byte storage[sizeof(T)];  // first, so that a handle is the address of its slot
    std::atomic<bool> live;
    Slot* next_free;
  };

  Slot* take_slot() {
    std::lock_guard lock(mutex_);
    if (free_) return std::exchange(free_, free_->next_free);
    if (used_ == capacity)
      refuse(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "%zu exist: no room for %s; destroy some", used_, kind_);
    if (!base_.load(std::memory_order_relaxed)) {
      void* range = mmap(nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (range == MAP_FAILED) throw std::bad_alloc();
      base_.store(reinterpret_cast<uintptr_t>(range), std::memory_order_release);
    }
    auto* slot = reinterpret_cast<Slot*>(base_.load(std::memory_order_relaxed)) + used_++;
    used_bytes_.store(used_ * sizeof(Slot), std::memory_order_release);
    return slot;
  }

  void give_slot(Slot* slot) {
    std::lock_guard lock(mutex_);
    slot->next_free = std::exchange(free_, slot);
  }

  const char* kind_;
  std::atomic<uintptr_t> base_{0};
  std::atomic<size_t> used_bytes_{0};
  size_t used_ = 0;
  std::mutex mutex_;
  Slot* free_ = nullptr;
};

}  // namespace cann_host
