#include "communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <map>
#include <random>

#include "error.h"

namespace cann_host::hccl {
namespace {

/// The content of HcclRootInfo::internal.
struct Root {
  char magic[16];
  int32_t process, descriptor;
  uint64_t key[2];  // tells the memory from another that has the numbers of a process that ended
};
constexpr char magic[16] = "cann_host hccl";
static_assert(sizeof(Root) <= HCCL_ROOT_INFO_BYTES);

/// Memory of root infos of this process until their ranks have joined.
std::mutex roots_mutex;
std::map<int, File> roots;

std::chrono::seconds seconds(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return std::chrono::seconds(fallback);
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc{} || *end || value <= 0) {
    refuse(HCCL_E_PARA, std::string(variable) + "=" + text + ": expected a number of seconds");
  }
  return std::chrono::seconds(value);
}

std::chrono::seconds connect_timeout() { return seconds("HCCL_CONNECT_TIMEOUT", 120); }
std::chrono::seconds execute_timeout() { return seconds("HCCL_EXEC_TIMEOUT", 1836); }

void write_all(int file, const std::byte* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = pwrite(file, data + done, bytes - done, static_cast<off_t>(done));
    if (count <= 0) refuse(HCCL_E_MEMORY, std::string("writing a message: ") + std::strerror(errno));
    done += static_cast<size_t>(count);
  }
}

void read_all(int file, std::byte* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = pread(file, data + done, bytes - done, static_cast<off_t>(done));
    if (count <= 0) refuse(HCCL_E_REMOTE, "a message is shorter than its sender said");
    done += static_cast<size_t>(count);
  }
}

}  // namespace

struct Communicator::Header {
  std::atomic<uint64_t> key[2];
  std::atomic<uint32_t> joined;
  std::atomic<uint32_t> arrived, phase;  // of the meeting
  std::atomic<uint32_t> failed;
  std::atomic<int32_t> process[max_ranks];
};

/// Messages from one rank to another, each a file of the sender.
struct Communicator::Mailbox {
  static constexpr uint32_t length = 32;
  struct Message {
    int32_t file;
    uint64_t bytes;
  };
  std::atomic<uint32_t> posted, taken;
  Message messages[length];
};

