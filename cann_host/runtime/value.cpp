// Tasks that write, or wait for, a word of device memory.
#include <atomic>
#include <chrono>
#include <thread>

#include "memory.h"
#include "stream.h"

namespace cann_host {
namespace {

uint64_t* word_at(void* address) {
  require_device_memory("devAddr", address, sizeof(uint64_t));
  if (reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t)) {
    refuse(ACL_ERROR_RT_ADDR_UNALIGNED, "devAddr=%p: expected a multiple of 8", address);
  }
  return static_cast<uint64_t*>(address);
}

class ValueWriteTask : public Task {
 public:
  ValueWriteTask(uint64_t* word, uint64_t value) : word_(word), value_(value) {}
  aclError run() noexcept override {
    std::atomic_ref(*word_).store(value_, std::memory_order_release);
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "write of the value " + std::to_string(value_); }

 private:
  uint64_t* word_;
  uint64_t value_;
};

class ValueWaitTask : public Task {
 public:
  ValueWaitTask(uint64_t* word, uint64_t value, uint32_t condition)
      : word_(word), value_(value), condition_(condition) {}

  aclError run() noexcept override {
    while (!satisfied()) {
      if (!Worker::of_this_thread()) {
        set_last_error(
            "the word does not satisfy the condition, and work that runs inline cannot wait for it: write it "
            "first, or "
            "set CANN_HOST_ASYNC=1");
        return ACL_ERROR_RT_WAIT_TIMEOUT;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return ACL_SUCCESS;
  }
  std::string describe() const override { return "wait for the value " + std::to_string(value_); }

 private:
  bool satisfied() const {
    uint64_t seen = std::atomic_ref(*word_).load(std::memory_order_acquire);
    switch (condition_) {
      case ACL_VALUE_WAIT_GEQ:
        return static_cast<int64_t>(seen - value_) >= 0;
      case ACL_VALUE_WAIT_EQ:
        return seen == value_;
      case ACL_VALUE_WAIT_AND:
        return (seen & value_) != 0;
      default:
        return ~(seen | value_) != 0;
    }
  }

  uint64_t* word_;
  uint64_t value_;
  uint32_t condition_;
};

}  // namespace
}  // namespace cann_host

using namespace cann_host;

aclError aclrtValueWrite(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  return entry(__func__, [&] {
    if (flag) refuse(ACL_ERROR_INVALID_PARAM, "flag=%u: expected 0", flag);
    return stream_of(stream).submit(std::make_unique<ValueWriteTask>(word_at(address), value));
  });
}

aclError aclrtValueWait(void* address, uint64_t value, uint32_t flag, aclrtStream stream) {
  return entry(__func__, [&] {
    if (flag > ACL_VALUE_WAIT_NOR) refuse(ACL_ERROR_INVALID_PARAM, "flag=%u is not a condition", flag);
    return stream_of(stream).submit(std::make_unique<ValueWaitTask>(word_at(address), value, flag));
  });
}
