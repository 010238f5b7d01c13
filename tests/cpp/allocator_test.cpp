// The caching allocator without a device. `allocator_test NAME` runs one test, without NAME it lists them;
// `allocator_test bench` prints nanoseconds.

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "tests/cpp/fake_driver.h"
#include "tests/cpp/model.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/host_alias.h"

namespace torch_npu::memory {
namespace {

void run_against_the_model() {
  FakeDriver driver;
  driver.capacity = 64 * kGiB;
  DevicePool pool(0, driver);
  Model model;
  std::mt19937 rng(1);
  std::vector<std::pair<Block*, size_t>> live;
  for (int step = 0; step < 1'000'000; ++step) {
    const bool grow = live.size() < 50 || (live.size() < 1500 && rng() % 2);
    if (grow) {
      const size_t nbytes = random_size(rng);
      Block* block = pool.allocate(nbytes, stream(rng() % 4));
      EXPECT(block->requested_size == nbytes && block->allocated);
      model.allocated(*block, nbytes);
      live.emplace_back(block, nbytes);
    } else {
      std::swap(live[rng() % live.size()], live.back());
      const auto [block, nbytes] = live.back();
      live.pop_back();
      model.freed(*block);
      model.reusable(block->is_small, block->ptr, block->size, nbytes);
      pool.free(block);
    }
    if (step % 20'000 == 0) {
      if (step % 100'000 == 0) pool.empty_cache();
      model.check(pool, driver);
    }
  }
  for (const auto& [block, nbytes] : live) {
    model.freed(*block);
    model.reusable(block->is_small, block->ptr, block->size, nbytes);
    pool.free(block);
  }
  model.check(pool, driver);
  pool.empty_cache();
  EXPECT(driver.used() == 0 && driver.reserved.empty());
}

void random_blocks_match_the_model() { run_against_the_model(); }

void random_blocks_in_expandable_segments() {
  set_settings("expandable_segments:True");
  run_against_the_model();
  set_settings("");
}

void an_expandable_segment_grows_in_place() {
  set_settings("expandable_segments:True");
  FakeDriver driver;
  DevicePool pool(0, driver);
  pool.free(pool.allocate(60 * kMiB, nullptr));
  EXPECT(driver.used() == 60 * kMiB);
  Block* block = pool.allocate(100 * kMiB, nullptr);  // the free 60 MiB and 40 behind them
  EXPECT(driver.used() == 100 * kMiB && driver.reserved.size() == 1 && pool.snapshot().size() == 1);
  Block* second = pool.allocate(100 * kMiB, nullptr);
  pool.free(block);
  pool.empty_cache();  // leaves a hole before the second block
  EXPECT(driver.used() == 100 * kMiB && pool.stats().segment[0].current == 1);
  EXPECT(pool.allocate(40 * kMiB, nullptr)->ptr == block->ptr);
  EXPECT(pool.stats().segment[0].current == 2);
  pool.free(second);
  set_settings("");
}

void fragmented_memory_suffices_for_a_large_block() {
  for (const bool expandable : {false, true}) {
    set_settings(expandable ? "expandable_segments:True" : "");
    FakeDriver driver;
    driver.capacity = kGiB;
    DevicePool pool(0, driver);
    std::vector<Block*> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(pool.allocate(100 * kMiB, nullptr));
    std::vector<Block*> fillers;
    for (Block* block : blocks) {
      pool.free(block);
      pool.allocate(2 * kMiB, nullptr);  // keeps the segment from being released
      fillers.push_back(pool.allocate(98 * kMiB, nullptr));
    }
    for (Block* filler : fillers) pool.free(filler);
    const bool fits = message_of([&] { pool.allocate(700 * kMiB, nullptr); }).empty();
    EXPECT(fits == expandable);
  }
  set_settings("");
}

void sizes_are_those_of_cuda() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  struct Case {
    size_t nbytes, block, segment;
  };
  for (const Case& c : {Case{1, 512, 2 * kMiB}, Case{512, 512, 2 * kMiB}, Case{513, 1024, 2 * kMiB},
                        Case{kMiB, kMiB, 2 * kMiB}, Case{kMiB + 1, kMiB + 512, 20 * kMiB},
                        Case{10 * kMiB - 1, 10 * kMiB, 10 * kMiB}, Case{33 * kMiB, 34 * kMiB, 34 * kMiB}}) {
    Block* block = pool.allocate(c.nbytes, nullptr);
    EXPECT(block->size == c.block);
    EXPECT(driver.used() == c.segment);
    pool.free(block);
    pool.empty_cache();
  }
}

void tail_padding_is_part_of_the_block() {
  FakeDriver driver;
  driver.padding = 32;
  DevicePool pool(0, driver);
  Block* block = pool.allocate(512, nullptr);
  EXPECT(block->size == 1024 && block->requested_size == 512);
  pool.free(block);
}

void a_freed_block_is_reused_on_its_stream_only() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  Block* first = pool.allocate(4096, stream(1));
  void* ptr = first->ptr;
  pool.free(first);
  Block* other = pool.allocate(4096, stream(2));
  EXPECT(other->ptr != ptr);
  Block* same = pool.allocate(4096, stream(1));
  EXPECT(same->ptr == ptr);
  pool.free(other);
  pool.free(same);
}

void the_block_freed_last_joins_its_neighbours() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  Block* first = pool.allocate(512, nullptr);
  Block* second = pool.allocate(512, nullptr);
  void* ptr = second->ptr;
  pool.free(second);
  second = pool.allocate(300, nullptr);  // the same block of 512 B
  EXPECT(second->ptr == ptr && pool.stats().inactive_split_bytes[0].current == 2 * kMiB - 1024);
  pool.free(second);
  pool.free(first);
  EXPECT(pool.stats().inactive_split[0].current == 0 && pool.snapshot()[0].blocks.size() == 1);
  first = pool.allocate(512, nullptr);
  pool.free(first);
  EXPECT(pool.allocate(1024, nullptr)->ptr == first->ptr && driver.used() == 2 * kMiB);
}

