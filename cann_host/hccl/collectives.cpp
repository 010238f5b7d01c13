// Collectives as exchanges: what a rank puts into its slot, and what it takes from the slots of all.
#include <algorithm>
#include <cstring>
#include <vector>

#include "communicators.h"
#include "error.h"
#include "reduce.h"

using namespace cann_host::hccl;

namespace {

using Slots = Communicator::Slots;

constexpr auto nothing = [](std::byte*, size_t, size_t) {};

/// The arguments that all collectives check alike.
class Arguments {
 public:
  Arguments(HcclComm comm, uint64_t count, HcclDataType type)
      : communicator(find(comm)), size(size_of(type)) {
    if (count > (uint64_t{1} << 48)) refuse(HCCL_E_PARA, "count=" + std::to_string(count) + " is too large");
    bytes = count * size;
  }
  void buffer(const void* pointer, const char* name) const {
    if (bytes) require_pointer(pointer, name);
  }
  void root(uint32_t rank) const {
    if (rank >= communicator->ranks) {
      refuse(HCCL_E_PARA, "root=" + std::to_string(rank) + ": there are " +
                              std::to_string(communicator->ranks) + " ranks");
    }
  }

  CommunicatorPtr communicator;
  size_t size, bytes;
};

/// Pieces of a buffer, one for each rank, in bytes.
struct Pieces {
  std::vector<size_t> sizes, offsets;

  Pieces(uint32_t ranks, size_t bytes) : sizes(ranks, bytes), offsets(ranks) {
    for (uint32_t rank = 0; rank < ranks; ++rank) offsets[rank] = rank * bytes;
  }
  Pieces(uint32_t ranks, const void* counts, const void* displacements, size_t size) {
    require_pointer(counts, "counts");
    require_pointer(displacements, "displacements");
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      sizes.push_back(static_cast<const uint64_t*>(counts)[rank] * size);
      offsets.push_back(static_cast<const uint64_t*>(displacements)[rank] * size);
    }
  }
  size_t longest() const { return *std::max_element(sizes.begin(), sizes.end()); }
  /// Bytes of a piece in the round that begins at `offset`.
  size_t part(uint32_t rank, size_t offset, size_t count) const {
    return offset >= sizes[rank] ? 0 : std::min(count, sizes[rank] - offset);
  }
};

/// A slot is divided among the receivers; a multiple of every element's size.
size_t step_of_pairs(uint32_t ranks) { return Communicator::room / ranks / 64 * 64; }

/// `sent` is what this rank has for each, or null if it has nothing; `take(slots of the pairs, offset,
/// count)`.
template <class Take>
void exchange_pairs(Communicator& c, const char* call, size_t longest, const void* sent, const Pieces& pieces,
                    Take take) {
  const size_t step = step_of_pairs(c.ranks);
  const auto put = [&](std::byte* slot, size_t offset, size_t count) {
    if (!sent) return;
    for (uint32_t to = 0; to < c.ranks; ++to) {
      const auto* piece = static_cast<const std::byte*>(sent) + pieces.offsets[to] + offset;
      if (const size_t part = pieces.part(to, offset, count)) std::memcpy(slot + to * step, piece, part);
    }
  };
  c.exchange(call, longest, step, put, [&](const Slots& slots, size_t offset, size_t count) {
    const Slots mine = [&](uint32_t from) { return slots(from) + c.rank * step; };
    take(mine, offset, count);
  });
}

void gather(Communicator& c, const char* call, const void* sent, void* received, const Pieces& pieces) {
  auto* out = static_cast<std::byte*>(received);
  const auto put = [&](std::byte* slot, size_t offset, size_t count) {
    if (const size_t part = pieces.part(c.rank, offset, count)) {
      std::memcpy(slot, static_cast<const std::byte*>(sent) + offset, part);
    }
  };
  c.exchange(call, pieces.longest(), Communicator::room, put,
             [&](const Slots& slots, size_t offset, size_t count) {
               for (uint32_t from = 0; from < c.ranks; ++from) {
                 if (const size_t part = pieces.part(from, offset, count)) {
                   std::memcpy(out + pieces.offsets[from] + offset, slots(from), part);
                 }
               }
             });
}

