// What a graph gathers while work is recorded into it, and what everyone who submits work must know of that.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cann/acl.h"

namespace torch_npu {

class NPUGeneratorImpl;

namespace memory {
struct Block;
}

namespace graph {

/// The random numbers of one generator inside one graph: operators read seed and offset from device memory,
/// which each replay fills before, and add how far into the graph they are.
struct RecordedRandom {
  at::Generator generator;
  at::Tensor seed_and_offset;  // int64[2] on the device
  uint64_t offset = 0;         // from the graph's begin; at the end of the recording, of all its draws
  uint64_t later = 0;          // how much further graphs draw that continue this one
  std::set<uint64_t> read;     // offsets that were read as the generator's state, and may be set again
  RecordedRandom* continued = nullptr;  // of the graph that this one continues, which fills seed_and_offset

  at::Tensor seed() const { return seed_and_offset.narrow(0, 0, 1); }
  at::Tensor start() const { return seed_and_offset.narrow(0, 1, 1); }
};

/// Lives as long as the graph. Streams that joined the capture may be used by several threads.
class Recording {
 public:
  Recording(c10::DeviceIndex device, c10::MempoolId_t pool);
  ~Recording();
  Recording(const Recording&) = delete;

  /// Work that will run as often as the graph uses this memory: it must stay, whatever becomes of its
  /// tensors. Memory of the graph's own pool stays anyway, and is shared by tensors that do not live at the
  /// same time.
  void keep(const c10::Storage& storage);
  /// Memory that whoever replays the graph knows to be there at each replay: it is not kept. Says so before
  /// any work is given it.
  void borrow(const c10::Storage& storage);
  /// Keeps an object of other code as long as the graph.
  void keep(std::shared_ptr<void> object);
  void count_node() { nodes_.fetch_add(1, std::memory_order_relaxed); }
  size_t nodes() const { return nodes_.load(std::memory_order_relaxed); }

  /// What the graph knows of a generator; made at the first question.
  RecordedRandom& random(const at::Generator& generator);
  /// This graph is replayed once after each replay of `earlier`, as a backward after its forward: it goes on
  /// drawing where that one stopped, and may draw its numbers again. `earlier` must outlive the capture.
  void continue_random_numbers_of(Recording& earlier);
  /// At the end of the capture: lets the graph that this one continues take its numbers, too.
  void reserve_random_numbers();
  /// Puts seed and offset of all generators that it uses to where the recorded work reads them, on the
  /// current stream, and advances the generators by what the graph draws.
  void advance_generators();

  const c10::DeviceIndex device;
  const c10::MempoolId_t pool;
  const std::string begin_line;  // the Python line that began the capture

 private:
  std::mutex mutex_;
  std::atomic<size_t> nodes_{0};
  std::unordered_map<memory::Block*, bool> kept_blocks_;
  std::vector<c10::Storage>
      kept_storages_;  // of memory that is not from the allocator, such as pinned memory
  std::vector<std::shared_ptr<void>> kept_objects_;
  std::map<c10::GeneratorImpl*, RecordedRandom> randoms_;
};

namespace detail {

extern std::atomic<int> active_captures;
Recording* current_recording(c10::DeviceIndex device);
Recording* recording_on(aclrtStream stream);
[[noreturn]] void refuse(const Recording& recording, const char* what, const char* why);

}  // namespace detail

/// The recording that work of this thread's current stream on `device` goes to (-1: on the current device);
/// null if the work runs. One load unless some capture is under way.
inline Recording* current_recording(c10::DeviceIndex device = -1) {
  if (detail::active_captures.load(std::memory_order_relaxed) == 0) [[likely]]
    return nullptr;
  return detail::current_recording(device);
}

/// The same for one stream.
inline Recording* recording_on(aclrtStream stream) {
  if (detail::active_captures.load(std::memory_order_relaxed) == 0) [[likely]]
    return nullptr;
  return detail::recording_on(stream);
}

/// Raises RuntimeError if the work of this thread is recorded: `what` ("aten::nonzero"), which line called
/// it, and `why` it cannot be ("the shape of its result depends on data").
inline void require_no_recording(const char* what, const char* why, c10::DeviceIndex device = -1) {
  if (const Recording* recording = current_recording(device)) [[unlikely]]
    detail::refuse(*recording, what, why);
}

/// The same for a call that waits for one stream.
inline void require_no_recording_on(aclrtStream stream, const char* what) {
  if (const Recording* recording = recording_on(stream)) [[unlikely]]
    detail::refuse(*recording, what, "the host would have to wait, and nothing runs before the replay");
}

/// Between these, current_recording() finds the recording on streams that record into `model`.
void begin(aclmdlRI model, Recording& recording);
void end(Recording& recording);

}  // namespace graph
}  // namespace torch_npu