void record_stream_delays_reuse() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  driver.busy_streams = {stream(2), stream(3)};
  Block* block = pool.allocate(kMiB / 2, stream(1));
  void* ptr = block->ptr;
  pool.record_stream(block, stream(1));  // its own stream: nothing to wait for
  pool.record_stream(block, stream(2));
  pool.record_stream(block, stream(2));
  pool.record_stream(block, stream(3));
  pool.free(block);
  EXPECT(driver.live_events == 2);
  EXPECT(pool.stats().allocation[0].current == 0 && pool.stats().active[0].current == 1);

  auto reused = [&] {
    Block* probe = pool.allocate(kMiB / 2, stream(1));
    const bool same = probe->ptr == ptr;
    pool.free(probe);
    return same;
  };
  EXPECT(!reused());
  driver.busy_streams.erase(stream(2));
  EXPECT(!reused());
  driver.busy_streams.erase(stream(3));
  EXPECT(reused());
  EXPECT(driver.live_events == 0 && pool.stats().active[0].current == 0);
}

void empty_cache_waits_for_recorded_streams() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  driver.busy_streams = {stream(2)};
  Block* block = pool.allocate(100, stream(1));
  pool.record_stream(block, stream(2));
  pool.free(block);
  pool.empty_cache();
  EXPECT(driver.segments.empty() && driver.live_events == 0);
  EXPECT(pool.stats().num_sync_all_streams == 1);
}

