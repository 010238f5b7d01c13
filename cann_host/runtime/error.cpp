#include "error.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <new>
#include <utility>

#include "settings.h"

namespace cann_host {

constinit std::atomic<uint32_t> unusual{first_call};

namespace {

struct ThreadErrors {
  std::string message;
  std::string given;  // what aclGetRecentErrMsg returned last: it must outlive the call
  aclError code = ACL_SUCCESS;
};
thread_local ThreadErrors errors;

std::string format_text(const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  int length = std::vsnprintf(nullptr, 0, format, again);
  va_end(again);
  std::string text(static_cast<size_t>(std::max(length, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, arguments);
  return text;
}

aclError remember(aclError code, const char* function, const std::string& text) {
  errors.code = code;
  errors.message = std::string(function) + ": " + text;
  if (settings().trace) std::fprintf(stderr, "[cann_host] error %d: %s\n", code, errors.message.c_str());
  return code;
}

}  // namespace

void refuse(aclError code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = format_text(format, arguments);
  va_end(arguments);
  throw Error(code, std::move(text));
}

void set_last_error(std::string message) { errors.message = std::move(message); }

std::string take_last_error() { return std::exchange(errors.message, {}); }

aclError before_unusual_call(const char* function) noexcept try {
  if (unusual.fetch_and(~first_call) & first_call) {
    if (settings().trace) unusual.fetch_or(traced);
  }
  uint32_t reasons = unusual.load();
  if (reasons & forked) {
    return remember(
        ACL_ERROR_RT_DEV_SETUP_ERROR, function,
        "this process was forked from one that was using a device, which cannot be used here; start it "
        "with the 'spawn' method instead");
  }
  if (reasons & traced) std::fprintf(stderr, "[cann_host] %s\n", function);
  return ACL_SUCCESS;
} catch (...) {
  return ACL_ERROR_BAD_ALLOC;
}

aclError report_exception(const char* function) noexcept try {
  try {
    throw;
  } catch (const Error& error) {
    return remember(error.code, function, error.text);
  } catch (const std::bad_alloc&) {
    return remember(ACL_ERROR_BAD_ALLOC, function, "the host is out of memory");
  } catch (const std::exception& error) {
    return remember(ACL_ERROR_INTERNAL_ERROR, function, error.what());
  }
} catch (...) {
  return ACL_ERROR_INTERNAL_ERROR;
}

}  // namespace cann_host

using namespace cann_host;

const char* aclGetRecentErrMsg(void) {
  errors.given = take_last_error();
  return errors.given.c_str();
}

aclError aclrtGetLastError(aclrtLastErrLevel) { return std::exchange(errors.code, ACL_SUCCESS); }

aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return errors.code; }

void aclAppLog(aclLogLevel level, const char* function, const char*, uint32_t, const char* format, ...) {
  if (level < ACL_ERROR && !settings().trace) return;
  va_list arguments;
  va_start(arguments, format);
  std::string text = format_text(format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "[cann_host] %s: %s\n", function ? function : "?", text.c_str());
}
