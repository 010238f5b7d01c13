#include "shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <utility>

#include "error.h"

namespace cann_host::hccl {
namespace {

[[noreturn]] void system_refuses(HcclResult code, const std::string& what) {
  const int reason = errno;
  refuse(code, what + ": " + std::strerror(reason));
}

}  // namespace

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

int File::release() { return std::exchange(descriptor_, -1); }

File File::anonymous() {
  File file(memfd_create("hccl", MFD_CLOEXEC));
  if (file.get() < 0) system_refuses(HCCL_E_SYSCALL, "memfd_create");
  return file;
}

File File::of_process(int32_t process, int32_t descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  File file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) {
    system_refuses(HCCL_E_REMOTE,
                   path + " of another rank (ranks must be processes of one user on one machine)");
  }
  return file;
}

Mapping::Mapping(const File& file, size_t size) : size_(size) {
  struct stat status{};
  if (fstat(file.get(), &status)) system_refuses(HCCL_E_MEMORY, "fstat of shared memory");
  const bool grows = static_cast<size_t>(status.st_size) < size;
  if (grows && ftruncate(file.get(), static_cast<off_t>(size))) {
    system_refuses(HCCL_E_MEMORY, std::to_string(size) + " bytes of shared memory");
  }
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    system_refuses(HCCL_E_MEMORY, std::to_string(size) + " bytes of shared memory");
  }
  data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() { munmap(data_, size_); }

void wait_until(std::atomic<uint32_t>& word, const std::function<bool()>& done,
                const std::function<void()>& check) {
  // The other ranks are mostly a few microseconds behind.
  for (int spin = 0; spin < 200; ++spin) {
    if (done()) return;
  }
  for (;;) {
    const uint32_t seen = word.load();
    if (done()) return;
    const timespec patience{0, 50'000'000};
    const long result = syscall(SYS_futex, &word, FUTEX_WAIT, seen, &patience, nullptr, 0);
    if (result == -1 && errno == ETIMEDOUT && !done()) check();
  }
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool is_running(int32_t process) {
  if (kill(process, 0) && errno == ESRCH) return false;
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // "pid (name) state …"
  return name_end == std::string::npos || name_end + 2 >= text.size() || text[name_end + 2] != 'Z';
}

}  // namespace cann_host::hccl
