// Binaries of kernels and their launch. A device binary of this CANN is a shared library of the host whose
// kernels are functions of type KernelFunction.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cores.h"
#include "handle_table.h"
#include "stream.h"

namespace cann_host {
namespace {

/// Stays loaded while a kernel of it may still run: tasks and captured models share it.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) {
      const char* reason = dlerror();
      refuse(ACL_ERROR_RT_FILE_OPEN, "the binary cannot be loaded as a shared library of the host: %s",
             reason ? reason : "unknown reason");
    }
  }
  Library(const Library&) = delete;
  ~Library() { dlclose(handle_); }

  KernelFunction find(const char* name) const {
    return reinterpret_cast<KernelFunction>(dlsym(handle_, name));
  }

 private:
  void* handle_;
};

struct Kernel {
  std::shared_ptr<Library> library;
  KernelFunction function;
  std::string name;
};

HandleTable<Kernel, 1 << 16> kernels{"a kernel"};

struct Binary {
  std::shared_ptr<Library> library;
  std::mutex mutex;
  std::map<std::string, Kernel*> functions;

  explicit Binary(const char* path) : library(std::make_shared<Library>(path)) {}
  ~Binary() {
    for (auto& [name, kernel] : functions) kernels.destroy(*kernel);
  }
};

HandleTable<Binary, 1 << 16> binaries{"a binary"};

class KernelTask : public Task {
 public:
  KernelTask(const Kernel& kernel, uint32_t blocks, const void* args, size_t size)
      : library_(kernel.library), function_(kernel.function), name_(kernel.name), blocks_(blocks) {
    args_.resize((size + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    if (size) std::memcpy(args_.data(), args, size);
  }
  aclError run() noexcept override {
    run_blocks(function_, blocks_, args_.data());
    return ACL_SUCCESS;
  }
  std::string describe() const override {
    return "kernel " + name_ + " on " + std::to_string(blocks_) + " blocks";
  }

 private:
  std::shared_ptr<Library> library_;
  KernelFunction function_;
  std::string name_;
  uint32_t blocks_;
  std::vector<uint64_t> args_;
};

aclError launch(aclrtFuncHandle handle, uint32_t blocks, aclrtStream stream, const void* args, size_t size) {
  Kernel& kernel = kernels.get(handle, "funcHandle");
  if (blocks == 0) refuse(ACL_ERROR_INVALID_PARAM, "numBlocks=0: expected 1 or more");
  if (size) require_pointer(args, "args");
  Stream& s = stream_of(stream);
  if (s.runs_inline()) {
    run_blocks(kernel.function, blocks, args);
    return ACL_SUCCESS;
  }
  return s.submit(std::make_unique<KernelTask>(kernel, blocks, args, size));
}

/// A file in memory, as dlopen wants a path.
class MemoryFile {
 public:
  MemoryFile(const void* data, size_t length) : descriptor_(memfd_create("kernel", MFD_CLOEXEC)) {
    if (descriptor_ < 0) refuse(ACL_ERROR_RT_FILE_WRITE, "no file in memory: %s", std::strerror(errno));
    for (size_t done = 0; done < length;) {
      const ssize_t n = ::write(descriptor_, static_cast<const char*>(data) + done, length - done);
      if (n < 0) {
        ::close(descriptor_);
        refuse(ACL_ERROR_RT_FILE_WRITE, "%zu bytes do not fit into memory: %s", length, std::strerror(errno));
      }
      done += static_cast<size_t>(n);
    }
  }
  MemoryFile(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclrtBinaryLoadFromFile(const char* path, aclrtBinaryLoadOptions*, aclrtBinHandle* handle) {
  return entry(__func__, [&] {
    require_pointer(path, "binPath");
    require_pointer(handle, "binHandle");
    *handle = binaries.create(path);
  });
}

aclError aclrtBinaryLoadFromData(const void* data, size_t length, const aclrtBinaryLoadOptions*,
                                 aclrtBinHandle* handle) {
  return entry(__func__, [&] {
    require_pointer(data, "data");
    require_pointer(handle, "binHandle");
    MemoryFile file(data, length);
    *handle = binaries.create(file.path().c_str());
  });
}

aclError aclrtBinaryUnLoad(aclrtBinHandle handle) {
  return entry(__func__, [&] { binaries.destroy(binaries.get(handle, "binHandle")); });
}

aclError aclrtBinaryGetFunction(aclrtBinHandle handle, const char* name, aclrtFuncHandle* function) {
  return entry(__func__, [&] {
    Binary& binary = binaries.get(handle, "binHandle");
    require_pointer(name, "kernelName");
    require_pointer(function, "funcHandle");
    std::lock_guard lock(binary.mutex);
    Kernel*& kernel = binary.functions[name];
    if (!kernel) {
      const KernelFunction found = binary.library->find(name);
      if (!found) {
        binary.functions.erase(name);
        refuse(ACL_ERROR_INVALID_PARAM, "kernelName=%s: the binary has no such function", name);
      }
      kernel = kernels.create(Kernel{binary.library, found, name});
    }
    *function = kernel;
  });
}

aclError aclrtLaunchKernel(aclrtFuncHandle function, uint32_t blocks, const void* args, size_t size,
                           aclrtStream stream) {
  return entry(__func__, [&] { return launch(function, blocks, stream, args, size); });
}

aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle function, uint32_t blocks, aclrtStream stream,
                                       aclrtLaunchKernelCfg*, void* args, size_t size,
                                       aclrtPlaceHolderInfo* placeholders, size_t placeholder_count) {
  return entry(__func__, [&] {
    if (placeholders || placeholder_count) {
      refuse(
          ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
          "placeHolderNum=%zu: cann_host hands arguments over as they are; pass addresses of device memory",
          placeholder_count);
    }
    return launch(function, blocks, stream, args, size);
  });
}
