// Private memory pools without a device. `private_pool_test NAME` runs one test, without NAME it lists them.

#include <random>
#include <thread>

#include "tests/cpp/fake_driver.h"
#include "tests/cpp/model.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/memory/mempool.h"

namespace torch_npu::memory {
namespace {

bool everything(StreamHandle) { return true; }

/// Sends all allocations of `pool` to a private pool while it lives.
class Inside {
 public:
  Inside(DevicePool& pool, c10::MempoolId_t id) : pool_(pool), id_(id) {
    pool_.begin_allocate_to_pool(id_, everything);
  }
  ~Inside() {
    pool_.end_allocate_to_pool(id_);
    pool_.release_pool(id_);
  }

 private:
  DevicePool& pool_;
  c10::MempoolId_t id_;
};

int64_t reserved_by(DevicePool& pool, c10::MempoolId_t id) {
  const auto stats = pool.stats();
  const auto found = stats.reserved_bytes_by_private_pools.find(id);
  return found == stats.reserved_bytes_by_private_pools.end() ? -1 : found->second[0].current;
}

void memory_of_a_pool_serves_nobody_else() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  pool.retain_pool(id);
  Block* block = nullptr;
  {
    const Inside inside(pool, id);
    block = pool.allocate(5000, nullptr);
  }
  void* ptr = block->ptr;
  pool.free(block);
  Block* outside = pool.allocate(5000, nullptr);
  EXPECT(outside->ptr != ptr);
  {
    const Inside inside(pool, id);
    Block* again = pool.allocate(5000, nullptr);
    EXPECT(again->ptr == ptr);
    pool.free(again);
  }
  pool.free(outside);
  pool.release_pool(id);
}

void memory_of_a_pool_in_use_is_not_given_back() {
  for (const bool expandable : {false, true}) {
    set_settings(expandable ? "expandable_segments:True" : "");
    FakeDriver driver;
    driver.capacity = 100 * kMiB;
    DevicePool pool(0, driver);
    const auto id = new_pool_id();
    pool.retain_pool(id);
    {
      const Inside inside(pool, id);
      pool.free(pool.allocate(60 * kMiB, nullptr));
    }
    pool.empty_cache();
    pool.empty_cache(id);
    EXPECT(driver.used() == 60 * kMiB && reserved_by(pool, id) == static_cast<int64_t>(60 * kMiB));
    EXPECT(contains(message_of([&] { pool.allocate(60 * kMiB, nullptr); }), "out of memory"));

    pool.release_pool(id);
    EXPECT(driver.used() == 60 * kMiB);            // cache as any other from now on
    pool.free(pool.allocate(60 * kMiB, nullptr));  // so the full device gets it back
    EXPECT(reserved_by(pool, id) == 0);
    pool.empty_cache();
    EXPECT(driver.used() == 0);
    pool.reset_peak_stats();
    EXPECT(reserved_by(pool, id) == -1);
  }
  set_settings("");
}

void a_pool_outlives_its_users_while_blocks_live() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  Block* block = nullptr;
  {
    const Inside inside(pool, id);
    block = pool.allocate(20 * kMiB, nullptr);
  }
  EXPECT(pool.pool_use_count(id) == 0);
  pool.empty_cache();
  EXPECT(driver.used() == 20 * kMiB && pool.snapshot(id).size() == 1);
  {
    const Inside again(pool, id);  // the same pool as before
    EXPECT(pool.pool_use_count(id) == 1);
    pool.free(block);
    EXPECT(pool.allocate(20 * kMiB, nullptr) == block);
  }
  pool.free(block);
  pool.empty_cache();
  EXPECT(driver.used() == 0 && pool.snapshot(id).empty());
  EXPECT(contains(message_of([&] { pool.release_pool(id); }), "or it was released already"));
}

void users_are_counted() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  EXPECT(pool.pool_use_count(id) == 0);
  pool.retain_pool(id);
  pool.begin_allocate_to_pool(id, everything);
  EXPECT(pool.pool_use_count(id) == 2);
  pool.end_allocate_to_pool(id);
  EXPECT(pool.pool_use_count(id) == 2);
  EXPECT(contains(message_of([&] { pool.end_allocate_to_pool(id); }), "was begun"));
  pool.release_pool(id);
  pool.release_pool(id);
  EXPECT(contains(message_of([&] { pool.release_pool(id); }), "has no memory pool with id"));
  EXPECT(contains(message_of([&] { pool.retain_pool(kDefaultPool); }), "the default pool"));
  EXPECT(new_pool_id().first == 0 && new_pool_id(false).second == 0 && new_pool_id() != new_pool_id());
}

