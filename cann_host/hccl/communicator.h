// One rank of a group: what it shares with the others, and the two ways in which they exchange data.
#pragma once

#include <cann/hccl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shared_memory.h"

namespace cann_host::hccl {

constexpr uint32_t max_ranks = 256;

/// What ranks must agree on in a collective; what they do not is an error that names both calls.
struct Call {
  char name[24];
  uint64_t bytes;
};

class Communicator {
 public:
  /// Bytes that a rank gives to the others in one round.
  static constexpr size_t room = 1 << 20;

  /// Returns when all ranks are there. Throws HCCL_E_TIMEOUT after HCCL_CONNECT_TIMEOUT seconds (120).
  Communicator(uint32_t ranks, const HcclRootInfo& root, uint32_t rank, std::string name);
  /// Waits for the others to take what was sent to them.
  ~Communicator();

  static HcclRootInfo make_root_info();

  /// Slot of a rank: what it has put there in this round.
  using Slots = std::function<const std::byte*(uint32_t rank)>;

  /// All ranks call this at once, with the same call and `bytes`. In rounds of at most `step` bytes each rank
  /// puts something into its slot, waits for the others, and takes from the slots what it needs:
  ///   put(slot, offset, count); take(slots, offset, count)
  template <class Put, class Take>
  void exchange(const char* call, size_t bytes, size_t step, Put put, Take take) {
    const std::lock_guard lock(collective_);
    size_t offset = 0;
    do {
      const size_t count = std::min(step, bytes - offset);
      const uint32_t half = round_++ % 2;  // the other half may still be read
      put(slot(rank, half), offset, count);
      meet(call, bytes, half);
      take([&](uint32_t of) -> const std::byte* { return slot(of, half); }, offset, count);
      offset += count;
    } while (offset < bytes);
  }

  void send(const void* data, size_t bytes, uint32_t to);
  void receive(void* data, size_t bytes, uint32_t from);

  /// Remembers the first failure, and lets the other ranks fail instead of wait.
  void fail(HcclResult result) noexcept;
  HcclResult error() const { return error_.load(); }

  const uint32_t ranks, rank;
  const std::string name;

 private:
  struct Header;
  struct Mailbox;

  static size_t shared_bytes(uint32_t ranks);
  Header& header() const;
  Mailbox& mailbox(uint32_t from, uint32_t to) const;
  std::byte* slot(uint32_t of, uint32_t half) const;
  Call& call(uint32_t of, uint32_t half) const;

  void join(const HcclRootInfo& root);
  /// Waits until all ranks are here, and compares their calls.
  void meet(const char* name, size_t bytes, uint32_t half);
  void wait(std::atomic<uint32_t>& word, const std::function<bool()>& done, std::chrono::seconds patience,
            const char* what, const std::vector<uint32_t>& for_ranks);
  std::vector<uint32_t> others() const;

  std::unique_ptr<Mapping> memory_;
  std::mutex collective_;
  uint32_t round_ = 0;
  std::array<std::mutex, max_ranks> sending_, receiving_;
  std::vector<std::deque<File>> sent_;  // to each rank, until it has read them
  std::atomic<HcclResult> error_{HCCL_SUCCESS};
};

}  // namespace cann_host::hccl