namespace {
constexpr size_t aligned(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
constexpr size_t slot_bytes = Communicator::room + 4096;  // the call lies before the data
}  // namespace

size_t Communicator::shared_bytes(uint32_t ranks) {
  return aligned(sizeof(Header)) + aligned(sizeof(Mailbox) * ranks * ranks) + slot_bytes * 2 * ranks;
}

Communicator::Header& Communicator::header() const { return *reinterpret_cast<Header*>(memory_->data()); }

Communicator::Mailbox& Communicator::mailbox(uint32_t from, uint32_t to) const {
  auto* first = reinterpret_cast<Mailbox*>(memory_->data() + aligned(sizeof(Header)));
  return first[from * ranks + to];
}

Call& Communicator::call(uint32_t of, uint32_t half) const {
  return *reinterpret_cast<Call*>(slot(of, half) - 4096);
}

std::byte* Communicator::slot(uint32_t of, uint32_t half) const {
  const size_t slots = aligned(sizeof(Header)) + aligned(sizeof(Mailbox) * ranks * ranks);
  return memory_->data() + slots + slot_bytes * (2 * of + half) + 4096;
}

HcclRootInfo Communicator::make_root_info() {
  File file = File::anonymous();
  std::random_device random;
  Root root{};
  std::memcpy(root.magic, magic, sizeof magic);
  root.process = getpid();
  root.descriptor = file.get();
  for (uint64_t& part : root.key) part = static_cast<uint64_t>(random()) << 32 | random();
  const Mapping memory(file, sizeof(Header));
  auto& header = *reinterpret_cast<Header*>(memory.data());
  header.key[0] = root.key[0];
  header.key[1] = root.key[1];

  HcclRootInfo info{};
  std::memcpy(info.internal, &root, sizeof root);
  const std::lock_guard lock(roots_mutex);
  roots.insert_or_assign(root.descriptor, std::move(file));
  return info;
}

Communicator::Communicator(uint32_t ranks, const HcclRootInfo& root, uint32_t rank, std::string name)
    : ranks(ranks), rank(rank), name(std::move(name)) {
  if (ranks == 0 || ranks > max_ranks) {
    refuse(HCCL_E_PARA, "nRanks=" + std::to_string(ranks) + ": expected 1 to " + std::to_string(max_ranks));
  }
  if (rank >= ranks) {
    refuse(HCCL_E_PARA, "rank=" + std::to_string(rank) + ": there are " + std::to_string(ranks) + " ranks");
  }
  sent_.resize(ranks);
  join(root);
}

void Communicator::join(const HcclRootInfo& info) {
  Root root;
  std::memcpy(&root, info.internal, sizeof root);
  if (std::memcmp(root.magic, magic, sizeof magic)) {
    refuse(HCCL_E_PARA, "rootInfo was not made by HcclGetRootInfo of cann_host");
  }
  const File file = File::of_process(root.process, root.descriptor);
  memory_ = std::make_unique<Mapping>(file, shared_bytes(ranks));
  if (header().key[0] != root.key[0] || header().key[1] != root.key[1]) {
    refuse(HCCL_E_REMOTE, "the process that made rootInfo has ended, or its ranks have already met");
  }
  int32_t nobody = 0;
  if (!header().process[rank].compare_exchange_strong(nobody, getpid())) {
    refuse(HCCL_E_PARA, "rank=" + std::to_string(rank) + " is taken by process " + std::to_string(nobody));
  }
  ++header().joined;
  wake(header().joined);
  const auto complete = [&] { return header().joined.load() >= ranks; };
  wait(header().joined, complete, connect_timeout(), "the other ranks to join (HCCL_CONNECT_TIMEOUT)", {});
  if (root.process == getpid()) {
    const std::lock_guard lock(roots_mutex);
    roots.erase(root.descriptor);
  }
}

Communicator::~Communicator() {
  for (uint32_t to = 0; to < ranks; ++to) {
    Mailbox& box = mailbox(rank, to);
    try {
      const auto taken = [&] { return box.taken.load() == box.posted.load(); };
      wait(box.taken, taken, connect_timeout(), "a message to be received", {to});
    } catch (const Error&) {
      // The receiver is gone or has failed; it was told, or nobody is there to tell.
    }
  }
}

std::vector<uint32_t> Communicator::others() const {
  std::vector<uint32_t> result;
  for (uint32_t other = 0; other < ranks; ++other) {
    if (other != rank) result.push_back(other);
  }
  return result;
}

void Communicator::wait(std::atomic<uint32_t>& word, const std::function<bool()>& done,
                        std::chrono::seconds patience, const char* what,
                        const std::vector<uint32_t>& for_ranks) {
  const auto deadline = Clock::now() + patience;
  wait_until(word, done, [&] {
    if (header().failed.load()) {
      refuse(HCCL_E_REMOTE, std::string("another rank failed while this one waited for ") + what);
    }
    for (const uint32_t other : for_ranks) {
      const int32_t process = header().process[other];
      if (!is_running(process) && !done()) {
        refuse(HCCL_E_REMOTE, "rank " + std::to_string(other) + " (process " + std::to_string(process) +
                                  ") has ended while rank " + std::to_string(rank) + " waited for " + what);
      }
    }
    if (Clock::now() > deadline) {
      refuse(HCCL_E_TIMEOUT, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " waited " +
                                 std::to_string(patience.count()) + " s for " + what);
    }
  });
}

void Communicator::meet(const char* name, size_t bytes, uint32_t half) {
  Call& mine = call(rank, half);
  std::strncpy(mine.name, name, sizeof mine.name - 1);
  mine.bytes = bytes;
  const uint32_t phase = header().phase.load();
  if (header().arrived.fetch_add(1) + 1 == ranks) {
    header().arrived = 0;
    ++header().phase;
    wake(header().phase);
  } else {
    const auto met = [&] { return header().phase.load() != phase; };
    wait(header().phase, met, execute_timeout(), "the other ranks (HCCL_EXEC_TIMEOUT)", others());
  }
  for (const uint32_t other : others()) {
    const Call& theirs = call(other, half);
    if (std::strcmp(theirs.name, mine.name) || theirs.bytes != bytes) {
      refuse(HCCL_E_PARA, "rank " + std::to_string(rank) + " called it with " + std::to_string(bytes) +
                              " bytes, rank " + std::to_string(other) + " called " + theirs.name + " with " +
                              std::to_string(theirs.bytes) + " bytes");
    }
  }
}

void Communicator::send(const void* data, size_t bytes, uint32_t to) {
  File file;
  if (bytes) {
    file = File::anonymous();
    write_all(file.get(), static_cast<const std::byte*>(data), bytes);
  }
  const std::lock_guard lock(sending_[to]);
  Mailbox& box = mailbox(rank, to);
  const auto has_room = [&] { return box.posted.load() - box.taken.load() < Mailbox::length; };
  wait(box.taken, has_room, execute_timeout(), "room for a message (HCCL_EXEC_TIMEOUT)", {to});
  std::deque<File>& sent = sent_[to];
  while (sent.size() > box.posted.load() - box.taken.load()) sent.pop_front();
  box.messages[box.posted.load() % Mailbox::length] = {file.get(), bytes};
  sent.push_back(std::move(file));
  ++box.posted;
  wake(box.posted);
}

void Communicator::receive(void* data, size_t bytes, uint32_t from) {
  const std::lock_guard lock(receiving_[from]);
  Mailbox& box = mailbox(from, rank);
  const auto posted = [&] { return box.posted.load() != box.taken.load(); };
  wait(box.posted, posted, execute_timeout(), "a message (HCCL_EXEC_TIMEOUT)", {from});
  const Mailbox::Message message = box.messages[box.taken.load() % Mailbox::length];
  if (message.bytes != bytes) {
    refuse(HCCL_E_PARA, "rank " + std::to_string(from) + " sent " + std::to_string(message.bytes) +
                            " bytes, rank " + std::to_string(rank) + " expected " + std::to_string(bytes));
  }
  if (bytes) {
    const File file = File::of_process(header().process[from], message.file);
    read_all(file.get(), static_cast<std::byte*>(data), bytes);
  }
  ++box.taken;
  wake(box.taken);
}

void Communicator::fail(HcclResult result) noexcept {
  HcclResult none = HCCL_SUCCESS;
  error_.compare_exchange_strong(none, result);
  header().failed = 1;
  wake(header().phase);
}

}  // namespace cann_host::hccl
