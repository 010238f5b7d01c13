// A driver that is made of counters, and what the allocator's tests share.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>
#include <string>

#include "torch_npu/csrc/memory/driver.h"

namespace torch_npu::memory {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
constexpr size_t kGiB = 1024 * kMiB;

#define EXPECT(condition) TORCH_CHECK(condition, __FILE__, ":", __LINE__)

/// Device memory that is only counted, never touched, unless `real_memory` is set; events that complete on
/// command.
class FakeDriver final : public Driver {
 public:
  explicit FakeDriver(size_t capacity = 4 * kGiB) : capacity(capacity) {}

  size_t capacity;
  bool real_memory = false;
  size_t padding = 0;
  StreamHandle stream = nullptr;
  std::map<void*, size_t> segments;
  std::map<void*, size_t> reserved, mapped;  // expandable segments
  std::atomic<int> live_events{0};
  std::set<StreamHandle> busy_streams;  // events recorded on them do not complete

  size_t used() const {
    size_t sum = 0;
    for (const auto& [ptr, size] : segments) sum += size;
    for (const auto& [ptr, size] : mapped) sum += size;
    return sum;
  }

  c10::DeviceIndex device_count() override { return 2; }
  c10::DeviceIndex current_device() override { return 0; }
  StreamHandle current_stream(c10::DeviceIndex) override { return stream; }
  StreamHandle stream_handle(const c10::Stream& s) override { return reinterpret_cast<void*>(s.id()); }

  void activate(c10::DeviceIndex) override {}

  void* allocate(c10::DeviceIndex, size_t nbytes) override {
    if (used() + nbytes > capacity) return nullptr;
    void* ptr = real_memory ? std::aligned_alloc(2 * kMiB, nbytes) : next_address(nbytes);
    segments.emplace(ptr, nbytes);
    return ptr;
  }
  void release(c10::DeviceIndex, void* ptr) override {
    EXPECT(segments.erase(ptr) == 1);
    if (real_memory) std::free(ptr);
  }
  std::pair<size_t, size_t> memory_info(c10::DeviceIndex) override { return {capacity - used(), capacity}; }
  void copy(void* dest, const void* src, size_t nbytes) override { std::memcpy(dest, src, nbytes); }

  void* reserve_addresses(c10::DeviceIndex, size_t nbytes) override {
    void* ptr = next_address(nbytes);
    reserved.emplace(ptr, nbytes);
    return ptr;
  }
  void release_addresses(c10::DeviceIndex, void* ptr) override {
    EXPECT(mapped.lower_bound(ptr) == mapped.lower_bound(static_cast<char*>(ptr) + reserved.at(ptr)));
    reserved.erase(ptr);
  }
  PhysicalMemory map_memory(c10::DeviceIndex, void* ptr, size_t nbytes) override {
    const auto& [base, size] = *std::prev(reserved.upper_bound(ptr));
    EXPECT(static_cast<char*>(ptr) + nbytes <= static_cast<char*>(base) + size);
    if (used() + nbytes > capacity) return nullptr;
    EXPECT(mapped.emplace(ptr, nbytes).second);
    return ptr;
  }
  void unmap_memory(c10::DeviceIndex, void* ptr, PhysicalMemory memory) override {
    EXPECT(memory == ptr && mapped.erase(ptr) == 1);
  }

  void synchronize(c10::DeviceIndex) override { busy_streams.clear(); }
  Event record_event(c10::DeviceIndex, StreamHandle s) override {
    ++live_events;
    return new StreamHandle(s);
  }
  bool event_completed(Event event) override {
    return !busy_streams.count(*static_cast<StreamHandle*>(event));
  }
  void wait_for_event(Event event) override { busy_streams.erase(*static_cast<StreamHandle*>(event)); }
  void release_event(Event event) override {
    --live_events;
    delete static_cast<StreamHandle*>(event);
  }
  size_t tail_padding() override { return padding; }

 private:
  void* next_address(size_t nbytes) {
    const uintptr_t address = next_;
    next_ += (nbytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    return reinterpret_cast<void*>(address);
  }
  uintptr_t next_ = uintptr_t{1} << 44;
};

inline FakeDriver& global_driver() {
  static FakeDriver driver;
  return driver;
}

inline StreamHandle stream(intptr_t i) { return reinterpret_cast<StreamHandle>(i); }

/// What `f` throws, "" if it does not.
template <typename F>
std::string message_of(F f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define TEST(name) {#name, name}

using Tests = std::map<std::string, void (*)()>;

/// Without arguments lists the tests; with a name runs that one, which throws if it fails.
inline int run(const Tests& tests, int argc, char** argv) {
  if (argc < 2) {
    for (const auto& [name, test] : tests) std::cout << name << "\n";
  } else {
    tests.at(argv[1])();
  }
  return 0;
}

}  // namespace torch_npu::memory