void reduce_to(Communicator& c, const char* call, const void* sent, void* received, size_t bytes, size_t size,
               Reduce reduce) {
  const auto put = [&](std::byte* slot, size_t offset, size_t count) {
    if (count) std::memcpy(slot, static_cast<const std::byte*>(sent) + offset, count);
  };
  c.exchange(call, bytes, Communicator::room, put, [&](const Slots& slots, size_t offset, size_t count) {
    if (received && count) reduce(static_cast<std::byte*>(received) + offset, slots, c.ranks, count / size);
  });
}

void scatter_reduced(Communicator& c, const char* call, const void* sent, const Pieces& pieces,
                     void* received, size_t size, Reduce reduce) {
  exchange_pairs(c, call, pieces.longest(), sent, pieces,
                 [&](const Slots& slots, size_t offset, size_t count) {
                   const size_t part = pieces.part(c.rank, offset, count);
                   if (part) reduce(static_cast<std::byte*>(received) + offset, slots, c.ranks, part / size);
                 });
}

/// The longest piece that any rank has, which only that rank knows.
size_t agree_on_longest(Communicator& c, const char* call, size_t own) {
  size_t longest = 0;
  const auto put = [&](std::byte* slot, size_t, size_t) { std::memcpy(slot, &own, sizeof own); };
  c.exchange(call, sizeof own, sizeof own, put, [&](const Slots& slots, size_t, size_t) {
    for (uint32_t rank = 0; rank < c.ranks; ++rank) {
      size_t theirs;
      std::memcpy(&theirs, slots(rank), sizeof theirs);
      longest = std::max(longest, theirs);
    }
  });
  return longest;
}

void all_to_all(Communicator& c, const char* call, const void* sent, const Pieces& out, const void* received,
                const Pieces& in) {
  const size_t longest = agree_on_longest(c, call, std::max(out.longest(), in.longest()));
  auto* target = static_cast<std::byte*>(const_cast<void*>(received));
  exchange_pairs(c, call, longest, sent, out, [&](const Slots& slots, size_t offset, size_t count) {
    for (uint32_t from = 0; from < c.ranks; ++from) {
      if (const size_t part = in.part(from, offset, count)) {
        std::memcpy(target + in.offsets[from] + offset, slots(from), part);
      }
    }
  });
}

HcclResult all_to_all(const char* function, HcclComm comm, const void* sent, const Pieces& out,
                      const void* received, const Pieces& in, aclrtStream stream) {
  if (out.longest()) require_pointer(sent, "sendBuf");
  if (in.longest()) require_pointer(received, "recvBuf");
  return launch(function, find(comm), stream,
                [=](Communicator& c) { all_to_all(c, function, sent, out, received, in); });
}

/// `entry` for bodies that give a result of their own.
template <class Body>
HcclResult answer(const char* function, Body&& body) noexcept {
  HcclResult result = HCCL_SUCCESS;
  const HcclResult refused = entry(function, [&] { result = body(); });
  return refused ? refused : result;
}

}  // namespace

HcclResult HcclAllReduce(void* sent, void* received, uint64_t count, HcclDataType type, HcclReduceOp op,
                         HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    a.buffer(sent, "sendBuf");
    a.buffer(received, "recvBuf");
    const Reduce reduce = reduction(type, op);
    return launch("HcclAllReduce", a.communicator, stream,
                  [=, bytes = a.bytes, size = a.size](Communicator& c) {
                    reduce_to(c, "HcclAllReduce", sent, received, bytes, size, reduce);
                  });
  });
}

