// Pools of reserved addresses (VMMemoryPool), pluggable allocators and the out-of-memory message, without a
// device. `reserved_pool_test NAME` runs one test, without NAME it lists them.

#include <random>

#include "tests/cpp/fake_driver.h"
#include "tests/cpp/model.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/mempool.h"

namespace torch_npu::memory {
namespace {

/// A device whose memory comes from a pool of reserved addresses.
struct Reserved {
  explicit Reserved(size_t size, bool map_all = false, size_t capacity = 4 * kGiB)
      : driver(capacity), pool(0, driver) {
    pool.open_reserved_pool(id, size, map_all);
    pool.set_default_pool(id, true);
  }
  PoolUsage usage() { return pool.reserved_pool_usage(id); }

  FakeDriver driver;
  DevicePool pool;
  const c10::MempoolId_t id = new_pool_id();
};

void pages_are_mapped_on_demand() {
  Reserved r(32 * kGiB);  // more than there is
  EXPECT(r.driver.used() == 0 && r.usage().size == 32 * kGiB);
  Block* first = r.pool.allocate(100, stream(1));
  Block* second = r.pool.allocate(6 * kMiB, stream(1));
  Block* third = r.pool.allocate(100, stream(2));
  EXPECT(r.driver.used() == 10 * kMiB && r.driver.reserved.size() == 1);
  const auto base = static_cast<const char*>(r.pool.reserved_pool_base(r.id));
  EXPECT(second->ptr == base && first->ptr == base + 32 * kGiB - 2 * kMiB);
  EXPECT(third->ptr == base + 32 * kGiB - 4 * kMiB);
  PoolUsage usage = r.usage();
  EXPECT(usage.mapped == 10 * kMiB && usage.in_use == 6 * kMiB + 1024 && usage.live == 3);
  EXPECT(usage.allocations == 3 && usage.hits == 0);
  r.pool.free(second);
  EXPECT(r.pool.allocate(6 * kMiB, stream(1))->ptr == second->ptr && r.usage().hits == 1);
  r.pool.free(second);
  usage = r.usage();
  EXPECT(usage.free_mapped == 10 * kMiB - 1024 && usage.largest_free == 6 * kMiB);
  EXPECT(usage.peak_in_use == 6 * kMiB + 1024 && usage.peak_mapped == 10 * kMiB);
  r.pool.empty_cache();
  EXPECT(r.driver.used() == 4 * kMiB && r.usage().mapped == 4 * kMiB);
  r.pool.free(first);
  r.pool.free(third);
  r.pool.close_reserved_pool(r.id);
  EXPECT(r.driver.used() == 0 && r.driver.reserved.empty());
}

void all_pages_can_be_mapped_up_front() {
  Reserved r(100 * kMiB, /*map_all=*/true);
  EXPECT(r.driver.used() == 100 * kMiB && r.usage().mapped == 100 * kMiB);
  EXPECT(r.usage().free_mapped == 100 * kMiB && r.usage().largest_free == 100 * kMiB);
  EXPECT(r.pool.stats().reserved_bytes[0].current == static_cast<int64_t>(100 * kMiB));
  for (const size_t nbytes : {size_t{700}, 30 * kMiB, 90 * kMiB, 60 * kMiB}) {
    r.pool.free(r.pool.allocate(nbytes, stream(static_cast<intptr_t>(nbytes % 3))));
  }
  r.pool.empty_cache();
  EXPECT(r.driver.used() == 100 * kMiB && r.usage().largest_free == 100 * kMiB);
  r.pool.close_reserved_pool(r.id);
  EXPECT(r.driver.used() == 0 && r.driver.reserved.empty());
  EXPECT(r.pool.stats().reserved_bytes[0].current == 0);

  const auto id = new_pool_id();
  EXPECT(contains(message_of([&] { r.pool.open_reserved_pool(id, 5 * kGiB, true); }),
                  "out of memory. Tried to allocate 5.00 GiB"));
  EXPECT(r.driver.used() == 0 && r.driver.reserved.empty() && r.pool.pool_use_count(id) == 0);
}

void a_stream_gets_what_another_gave_up() {
  Reserved r(20 * kMiB, /*map_all=*/true);
  r.pool.free(r.pool.allocate(15 * kMiB, stream(1)));
  r.driver.busy_streams = {stream(1)};
  Block* block = r.pool.allocate(15 * kMiB, stream(2));
  EXPECT(r.driver.busy_streams.empty());  // it waited: the memory was in use by work of the first stream
  r.pool.free(block);
}

void a_full_pool_says_who_fills_it() {
  Reserved r(64 * kMiB);
  Block* large = r.pool.allocate(40 * kMiB, nullptr);
  Block* small = r.pool.allocate(300 * kKiB, nullptr);
  const std::string text = message_of([&] { r.pool.allocate(30 * kMiB, nullptr); });
  EXPECT(contains(text, "NPU out of memory. Tried to allocate 30.00 MiB."));
  EXPECT(contains(text, "The VMMemoryPool in use has 64.00 MiB, of which 40.29 MiB is used by 2 tensors"));
  EXPECT(
      contains(text, "\nLargest holders:\n  40.00 MiB in 1 allocation: 40.00 MiB each\n  300.00 KiB in 1"));
  EXPECT(contains(text, "_record_memory_history('state'") && contains(text, "a larger VMMemoryPool"));
  r.pool.free(large);
  large = r.pool.allocate(50 * kMiB, nullptr);
  r.pool.free(large);
  r.pool.free(small);
}

void the_memory_limit_holds_in_a_pool() {
  Reserved r(32 * kGiB, /*map_all=*/false, /*capacity=*/100 * kMiB);
  EXPECT(contains(message_of([&] { r.pool.allocate(200 * kMiB, nullptr); }), "total capacity of 100.00 MiB"));
  r.pool.set_memory_fraction(0.5);
  EXPECT(contains(message_of([&] { r.pool.allocate(60 * kMiB, nullptr); }), "a larger memory fraction"));
  r.pool.free(r.pool.allocate(40 * kMiB, nullptr));
  EXPECT(r.driver.used() == 40 * kMiB);
  r.pool.free(r.pool.allocate(50 * kMiB, stream(1)));  // the other stream's pages are given up for it
  EXPECT(r.driver.used() == 50 * kMiB);
}

void a_pool_is_not_closed_under_its_tensors() {
  Reserved r(kGiB);
  Block* block = r.pool.allocate(4 * kMiB, stream(1));
  r.pool.record_stream(block, stream(2));
  const std::string text = message_of([&] { r.pool.close_reserved_pool(r.id); });
  EXPECT(contains(text, "VMMemoryPool.close: 1 tensors live in the pool and have 4.00 MiB"));
  r.driver.busy_streams = {stream(2)};
  r.pool.free(block);
  r.pool.close_reserved_pool(r.id);  // waits for the other stream
  EXPECT(r.driver.busy_streams.empty() && r.driver.used() == 0);
  EXPECT(contains(message_of([&] { r.pool.close_reserved_pool(r.id); }), "or it was released already"));
  r.pool.free(r.pool.allocate(3 * kMiB, nullptr));
  EXPECT(r.driver.segments.size() == 1);  // as without a pool
}

void pools_are_stacked() {
  Reserved r(kGiB);
  const auto second = new_pool_id();
  r.pool.open_reserved_pool(second, kGiB, false);
  auto pool_of = [&] {
    Block* block = r.pool.allocate(100, nullptr);
    const auto id = block->pool->arena.id;
    r.pool.free(block);
    return id;
  };
  EXPECT(pool_of() == r.id);
  r.pool.set_default_pool(second, true);
  EXPECT(pool_of() == second);
  r.pool.set_default_pool(r.id, false);
  EXPECT(pool_of() == second);
  r.pool.close_reserved_pool(second);
  EXPECT(pool_of() == kDefaultPool);
  r.pool.close_reserved_pool(r.id);
}

/// Random blocks of four streams against plain sums; the addresses are scarce, so that pages change hands.
void run_against_the_model(bool map_all) {
  Reserved r(kGiB, map_all);
  Model model;
  std::mt19937 rng(7);
  std::vector<Block*> live;
  size_t live_bytes = 0;
  auto free_one = [&](Block* block) {
    live_bytes -= block->size;
    model.freed(*block);
    model.reusable(block->is_small, block->ptr, block->size, block->requested_size);
    r.pool.free(block);
  };
  for (int step = 0; step < 50'000; ++step) {
    if (live_bytes < 300 * kMiB && (live.size() < 20 || rng() % 2)) {
      const size_t nbytes = random_size(rng);
      Block* block = r.pool.allocate(nbytes, stream(static_cast<intptr_t>(rng() % 4)));
      EXPECT(block->pool->arena.id == r.id);
      model.allocated(*block, nbytes);
      live.push_back(block);
      live_bytes += block->size;
    } else {
      std::swap(live[rng() % live.size()], live.back());
      free_one(live.back());
      live.pop_back();
    }
    if (step % 2'000 == 0) {
      if (step % 6'000 == 0) r.pool.empty_cache();
      if (!map_all) model.check(r.pool, r.driver);
      const PoolUsage usage = r.usage();
      EXPECT(usage.in_use == live_bytes && usage.live == live.size() && usage.mapped == r.driver.used());
      EXPECT(usage.free_mapped == usage.mapped - usage.in_use);
    }
  }
  for (Block* block : live) free_one(block);
  r.pool.close_reserved_pool(r.id);
  EXPECT(r.driver.used() == 0 && r.driver.reserved.empty() && r.pool.snapshot().empty());
  EXPECT(r.pool.stats().segment[0].current == 0 && r.pool.stats().inactive_split_bytes[0].current == 0);
}

void random_blocks_on_demand() { run_against_the_model(false); }
void random_blocks_up_front() { run_against_the_model(true); }

// ---- pluggable allocators ----

std::map<void*, std::pair<size_t, StreamHandle>> plugged;

void* plug_allocate(size_t nbytes, int, StreamHandle s) {
  if (nbytes > kGiB) return nullptr;
  void* ptr = std::malloc(nbytes);
  plugged[ptr] = {nbytes, s};
  return ptr;
}

void plug_release(void* ptr, size_t nbytes, int, StreamHandle s) {
  EXPECT(plugged.at(ptr) == std::pair(nbytes, s));
  plugged.erase(ptr);
  std::free(ptr);
}

std::shared_ptr<const PluggableAllocator> plug() {
  return std::make_shared<PluggableAllocator>(PluggableAllocator{plug_allocate, plug_release});
}

void a_plugged_allocator_serves_every_allocation() {
  set_settings("expandable_segments:True");  // concerns the driver's memory only
  FakeDriver driver;
  DevicePool pool(0, driver);
  pool.replace_source(plug());
  Block* first = pool.allocate(1000, stream(1));
  Block* second = pool.allocate(30 * kMiB, stream(2));
  EXPECT(plugged.size() == 2 && plugged.at(first->ptr) == std::pair(size_t{1024}, stream(1)));
  EXPECT(driver.used() == 0 && pool.stats().segment[0].current == 2 && pool.snapshot().size() == 2);
  EXPECT(pool.stats().allocated_bytes[0].current == pool.stats().reserved_bytes[0].current);
  driver.busy_streams = {stream(3)};
  pool.record_stream(second, stream(3));
  pool.free(first);
  pool.free(second);
  EXPECT(plugged.size() == 1);  // the other stream still uses it
  driver.busy_streams.clear();
  pool.empty_cache();
  EXPECT(plugged.empty() && pool.stats().reserved_bytes[0].current == 0 && pool.snapshot().empty());
  EXPECT(contains(message_of([&] { pool.allocate(2 * kGiB, nullptr); }), "out of memory"));
  EXPECT(contains(message_of([&] { pool.replace_source(plug()); }), "already initialized allocator"));
  set_settings("");
}

void a_private_pool_caches_what_is_plugged() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  pool.retain_pool(id);
  pool.configure_pool(id, false, false, plug());
  pool.begin_allocate_to_pool(id, [](StreamHandle) { return true; });
  Block* block = pool.allocate(1000, nullptr);
  void* ptr = block->ptr;
  pool.free(block);
  EXPECT(plugged.size() == 1 && plugged.begin()->second.first == 2 * kMiB && driver.used() == 0);
  block = pool.allocate(1000, nullptr);
  EXPECT(block->ptr == ptr);
  pool.free(block);
  pool.end_allocate_to_pool(id);
  pool.release_pool(id);
  pool.release_pool(id);
  pool.empty_cache();
  EXPECT(plugged.empty());
}

const Tests tests = {
    TEST(pages_are_mapped_on_demand),
    TEST(all_pages_can_be_mapped_up_front),
    TEST(a_stream_gets_what_another_gave_up),
    TEST(a_full_pool_says_who_fills_it),
    TEST(the_memory_limit_holds_in_a_pool),
    TEST(a_pool_is_not_closed_under_its_tensors),
    TEST(pools_are_stacked),
    TEST(random_blocks_on_demand),
    TEST(random_blocks_up_front),
    TEST(a_plugged_allocator_serves_every_allocation),
    TEST(a_private_pool_caches_what_is_plugged),
};

}  // namespace

Driver& cann_driver() { return global_driver(); }

}  // namespace torch_npu::memory

int main(int argc, char** argv) { return torch_npu::memory::run(torch_npu::memory::tests, argc, argv); }
