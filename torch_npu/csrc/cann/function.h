#pragma once

#include <cstdint>
#include <vector>

#include "cann/acl.h"

namespace torch_npu::cann {

/// Raises c10::AcceleratorError (torch.AcceleratorError): which call failed, what the code means, CANN's
/// message for this thread and what to do.
[[noreturn]] void raise_error(aclError code, const char* call);

/// raise_error() if `code` is not success.
inline void check(aclError code, const char* call) {
  if (code != ACL_SUCCESS) [[unlikely]]
    raise_error(code, call);
}

/// Raises: this CANN lacks the optional function `name`.
[[noreturn]] void raise_missing(const char* name);

/// One function of CANN's C ABI before it is known which CANN will provide it.
struct Symbol {
  const char* name;
  void* address = nullptr;
};

template <class Signature>
class Function;

/// `f(args…)` calls it and gives back what CANN returned, `f.checked(args…)` raises if that is an error.
/// Calling an optional function that this CANN lacks raises.
template <class Result, class... Args>
class Function<Result(Args...)> : private Symbol {
 public:
  Function(std::vector<Symbol*>& table, const char* name) : Symbol{name} { table.push_back(this); }
  Function(const Function&) = delete;

  explicit operator bool() const { return address != nullptr; }

  Result operator()(Args... args) const {
    if (!address) [[unlikely]]
      raise_missing(name);
    return reinterpret_cast<Result (*)(Args...)>(address)(args...);
  }

  void checked(Args... args) const { check((*this)(args...), name); }
};

}  // namespace torch_npu::cann
