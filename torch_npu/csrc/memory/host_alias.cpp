#include "torch_npu/csrc/memory/host_alias.h"

#include <c10/util/Exception.h>

#include "torch_npu/csrc/memory/caching_allocator.h"

namespace torch_npu::memory {
namespace {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

/// Deleters of CPU DataPtrs over an npu block: of one that borrows the bytes and of one that owns them.
/// Changing the one into the other moves the ownership.
void release_borrowed(void*) {}
void release_owned(void* block) { caching_allocator().free_block(static_cast<Block*>(block)); }

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

c10::DataPtr allocate_for_host(size_t nbytes) {
  if (nbytes == 0) return {nullptr, kCPU};
  NPUCachingAllocator& allocator = caching_allocator();
  Driver& driver = allocator.driver();
  const c10::DeviceIndex device = driver.current_device();
  Block* block = allocator.allocate_block(nbytes, device, driver.current_stream(device));
  return {block->ptr, block, &release_owned, kCPU};
}

Block* block_of_host(const c10::DataPtr& data) {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  const bool over_block = deleter == &release_borrowed || deleter == &release_owned;
  return over_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

c10::DataPtr adopt_host_storage(StoragePtr host) {
  c10::DataPtr& data = host->_mutable_data_ptr_no_checks();
  auto* block = static_cast<Block*>(data.get_context());
  TORCH_INTERNAL_ASSERT(data.compare_exchange_deleter(&release_owned, &release_borrowed),
                        "adopt_host_storage: the storage does not own an npu block");
  c10::StorageImpl* previous = block->alias.exchange(host.release(), std::memory_order_acq_rel);
  TORCH_INTERNAL_ASSERT(!previous, "adopt_host_storage: the block has an alias already");
  return {block->ptr, block, &delete_block, {c10::DeviceType::PrivateUse1, block->device}};
}

bool hand_over_to_alias(Block& block) {
  const StoragePtr alias = StoragePtr::reclaim(block.alias.exchange(nullptr, std::memory_order_acq_rel));
  if (alias.use_count() == 1 || !is_over(*alias, block)) return false;
  // Another holder may drop its reference just now; then the alias, and with it the block, is released here.
  return alias->_mutable_data_ptr_no_checks().compare_exchange_deleter(&release_borrowed, &release_owned);
}

}  // namespace torch_npu::memory