void out_of_memory_leaves_the_pool_usable() {
  FakeDriver driver;
  driver.capacity = 2 * kGiB;
  DevicePool pool(0, driver);
  Block* small = pool.allocate(1000, nullptr);
  Block* half = pool.allocate(kGiB, nullptr);
  const std::string text = message_of([&] { pool.allocate(4 * kGiB, nullptr); });
  EXPECT(contains(
      text, "NPU out of memory. Tried to allocate 4.00 GiB. Device 0 has a total capacity of 2.00 GiB"));
  EXPECT(contains(text, "1022.00 MiB is free."));
  EXPECT(pool.stats().num_ooms == 1 && pool.stats().num_alloc_retries == 1);
  EXPECT(contains(message_of([&] { pool.allocate(size_t{8} << 60, nullptr); }), "more than 1EB memory"));
  pool.free(half);
  Block* again = pool.allocate(kGiB * 3 / 2, nullptr);  // releases the cached half and retries
  EXPECT(pool.stats().num_alloc_retries == 2 && pool.stats().num_ooms == 2);
  pool.free(again);
  pool.free(small);
}

void memory_fraction_limits_the_reservation() {
  FakeDriver driver;
  driver.capacity = kGiB;
  DevicePool pool(0, driver);
  pool.set_memory_fraction(0.5);
  EXPECT(pool.memory_fraction() == 0.5);
  const std::string text = message_of([&] { pool.allocate(kGiB * 3 / 4, nullptr); });
  EXPECT(contains(text, "This process may use 512.00 MiB (memory fraction 0.5)"));
  pool.free(pool.allocate(kGiB / 2, nullptr));
  EXPECT(contains(message_of([&] { pool.set_memory_fraction(1.5); }), "from 0 to 1"));
}

void settings_are_strict() {
  auto refused = [](const std::string& text) { return message_of([&] { parse_settings(text); }); };
  EXPECT(
      contains(refused("max_split_size:1"), "unknown key 'max_split_size'. Known keys: expandable_segments"));
  EXPECT(contains(refused("max_split_size_mb"), "expected key:value"));
  EXPECT(contains(refused("max_split_size_mb:"), "expected key:value"));
  EXPECT(contains(refused("max_split_size_mb:20"), "from 21"));
  EXPECT(contains(refused("max_split_size_mb:30,max_split_size_mb:40"), "more than once"));
  EXPECT(contains(refused("garbage_collection_threshold:1.5"), "from 0 to 1"));
  EXPECT(contains(refused("garbage_collection_threshold:abc"), "but got 'abc'"));
  EXPECT(contains(refused("roundup_power2_divisions:3"), "powers of 2"));
  EXPECT(contains(refused("expandable_segments:True,max_split_size_mb:30"), "excludes max_split_size_mb"));
  EXPECT(contains(refused("pinned_use_background_threads:yes"), "True or False"));

  const Settings s =
      parse_settings("max_split_size_mb: 30, roundup_power2_divisions:[8:1,64:4,128:8,256:2,>:16]");
  EXPECT(s.max_split_size == 30 * kMiB);
  const std::array<size_t, 16> expected{1, 1, 1, 1, 0, 0, 4, 8, 2, 16, 16, 16, 16, 16, 16, 16};
  EXPECT(s.power2_divisions == expected);
  EXPECT(s.divisions_for(65 * kMiB) == 4 && s.divisions_for(100) == 1);
}

void max_split_size_keeps_large_blocks_whole() {
  set_settings("max_split_size_mb:50");
  FakeDriver driver;
  DevicePool pool(0, driver);
  pool.free(pool.allocate(100 * kMiB, nullptr));
  EXPECT(pool.stats().oversize_segments.current == 1);
  Block* medium = pool.allocate(75 * kMiB, nullptr);  // 25 MiB more than asked for is too much
  EXPECT(driver.used() == (100 + 76) * kMiB);
  pool.free(medium);
  Block* large = pool.allocate(90 * kMiB, nullptr);
  EXPECT(large->size == 100 * kMiB && pool.stats().oversize_allocations.current == 1);
  pool.free(large);
  Block* below = pool.allocate(30 * kMiB, nullptr);  // must not take an oversize block
  EXPECT(below->size == 30 * kMiB);
  pool.free(below);
  set_settings("");
}

