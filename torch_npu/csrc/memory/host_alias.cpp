#include "torch_npu/csrc/memory/host_alias.h"

#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <mutex>

#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::memory {
namespace {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

/// Blocks that CPU kernels allocated and that no npu tensor has adopted yet, by address.
///
/// c10 lets kernels keep an allocation without its DataPtr (Allocator::raw_allocate, used by oneDNN), which
/// is possible only if the DataPtr's context is the address itself. Hence this detour from the address to the
/// block.
class HostOwnedBlocks {
 public:
  void add(Block* block) {
    const std::lock_guard lock(mutex_);
    blocks_[block->ptr] = block;
  }
  Block* take(void* ptr) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found == blocks_.end()) return nullptr;
    Block* block = found->second;
    blocks_.erase(found);
    return block;
  }

 private:
  std::mutex mutex_;
  ska::flat_hash_map<void*, Block*> blocks_;
};

HostOwnedBlocks& host_owned() {
  static auto* blocks = new HostOwnedBlocks;  // outlives static destruction
  return *blocks;
}

/// Deleters of CPU DataPtrs over an npu block. The context is the block where the bytes are borrowed from an
/// npu tensor or were taken over from one; it is the address where a CPU kernel allocated them. Changing the
/// first into the second moves the ownership.
void release_borrowed(void*) {}
void release_owned(void* block) { caching_allocator().free_block(static_cast<Block*>(block)); }
void release_address(void* ptr) { free_for_host(ptr); }

const c10::Device kCPU(c10::DeviceType::CPU);

/// False after a CPU kernel resized the alias: it then has memory of its own.
bool is_over(const c10::StorageImpl& alias, const Block& block) {
  return alias.data_ptr().get_deleter() == &release_borrowed && alias.data_ptr().get_context() == &block;
}

StoragePtr make_alias(Block& block, size_t nbytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                               c10::DataPtr(block.ptr, &block, &release_borrowed, kCPU),
                                               c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
}

}  // namespace

StoragePtr host_alias(Block& block, size_t nbytes) {
  c10::StorageImpl* alias = block.alias.load(std::memory_order_acquire);
  while (!alias || !is_over(*alias, block)) {
    StoragePtr fresh = make_alias(block, nbytes);
    c10::StorageImpl* stale = alias;
    if (block.alias.compare_exchange_strong(alias, fresh.get(), std::memory_order_acq_rel)) {
      if (stale) StoragePtr::reclaim(stale);
      alias = fresh.release();
    }
  }
  if (alias->nbytes() != nbytes) alias->set_nbytes(nbytes);
  return StoragePtr::reclaim_copy(alias);
}

c10::DataPtr allocate_for_host(size_t nbytes, c10::DeviceIndex device, StreamHandle stream) {
  if (nbytes == 0) return {nullptr, kCPU};
  Block* block = caching_allocator().allocate_block(nbytes, device, stream);
  host_owned().add(block);
  return {block->ptr, block->ptr, &release_address, kCPU};
}

bool free_for_host(void* ptr) {
  Block* block = host_owned().take(ptr);
  if (block != nullptr) caching_allocator().free_block(block);
  return block != nullptr;
}

bool turn_into_npu_storage(c10::StorageImpl& host) {
  c10::DataPtr& data = host._mutable_data_ptr_no_checks();
  if (data.get_deleter() != &release_address) return false;
  Block* block = host_owned().take(data.get_context());
  data.release_context();
  host.set_data_ptr_noswap({block->ptr, block, &delete_block, {c10::DeviceType::PrivateUse1, block->device}});
  host.set_allocator(&caching_allocator());
  return true;
}

std::optional<c10::DataPtr> adopt_host_storage(StoragePtr host) {
  c10::DataPtr& data = host->_mutable_data_ptr_no_checks();
  Block* block = nullptr;
  if (data.get_deleter() == &release_address) {
    block = host_owned().take(data.get_context());
    data.release_context();
    host->set_data_ptr_noswap({block->ptr, block, &release_borrowed, kCPU});
  } else if (data.compare_exchange_deleter(&release_owned, &release_borrowed)) {
    block = static_cast<Block*>(data.get_context());
  } else {
    TORCH_INTERNAL_ASSERT(data.get_deleter() != &release_borrowed,
                          "adopt_host_storage: the storage does not own its npu block");
    return std::nullopt;
  }
  c10::StorageImpl* previous = block->alias.exchange(host.release(), std::memory_order_acq_rel);
  TORCH_INTERNAL_ASSERT(!previous, "adopt_host_storage: the block has an alias already");
  return c10::DataPtr(block->ptr, block, &delete_block, {c10::DeviceType::PrivateUse1, block->device});
}

bool hand_over_to_alias(Block& block) {
  const StoragePtr alias = StoragePtr::reclaim(block.alias.exchange(nullptr, std::memory_order_acq_rel));
  if (alias.use_count() == 1 || !is_over(*alias, block)) return false;
  // Another holder may drop its reference just now; then the alias, and with it the block, is released here.
  return alias->_mutable_data_ptr_no_checks().compare_exchange_deleter(&release_borrowed, &release_owned);
}

}  // namespace torch_npu::memory