HcclResult HcclReduce(void* sent, void* received, uint64_t count, HcclDataType type, HcclReduceOp op,
                      uint32_t root, HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    a.root(root);
    a.buffer(sent, "sendBuf");
    if (a.communicator->rank == root) a.buffer(received, "recvBuf");
    const Reduce reduce = reduction(type, op);
    return launch("HcclReduce", a.communicator, stream, [=, bytes = a.bytes, size = a.size](Communicator& c) {
      reduce_to(c, "HcclReduce", sent, c.rank == root ? received : nullptr, bytes, size, reduce);
    });
  });
}

HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm,
                         aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    a.root(root);
    a.buffer(buffer, "buf");
    return launch("HcclBroadcast", a.communicator, stream, [=, bytes = a.bytes](Communicator& c) {
      auto* data = static_cast<std::byte*>(buffer);
      const auto put = [&](std::byte* slot, size_t offset, size_t n) {
        if (c.rank == root && n) std::memcpy(slot, data + offset, n);
      };
      c.exchange("HcclBroadcast", bytes, Communicator::room, put,
                 [&](const Slots& slots, size_t offset, size_t n) {
                   if (c.rank != root && n) std::memcpy(data + offset, slots(root), n);
                 });
    });
  });
}

HcclResult HcclScatter(void* sent, void* received, uint64_t count, HcclDataType type, uint32_t root,
                       HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    a.root(root);
    a.buffer(received, "recvBuf");
    if (a.communicator->rank == root) a.buffer(sent, "sendBuf");
    return launch("HcclScatter", a.communicator, stream, [=, bytes = a.bytes](Communicator& c) {
      const Pieces pieces(c.ranks, bytes);
      exchange_pairs(c, "HcclScatter", bytes, c.rank == root ? sent : nullptr, pieces,
                     [&](const Slots& slots, size_t offset, size_t n) {
                       if (n) std::memcpy(static_cast<std::byte*>(received) + offset, slots(root), n);
                     });
    });
  });
}

HcclResult HcclAllGather(void* sent, void* received, uint64_t count, HcclDataType type, HcclComm comm,
                         aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    a.buffer(sent, "sendBuf");
    a.buffer(received, "recvBuf");
    return launch("HcclAllGather", a.communicator, stream, [=, bytes = a.bytes](Communicator& c) {
      gather(c, "HcclAllGather", sent, received, Pieces(c.ranks, bytes));
    });
  });
}

HcclResult HcclAllGatherV(void* sent, uint64_t count, void* received, const void* counts,
                          const void* displacements, HcclDataType type, HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    const Pieces pieces(a.communicator->ranks, counts, displacements, a.size);
    a.buffer(sent, "sendBuf");
    if (pieces.longest()) require_pointer(received, "recvBuf");
    if (pieces.sizes[a.communicator->rank] != a.bytes) {
      refuse(HCCL_E_PARA, "sendCount=" + std::to_string(count) + " is not what recvCounts has for this rank");
    }
    return launch("HcclAllGatherV", a.communicator, stream,
                  [=](Communicator& c) { gather(c, "HcclAllGatherV", sent, received, pieces); });
  });
}

HcclResult HcclReduceScatter(void* sent, void* received, uint64_t count, HcclDataType type, HcclReduceOp op,
                             HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    a.buffer(sent, "sendBuf");
    a.buffer(received, "recvBuf");
    const Reduce reduce = reduction(type, op);
    return launch("HcclReduceScatter", a.communicator, stream,
                  [=, bytes = a.bytes, size = a.size](Communicator& c) {
                    const Pieces pieces(c.ranks, bytes);
                    scatter_reduced(c, "HcclReduceScatter", sent, pieces, received, size, reduce);
                  });
  });
}

