#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <optional>

#include "torch_npu/csrc/memory/block.h"

/// CPU storages over the bytes of an npu block, for devices whose memory the host can address. A block has at
/// most one: ATen's CPU kernels then see that two npu tensors over one storage share memory.
///
/// At any time either the npu DataPtr or the CPU storage owns the block, never both. Whoever outlives the
/// other keeps the bytes: if an alias is still held when the npu DataPtr dies, the ownership moves to the
/// alias. So no alias ever shows bytes that belong to another tensor.
namespace torch_npu::memory {

/// The CPU storage over an allocated `block`, made at first use; its size is set to `nbytes`. Safe to call
/// from several threads.
c10::intrusive_ptr<c10::StorageImpl> host_alias(Block& block, size_t nbytes);

/// A CPU DataPtr that owns a new npu block: the output of a CPU kernel.
c10::DataPtr allocate_for_host(size_t nbytes, c10::DeviceIndex device, StreamHandle stream);

/// Frees memory of allocate_for_host() by its address; false if it is not (any more) such memory.
bool free_for_host(void* ptr);

/// Makes an npu storage of `host`, a CPU storage that has only one holder, if it owns memory of
/// allocate_for_host(). Returns whether it does; nothing happens otherwise.
bool turn_into_npu_storage(c10::StorageImpl& host);

/// Moves the ownership of the block from `host`, a CPU storage over memory of allocate_for_host(), to the
/// returned npu DataPtr, and keeps `host` as the block's alias: no byte is copied. Nothing happens, and
/// nothing is returned, if the memory of `host` is not npu memory.
std::optional<c10::DataPtr> adopt_host_storage(c10::intrusive_ptr<c10::StorageImpl> host);

/// Called when the npu DataPtr of `block` dies: drops the alias, or makes it the block's owner if others
/// still hold it. Returns true in the latter case.
bool hand_over_to_alias(Block& block);

}  // namespace torch_npu::memory
