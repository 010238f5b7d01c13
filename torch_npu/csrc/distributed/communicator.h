// One rank of a group of ranks, with the stream that its collectives run on.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch_npu/csrc/distributed/hccl.h"

namespace torch_npu::distributed {

/// What a client may ask of HCCL for a group, by the vendor's names (hccl_buffer_size: MB for each rank).
using Config = std::map<std::string, int64_t>;

class Communicator {
 public:
  /// Meets the other ranks under `key` of the store, on `device`. Returns when all of them are there.
  Communicator(c10d::Store& store, const std::string& key, c10::DeviceIndex device, uint32_t rank,
               uint32_t ranks, bool high_priority, const Config& config);
  /// Waits for its work.
  ~Communicator();
  Communicator(const Communicator&) = delete;

  HcclComm handle() const { return handle_; }
  std::string name() const;
  /// Raises if an earlier collective has failed meanwhile.
  void check_error() const;

  const c10::DeviceIndex device;
  const uint32_t ranks;
  const c10::Stream stream;

 private:
  HcclComm handle_ = nullptr;
};

}  // namespace torch_npu::distributed
