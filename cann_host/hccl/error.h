// How a function of HCCL says no: code inside throws Error, `entry` turns it into a result and into the
// message that aclGetRecentErrMsg gives.
#pragma once

#include <cann/hccl.h>

#include <exception>
#include <string>

#include "cann_host/runtime/task.h"

namespace cann_host::hccl {

struct Error : std::exception {
  Error(HcclResult code, std::string text) : code(code), text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }

  HcclResult code;
  std::string text;
};

[[noreturn]] inline void refuse(HcclResult code, std::string text) { throw Error(code, std::move(text)); }

inline void require_pointer(const void* pointer, const char* name) {
  if (!pointer) refuse(HCCL_E_PTR, std::string(name) + " is a null pointer");
}

/// The result for the exception in flight.
inline HcclResult report(const std::string& what) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(what + ": " + error.text);
    return error.code;
  } catch (const std::bad_alloc&) {
    set_last_error(what + ": no memory");
    return HCCL_E_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(what + ": " + error.what());
    return HCCL_E_INTERNAL;
  }
}

template <class Body>
HcclResult entry(const char* function, Body&& body) noexcept {
  try {
    body();
    return HCCL_SUCCESS;
  } catch (...) {
    return report(function);
  }
}

}  // namespace cann_host::hccl