HcclResult HcclReduceScatterV(void* sent, const void* counts, const void* displacements, void* received,
                              uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm,
                              aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments a(comm, count, type);
    const Pieces pieces(a.communicator->ranks, counts, displacements, a.size);
    if (pieces.longest()) require_pointer(sent, "sendBuf");
    a.buffer(received, "recvBuf");
    if (pieces.sizes[a.communicator->rank] != a.bytes) {
      refuse(HCCL_E_PARA, "recvCount=" + std::to_string(count) + " is not what sendCounts has for this rank");
    }
    const Reduce reduce = reduction(type, op);
    return launch("HcclReduceScatterV", a.communicator, stream, [=, size = a.size](Communicator& c) {
      scatter_reduced(c, "HcclReduceScatterV", sent, pieces, received, size, reduce);
    });
  });
}

HcclResult HcclAlltoAll(const void* sent, uint64_t send_count, HcclDataType send_type, const void* received,
                        uint64_t count, HcclDataType type, HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const Arguments out(comm, send_count, send_type), in(comm, count, type);
    const uint32_t ranks = out.communicator->ranks;
    return all_to_all("HcclAlltoAll", comm, sent, Pieces(ranks, out.bytes), received, Pieces(ranks, in.bytes),
                      stream);
  });
}

HcclResult HcclAlltoAllV(const void* sent, const void* send_counts, const void* send_displacements,
                         HcclDataType send_type, const void* received, const void* counts,
                         const void* displacements, HcclDataType type, HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    const uint32_t ranks = find(comm)->ranks;
    const Pieces out(ranks, send_counts, send_displacements, size_of(send_type));
    const Pieces in(ranks, counts, displacements, size_of(type));
    return all_to_all("HcclAlltoAllV", comm, sent, out, received, in, stream);
  });
}

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    return launch("HcclBarrier", find(comm), stream, [](Communicator& c) {
      c.exchange("HcclBarrier", 0, Communicator::room, nothing, [](const Slots&, size_t, size_t) {});
    });
  });
}

// ---- point to point

namespace {

HcclResult send_or_receive(const char* function, const HcclSendRecvItem& item, HcclComm comm,
                           aclrtStream stream) {
  const Arguments a(comm, item.count, item.dataType);
  a.buffer(item.buf, "buf");
  if (item.remoteRank >= a.communicator->ranks) {
    refuse(HCCL_E_PARA, "remoteRank=" + std::to_string(item.remoteRank) + ": there are " +
                            std::to_string(a.communicator->ranks) + " ranks");
  }
  const bool receives = item.sendRecvType == HCCL_RECV;
  if (!receives && item.sendRecvType != HCCL_SEND) {
    refuse(HCCL_E_PARA,
           "sendRecvType=" + std::to_string(item.sendRecvType) + " is not HCCL_SEND or HCCL_RECV");
  }
  const auto work = [item, receives, bytes = a.bytes](Communicator& c) {
    if (receives) {
      c.receive(item.buf, bytes, item.remoteRank);
    } else {
      c.send(item.buf, bytes, item.remoteRank);
    }
  };
  return launch(function, a.communicator, stream, work, receives);
}

}  // namespace

HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t to, HcclComm comm,
                    aclrtStream stream) {
  return answer(__func__, [&] {
    return send_or_receive("HcclSend", {HCCL_SEND, buffer, count, type, to}, comm, stream);
  });
}

HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t from, HcclComm comm,
                    aclrtStream stream) {
  return answer(__func__, [&] {
    return send_or_receive("HcclRecv", {HCCL_RECV, buffer, count, type, from}, comm, stream);
  });
}

HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm comm, aclrtStream stream) {
  return answer(__func__, [&] {
    require_pointer(items, "sendRecvInfo");
    start_group();
    HcclResult refused = HCCL_SUCCESS;
    for (uint32_t i = 0; i < count && !refused; ++i) {
      refused =
          answer(__func__, [&] { return send_or_receive("HcclBatchSendRecv", items[i], comm, stream); });
    }
    const HcclResult result = end_group();
    return refused ? refused : result;
  });
}

HcclResult HcclGroupStart() {
  return entry(__func__, [] { start_group(); });
}

HcclResult HcclGroupEnd() {
  return answer(__func__, [] { return end_group(); });
}