void the_last_route_that_agrees_counts() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  const auto first = new_pool_id(), second = new_pool_id();
  auto pool_of = [&](StreamHandle s) {
    Block* block = pool.allocate(100, s);
    const auto id = block->pool->arena.id;
    pool.free(block);
    return id;
  };
  pool.begin_allocate_to_pool(first, [](StreamHandle s) { return s != stream(3); });
  pool.begin_allocate_to_pool(second, [](StreamHandle s) { return s == stream(2); });
  EXPECT(pool_of(stream(1)) == first && pool_of(stream(2)) == second && pool_of(stream(3)) == kDefaultPool);
  pool.end_allocate_to_pool(first);
  EXPECT(pool_of(stream(1)) == kDefaultPool && pool_of(stream(2)) == second);
  pool.end_allocate_to_pool(second);
  pool.release_pool(first);
  pool.release_pool(second);
  EXPECT(pool_of(stream(2)) == kDefaultPool);
}

void threads_use_the_same_pool_at_a_time() {
  FakeDriver driver;
  driver.capacity = 64 * kGiB;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  pool.retain_pool(id);
  std::vector<std::thread> threads;
  std::atomic<int> strays{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto self = std::this_thread::get_id();
      std::mt19937 rng(t);
      for (int round = 0; round < 200; ++round) {
        const bool inside = t != 0;  // thread 0 stays outside
        if (inside) {
          pool.begin_allocate_to_pool(id,
                                      [self](StreamHandle) { return std::this_thread::get_id() == self; });
        }
        std::vector<Block*> live;
        for (int i = 0; i < 20; ++i) live.push_back(pool.allocate(random_size(rng) / 16 + 1, stream(t % 2)));
        for (Block* block : live) strays += (block->pool->arena.id == id) != inside;
        for (Block* block : live) pool.free(block);
        if (inside) {
          pool.end_allocate_to_pool(id);
          pool.release_pool(id);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(strays == 0 && pool.pool_use_count(id) == 1);
  pool.release_pool(id);
  pool.empty_cache();
  EXPECT(driver.used() == 0 && pool.snapshot().empty());
}

void a_capture_delays_events_and_releases() {
  FakeDriver driver;
  driver.capacity = 100 * kMiB;
  DevicePool pool(0, driver);
  pool.free(pool.allocate(60 * kMiB, nullptr));
  Block* block = pool.allocate(4096, stream(1));
  void* ptr = block->ptr;
  pool.record_stream(block, stream(2));
  pool.begin_capture();
  pool.free(block);
  EXPECT(driver.live_events == 0);
  pool.empty_cache();
  EXPECT(driver.used() == 62 * kMiB);
  EXPECT(contains(message_of([&] { pool.allocate(60 * kMiB, stream(1)); }), "out of memory"));
  Block* other = pool.allocate(4096, stream(1));
  EXPECT(other->ptr != ptr);
  pool.end_capture();
  EXPECT(driver.live_events == 1);
  Block* again = pool.allocate(4096, stream(1));
  EXPECT(again->ptr == ptr && driver.live_events == 0);
  pool.free(again);
  pool.free(other);
  EXPECT(contains(message_of([&] { pool.end_capture(); }), "without begin_capture"));
}

void a_pool_can_help_out_when_the_device_is_full() {
  FakeDriver driver;
  driver.capacity = 100 * kMiB;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  pool.retain_pool(id);
  pool.configure_pool(id, /*use_on_oom=*/true, /*no_split=*/false, nullptr);
  {
    const Inside inside(pool, id);
    pool.free(pool.allocate(60 * kMiB, nullptr));
  }
  Block* block = pool.allocate(50 * kMiB, nullptr);
  EXPECT(driver.used() == 60 * kMiB && block->pool->arena.id == id && block->size == 50 * kMiB);
  pool.free(block);
  pool.release_pool(id);
}

void a_pool_can_keep_segments_whole() {
  FakeDriver driver;
  DevicePool pool(0, driver);
  const auto id = new_pool_id();
  pool.retain_pool(id);
  pool.configure_pool(id, /*use_on_oom=*/false, /*no_split=*/true, nullptr);
  {
    const Inside inside(pool, id);
    Block* small = pool.allocate(512, nullptr);
    Block* large = pool.allocate(3 * kMiB, nullptr);
    EXPECT(small->size == 2 * kMiB && large->size == 20 * kMiB);
    EXPECT(pool.stats().inactive_split[0].current == 0);
    pool.free(small);
    pool.free(large);
  }
  pool.release_pool(id);
}

/// Random allocations over four streams and three pools, checked against plain sums.
void run_against_the_model() {
  FakeDriver driver;
  driver.capacity = 64 * kGiB;
  DevicePool pool(0, driver);
  Model model;
  std::mt19937 rng(2);
  const std::array<c10::MempoolId_t, 3> ids{kDefaultPool, new_pool_id(), new_pool_id()};
  pool.retain_pool(ids[1]);  // the third lives by its blocks alone
  std::vector<Block*> live;
  auto free_one = [&](Block* block) {
    model.freed(*block);
    model.reusable(block->is_small, block->ptr, block->size, block->requested_size);
    pool.free(block);
  };
  for (int step = 0; step < 100'000; ++step) {
    if (live.size() < 50 || (live.size() < 1000 && rng() % 2)) {
      const size_t nbytes = random_size(rng);
      const auto id = ids[rng() % ids.size()];
      std::optional<Inside> inside;
      if (id != kDefaultPool) inside.emplace(pool, id);
      Block* block = pool.allocate(nbytes, stream(static_cast<intptr_t>(rng() % 4)));
      EXPECT(block->pool->arena.id == id);
      model.allocated(*block, nbytes);
      live.push_back(block);
    } else {
      std::swap(live[rng() % live.size()], live.back());
      free_one(live.back());
      live.pop_back();
    }
    if (step % 5'000 == 0) {
      if (step % 20'000 == 0) pool.empty_cache(ids[rng() % ids.size()]);
      model.check(pool, driver);
      int64_t of_pools = 0;
      for (const auto& id : {ids[1], ids[2]}) of_pools += std::max<int64_t>(reserved_by(pool, id), 0);
      for (const auto& segment : pool.snapshot()) {
        if (segment.owner_private_pool_id != kDefaultPool)
          of_pools -= static_cast<int64_t>(segment.total_size);
      }
      EXPECT(of_pools == 0);
    }
  }
  for (Block* block : live) free_one(block);
  model.check(pool, driver);
  pool.release_pool(ids[1]);
  pool.empty_cache();
  EXPECT(driver.used() == 0 && driver.reserved.empty());
}

void random_blocks_in_several_pools() { run_against_the_model(); }

void random_blocks_in_several_pools_of_expandable_segments() {
  set_settings("expandable_segments:True");
  run_against_the_model();
  set_settings("");
}

void a_mempool_gives_its_memory_back_at_its_end() {
  NPUCachingAllocator& allocator = caching_allocator();
  FakeDriver& driver = global_driver();
  Block* kept = nullptr;
  c10::MempoolId_t id;
  {
    const MemPool pool(0, {});
    id = pool.id();
    EXPECT(pool.use_count() == 1);
    allocator.begin_allocate_to_pool(0, id, everything);
    EXPECT(pool.use_count() == 2);
    kept = allocator.allocate_block(30 * kMiB, 0, nullptr);
    allocator.free_block(allocator.allocate_block(50 * kMiB, 0, nullptr));
    allocator.end_allocate_to_pool(0, id);
    allocator.release_pool(0, id);
    EXPECT(driver.used() == 80 * kMiB);
  }
  EXPECT(driver.used() == 30 * kMiB && allocator.snapshot(id).size() == 1);
  allocator.free_block(kept);
  allocator.emptyCache();
  EXPECT(driver.used() == 0);
}

const Tests tests = {
    TEST(memory_of_a_pool_serves_nobody_else),
    TEST(memory_of_a_pool_in_use_is_not_given_back),
    TEST(a_pool_outlives_its_users_while_blocks_live),
    TEST(users_are_counted),
    TEST(the_last_route_that_agrees_counts),
    TEST(threads_use_the_same_pool_at_a_time),
    TEST(a_capture_delays_events_and_releases),
    TEST(a_pool_can_help_out_when_the_device_is_full),
    TEST(a_pool_can_keep_segments_whole),
    TEST(random_blocks_in_several_pools),
    TEST(random_blocks_in_several_pools_of_expandable_segments),
    TEST(a_mempool_gives_its_memory_back_at_its_end),
};

}  // namespace

Driver& cann_driver() { return global_driver(); }

}  // namespace torch_npu::memory

int main(int argc, char** argv) { return torch_npu::memory::run(torch_npu::memory::tests, argc, argv); }
