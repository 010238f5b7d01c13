// A second opinion on the allocator's statistics, and random sizes to try it with.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>

#include "tests/cpp/fake_driver.h"
#include "torch_npu/csrc/memory/device_pool.h"

namespace torch_npu::memory {

/// The statistics that must hold for a set of live and pending blocks, kept by plain sums.
class Model {
 public:
  struct Counter {
    int64_t current = 0, peak = 0, allocated = 0, freed = 0;
    void add(int64_t amount) {
      current += amount;
      (amount > 0 ? allocated : freed) += std::abs(amount);
      peak = std::max(peak, current);
    }
  };
  struct Counters {
    Counter blocks, bytes, active, active_bytes, requested;
  };

  void allocated(const Block& block, size_t requested) {
    const auto begin = reinterpret_cast<uintptr_t>(block.ptr);
    const auto [at, inserted] = extents_.emplace(begin, begin + block.size);
    EXPECT(inserted);
    EXPECT(at == extents_.begin() || std::prev(at)->second <= begin);
    EXPECT(std::next(at) == extents_.end() || std::next(at)->first >= begin + block.size);
    EXPECT(begin % 512 == 0 && block.size % 512 == 0 && block.size >= requested);
    for (Counters* c : counters(block)) {
      c->blocks.add(1);
      c->bytes.add(block.size);
      c->active.add(1);
      c->active_bytes.add(block.size);
      c->requested.add(requested);
    }
  }
  void freed(const Block& block) {
    for (Counters* c : counters(block)) {
      c->blocks.add(-1);
      c->bytes.add(-static_cast<int64_t>(block.size));
    }
  }
  void reusable(bool is_small, void* ptr, size_t size, size_t requested) {
    EXPECT(extents_.erase(reinterpret_cast<uintptr_t>(ptr)) == 1);
    for (Counters* c : {&all_[0], &all_[is_small ? 1 : 2]}) {
      c->active.add(-1);
      c->active_bytes.add(-static_cast<int64_t>(size));
      c->requested.add(-static_cast<int64_t>(requested));
    }
  }

  void check(DevicePool& pool, const FakeDriver& driver) const {
    const auto stats = pool.stats();
    for (size_t i = 0; i < 3; ++i) {
      same(stats.allocation[i], all_[i].blocks);
      same(stats.allocated_bytes[i], all_[i].bytes);
      same(stats.active[i], all_[i].active);
      same(stats.active_bytes[i], all_[i].active_bytes);
      same(stats.requested_bytes[i], all_[i].requested);
    }
    EXPECT(stats.segment[0].current == static_cast<int64_t>(pool.snapshot().size()));
    EXPECT(stats.reserved_bytes[0].current == static_cast<int64_t>(driver.used()));
    if (driver.reserved.empty()) {
      EXPECT(stats.segment[0].current == static_cast<int64_t>(driver.segments.size()));
      EXPECT(stats.num_device_alloc - stats.num_device_free == stats.segment[0].current);
    }
    check_snapshot(pool, stats);
  }

 private:
  static void same(const c10::CachingAllocator::Stat& stat, const Counter& counter) {
    EXPECT(stat.current == counter.current && stat.peak == counter.peak &&
           stat.allocated == counter.allocated && stat.freed == counter.freed);
  }

  /// Segments are tiled by blocks without gap; two free neighbours would not have been joined.
  static void check_snapshot(DevicePool& pool, const c10::CachingDeviceAllocator::DeviceStats& stats) {
    int64_t inactive = 0, inactive_bytes = 0, active_bytes = 0;
    for (const auto& segment : pool.snapshot()) {
      size_t sum = 0;
      bool previous_free = false;
      for (const auto& block : segment.blocks) {
        sum += block.size;
        EXPECT(!(previous_free && !block.active));
        previous_free = !block.active;
        if (block.active) {
          active_bytes += block.size;
        } else if (segment.blocks.size() > 1) {
          ++inactive;
          inactive_bytes += block.size;
        }
      }
      EXPECT(sum == segment.total_size);
    }
    EXPECT(stats.inactive_split[0].current == inactive);
    EXPECT(stats.inactive_split_bytes[0].current == inactive_bytes);
    EXPECT(stats.active_bytes[0].current == active_bytes);
    EXPECT(stats.inactive_split[0].current ==
           stats.inactive_split[1].current + stats.inactive_split[2].current);
    EXPECT(stats.reserved_bytes[0].current ==
           stats.reserved_bytes[1].current + stats.reserved_bytes[2].current);
  }

  std::array<Counters*, 2> counters(const Block& block) { return {&all_[0], &all_[block.is_small ? 1 : 2]}; }

  std::array<Counters, 3> all_;  // aggregate, small pool, large pool
  std::map<uintptr_t, uintptr_t> extents_;
};

inline size_t random_size(std::mt19937& rng) {
  const int magnitude =
      std::uniform_int_distribution(0, 25)(rng);  // up to 32 MiB, small sizes as likely as large
  return std::uniform_int_distribution<size_t>(1, size_t{1} << magnitude)(rng);
}

}  // namespace torch_npu::memory