void garbage_collection_releases_old_segments() {
  set_settings("garbage_collection_threshold:0.5");
  FakeDriver driver;
  driver.capacity = kGiB;
  DevicePool pool(0, driver);
  pool.free(pool.allocate(200 * kMiB, stream(1)));
  for (int i = 0; i < 100; ++i) pool.free(pool.allocate(100 * kMiB, stream(2)));
  EXPECT(driver.used() == 300 * kMiB);
  Block* block = pool.allocate(300 * kMiB, stream(3));
  EXPECT(driver.used() == 400 * kMiB);  // the 200 MiB segment was idle for longest
  EXPECT(pool.stats().num_alloc_retries == 0);
  pool.free(block);
  set_settings("");
}

void rounding_follows_power2_divisions() {
  set_settings("roundup_power2_divisions:4");
  FakeDriver driver;
  DevicePool pool(0, driver);
  Block* block = pool.allocate(4 * kMiB + 1, nullptr);
  EXPECT(block->size == 5 * kMiB);
  pool.free(block);
  set_settings("");
}

void threads_do_not_disturb_each_other() {
  FakeDriver driver;
  driver.capacity = 64 * kGiB;
  DevicePool pool(0, driver);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 rng(t);
      std::vector<Block*> live;
      for (int step = 0; step < 50'000; ++step) {
        if (live.size() < 100 || rng() % 2) {
          live.push_back(pool.allocate(random_size(rng) / 16 + 1, stream(t % 2)));
          if (rng() % 8 == 0) pool.record_stream(live.back(), stream(5));
        } else {
          std::swap(live[rng() % live.size()], live.back());
          pool.free(live.back());
          live.pop_back();
        }
      }
      for (Block* block : live) pool.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  pool.empty_cache();
  const auto stats = pool.stats();
  EXPECT(driver.segments.empty() && driver.live_events == 0);
  EXPECT(stats.allocated_bytes[0].current == 0 && stats.active_bytes[0].current == 0 &&
         stats.reserved_bytes[0].current == 0 && stats.inactive_split_bytes[0].current == 0);
}

void an_alias_never_shows_another_tensor() {
  global_driver().real_memory = true;
  NPUCachingAllocator& allocator = caching_allocator();
  c10::DataPtr data = allocator.allocate(1000);
  void* ptr = data.get();
  auto alias = host_alias(*block_of(data), 1000);
  EXPECT(alias->data() == ptr && alias->device().is_cpu() && alias->nbytes() == 1000);
  EXPECT(host_alias(*block_of(data), 1000).get() == alias.get());

  data.clear();  // the alias is still held: the bytes are its own now
  c10::DataPtr next = allocator.allocate(1000);
  EXPECT(next.get() != ptr);
  EXPECT(allocator.getDeviceStats(0).allocation[0].current == 2);
  alias.reset();
  EXPECT(allocator.getDeviceStats(0).allocation[0].current == 1);
  c10::DataPtr reused = allocator.allocate(1000);
  EXPECT(reused.get() == ptr);
  auto fresh = host_alias(*block_of(reused), 1000);
  EXPECT(fresh->data() == ptr);
  fresh.reset();
  next.clear();
  reused.clear();
  EXPECT(allocator.getDeviceStats(0).allocation[0].current == 0);
}

void output_of_a_cpu_kernel_is_adopted() {
  global_driver().real_memory = true;
  NPUCachingAllocator& allocator = caching_allocator();
  auto host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 64,
                                                    allocate_for_host(64, 0, nullptr), nullptr, false);
  void* ptr = host->mutable_data();
  c10::StorageImpl* impl = host.get();
  c10::DataPtr data = adopt_host_storage(std::move(host)).value();
  EXPECT(data.get() == ptr && data.device().is_privateuseone());
  EXPECT(host_alias(*block_of(data), 64).get() == impl);
  data.clear();
  EXPECT(allocator.getDeviceStats(0).allocation[0].current == 0);

  host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 64,
                                               allocate_for_host(64, 0, nullptr), nullptr, false);
  host.reset();  // an output that is not adopted gives its block back
  EXPECT(allocator.getDeviceStats(0).allocation[0].current == 0);
}

