#include "torch_npu/csrc/memory/mempool.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::memory {

c10::MempoolId_t new_pool_id(bool is_user_created) {
  static std::atomic<c10::CaptureId_t> last{0};
  const c10::CaptureId_t number = ++last;
  return is_user_created ? c10::MempoolId_t{0, number} : c10::MempoolId_t{number, 0};
}

MemPool::MemPool(c10::DeviceIndex device, const Options& options)
    : id_(new_pool_id(options.is_user_created)), device_(device) {
  DevicePool& pool = caching_allocator().device_pool(device_);
  pool.retain_pool(id_);
  pool.configure_pool(id_, options.use_on_oom, options.no_split, options.source);
}

MemPool::~MemPool() {
  try {
    DevicePool& pool = caching_allocator().device_pool(device_);
    pool.release_pool(id_);
    pool.empty_cache(id_);
  } catch (const std::exception& error) {  // must not leave a destructor
    TORCH_WARN("torch.npu.MemPool: the pool's memory could not be given back: ", error.what());
  }
}

int MemPool::use_count() const { return caching_allocator().pool_use_count(device_, id_); }

}  // namespace torch_npu::memory
