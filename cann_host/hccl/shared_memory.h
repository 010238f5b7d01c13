// Memory without a name that several processes map, and waiting for a word in it. Nothing of it outlives the
// processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace cann_host::hccl {

/// A descriptor that closes itself.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(other.release()) {}
  File& operator=(File&& other) noexcept;
  ~File();

  int get() const { return descriptor_; }
  int release();

  /// Empty anonymous memory of this process. Throws HCCL_E_SYSCALL.
  static File anonymous();
  /// The file behind a descriptor of another process of the same user. Throws HCCL_E_REMOTE.
  static File of_process(int32_t process, int32_t descriptor);

 private:
  int descriptor_ = -1;
};

class Mapping {
 public:
  /// Maps `size` bytes, growing the file to it. Throws HCCL_E_MEMORY.
  Mapping(const File& file, size_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t size_;
};

using Clock = std::chrono::steady_clock;

/// Waits until `done()`, which looks at what the word tells; whoever changes the word calls `wake`. About
/// every 50 ms `check()` is called, which throws when waiting makes no sense any more.
void wait_until(std::atomic<uint32_t>& word, const std::function<bool()>& done,
                const std::function<void()>& check);
void wake(std::atomic<uint32_t>& word);

/// False if the process has ended, also if nobody has asked for its exit code.
bool is_running(int32_t process);

}  // namespace cann_host::hccl