void a_resized_alias_is_replaced() {
  global_driver().real_memory = true;
  c10::DataPtr data = caching_allocator().allocate(100);
  auto alias = host_alias(*block_of(data), 100);
  alias->set_data_ptr_noswap(c10::GetAllocator(c10::DeviceType::CPU)->allocate(200));
  auto renewed = host_alias(*block_of(data), 100);
  EXPECT(renewed.get() != alias.get() && renewed->data() == data.get());
}

void empty_and_raw_allocations() {
  NPUCachingAllocator& allocator = caching_allocator();
  c10::DataPtr none = allocator.allocate(0);
  EXPECT(none.get() == nullptr && none.device().is_privateuseone() && block_of(none) == nullptr);
  void* ptr = allocator.raw_alloc(100, 0, nullptr);
  EXPECT(allocator.owns(ptr) && !allocator.owns(&allocator));
  allocator.raw_free(ptr);
  bool refused = false;
  try {
    allocator.raw_free(ptr);
  } catch (const c10::Error& error) {
    refused = contains(error.what(), "was not allocated by caching_allocator_alloc");
  }
  EXPECT(refused);
}

// ---- measurements ----

template <typename F>
double nanoseconds(F f) {
  double best = 1e9;
  for (int repeat = 0; repeat < 20; ++repeat) {
    constexpr int kCalls = 100'000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) f();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / kCalls);
  }
  return best;
}

void bench() {
  NPUCachingAllocator& allocator = caching_allocator();
  global_driver().capacity = 64 * kGiB;
  for (size_t nbytes : {512 * size_t{1}, 64 * kKiB, 4 * kMiB, 64 * kMiB}) {
    std::cout << nbytes << " bytes: " << nanoseconds([&] { allocator.allocate(nbytes); })
              << " ns per DataPtr\n";
  }
  std::vector<c10::DataPtr> live;
  std::mt19937 rng(3);
  for (int i = 0; i < 4000; ++i) live.push_back(allocator.allocate(rng() % 100'000 + 1));
  std::cout << "replacing one of 4000 small blocks: " << nanoseconds([&] {
    live[rng() % live.size()] = allocator.allocate(rng() % 100'000 + 1);
  }) << " ns\n";
  c10::DataPtr data = allocator.allocate(512);
  std::cout << "host_alias: " << nanoseconds([&] { host_alias(*block_of(data), 512); }) << " ns\n";
}

const Tests tests = {
    TEST(random_blocks_match_the_model),
    TEST(random_blocks_in_expandable_segments),
    TEST(an_expandable_segment_grows_in_place),
    TEST(fragmented_memory_suffices_for_a_large_block),
    TEST(sizes_are_those_of_cuda),
    TEST(tail_padding_is_part_of_the_block),
    TEST(a_freed_block_is_reused_on_its_stream_only),
    TEST(the_block_freed_last_joins_its_neighbours),
    TEST(record_stream_delays_reuse),
    TEST(empty_cache_waits_for_recorded_streams),
    TEST(out_of_memory_leaves_the_pool_usable),
    TEST(memory_fraction_limits_the_reservation),
    TEST(settings_are_strict),
    TEST(max_split_size_keeps_large_blocks_whole),
    TEST(garbage_collection_releases_old_segments),
    TEST(rounding_follows_power2_divisions),
    TEST(threads_do_not_disturb_each_other),
    TEST(an_alias_never_shows_another_tensor),
    TEST(output_of_a_cpu_kernel_is_adopted),
    TEST(a_resized_alias_is_replaced),
    TEST(empty_and_raw_allocations),
};

}  // namespace

Driver& cann_driver() { return global_driver(); }

}  // namespace torch_npu::memory

int main(int argc, char** argv) {
  using namespace torch_npu::memory;
  if (argc == 2 && std::string(argv[1]) == "bench") {
    bench();
    return 0;
  }
  return run(tests, argc, argv);
}
