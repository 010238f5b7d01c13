// How an entry point of the ABI says no: code inside throws Error, `entry` turns it into a code and a
// message.
#pragma once

#include <cann/acl.h>

#include <atomic>
#include <exception>
#include <string>
#include <type_traits>

#include "task.h"

namespace cann_host {

class Error : public std::exception {
 public:
  Error(aclError code, std::string text) : code(code), text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }

  aclError code;
  std::string text;
};

/// Throws Error. The text says what was seen, what was expected and, where it is not plain, what to do.
[[noreturn]] void refuse(aclError code, const char* format, ...) __attribute__((format(printf, 2, 3)));

/// Throws ACL_ERROR_INVALID_PARAM if an argument is null.
inline void require_pointer(const void* pointer, const char* name) {
  if (!pointer) [[unlikely]]
    refuse(ACL_ERROR_INVALID_PARAM, "%s is a null pointer", name);
}

/// The thread's message, which it then no longer has.
std::string take_last_error();

/// Reasons why an entry point has more to do than usual, as bits: normally none, and then this test is all it
/// costs.
enum Unusual : uint32_t { first_call = 1, traced = 2, forked = 4 };
extern std::atomic<uint32_t> unusual;

aclError before_unusual_call(const char* function) noexcept;
/// Translates the exception in flight. Its message becomes the thread's last error.
aclError report_exception(const char* function) noexcept;

/// Every function of the ABI is `return entry(__func__, [&] { … });`: no exception leaves the library, and no
/// call touches the state of a parent process (a lock in it may be held for ever).
template <class Body>
aclError entry(const char* function, Body&& body) noexcept {
  if (unusual.load(std::memory_order_relaxed)) [[unlikely]] {
    if (aclError code = before_unusual_call(function)) return code;
  }
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return ACL_SUCCESS;
    } else {
      return body();
    }
  } catch (...) {
    return report_exception(function);
  }
}

}  // namespace cann_host
