// A typed call of an aclnn operator: descriptors for the arguments, phase 1, phase 2.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "cann/acl.h"
#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/stream.h"

namespace torch_npu {

aclDataType to_acl(at::ScalarType dtype);

/// A descriptor and its destruction.
template <class T, auto Destroy>
class Handle {
 public:
  explicit Handle(T* handle) : handle_(handle) {}
  Handle(const Handle&) = delete;
  ~Handle() {
    if (handle_ != nullptr) (cann::api().*Destroy)(handle_);
  }
  operator T*() const { return handle_; }

 private:
  T* handle_;
};

using TensorHandle = Handle<aclTensor, &cann::Api::aclDestroyTensor>;
using ScalarHandle = Handle<aclScalar, &cann::Api::aclDestroyScalar>;
using IntArrayHandle = Handle<aclIntArray, &cann::Api::aclDestroyIntArray>;
using BoolArrayHandle = Handle<aclBoolArray, &cann::Api::aclDestroyBoolArray>;
using FloatArrayHandle = Handle<aclFloatArray, &cann::Api::aclDestroyFloatArray>;
using TensorListHandle = Handle<aclTensorList, &cann::Api::aclDestroyTensorList>;
using ScalarListHandle = Handle<aclScalarList, &cann::Api::aclDestroyScalarList>;

/// Null for an undefined tensor.
aclTensor* create_tensor(const at::Tensor& tensor);
aclScalar* create_scalar(const at::Scalar& scalar);
aclIntArray* create_int_array(at::IntArrayRef values);
aclBoolArray* create_bool_array(at::ArrayRef<bool> values);
aclFloatArray* create_float_array(at::ArrayRef<double> values);
aclTensorList* create_tensor_list(at::TensorList tensors);
aclTensorList* create_tensor_list(const at::ITensorListRef& tensors);
aclTensorList* create_tensor_list(const c10::List<std::optional<at::Tensor>>& tensors);
aclScalarList* create_scalar_list(at::ArrayRef<at::Scalar> scalars);

/// How an argument of the adapter becomes one of type Abi. The result lives until the call returned.
template <class Abi>
struct Convert {
  template <class T>
  static Abi from(const T& value) {
    return static_cast<Abi>(value);
  }
};

template <>
struct Convert<const aclTensor*> {
  static TensorHandle from(const at::Tensor& t) { return TensorHandle(create_tensor(t)); }
  static TensorHandle from(const std::optional<at::Tensor>& t) {
    return TensorHandle(t.has_value() ? create_tensor(*t) : nullptr);
  }
  static TensorHandle from(std::nullptr_t) { return TensorHandle(nullptr); }
  static aclTensor* from(aclTensor* borrowed) { return borrowed; }
};
template <>
struct Convert<aclTensor*> : Convert<const aclTensor*> {};

template <>
struct Convert<const aclScalar*> {
  static ScalarHandle from(const at::Scalar& s) { return ScalarHandle(create_scalar(s)); }
  static ScalarHandle from(const std::optional<at::Scalar>& s) {
    return ScalarHandle(s.has_value() ? create_scalar(*s) : nullptr);
  }
  static ScalarHandle from(std::nullptr_t) { return ScalarHandle(nullptr); }
};

template <>
struct Convert<const aclIntArray*> {
  static IntArrayHandle from(at::IntArrayRef v) { return IntArrayHandle(create_int_array(v)); }
  static IntArrayHandle from(at::OptionalIntArrayRef v) {
    return IntArrayHandle(v.has_value() ? create_int_array(*v) : nullptr);
  }
  static IntArrayHandle from(std::nullptr_t) { return IntArrayHandle(nullptr); }
};

template <>
struct Convert<const aclBoolArray*> {
  template <size_t N>
  static BoolArrayHandle from(const std::array<bool, N>& v) {
    return BoolArrayHandle(create_bool_array(v));
  }
};

template <>
struct Convert<const aclFloatArray*> {
  static FloatArrayHandle from(at::ArrayRef<double> v) { return FloatArrayHandle(create_float_array(v)); }
};

template <>
struct Convert<const aclTensorList*> {
  template <class List>
  static TensorListHandle from(const List& v) {
    if constexpr (std::is_convertible_v<const List&, at::TensorList>) {
      return TensorListHandle(create_tensor_list(at::TensorList(v)));
    } else {
      return TensorListHandle(create_tensor_list(v));
    }
  }
};
template <>
struct Convert<aclTensorList*> : Convert<const aclTensorList*> {};

template <>
struct Convert<const aclScalarList*> {
  static ScalarListHandle from(at::ArrayRef<at::Scalar> v) { return ScalarListHandle(create_scalar_list(v)); }
};

template <>
struct Convert<aclDataType> {
  static aclDataType from(at::ScalarType dtype) { return to_acl(dtype); }
};

template <>
struct Convert<const char*> {
  static const char* from(const char* text) { return text; }
  static std::string from(std::string_view text) { return std::string(text); }
};

/// Passes a converted argument on; only text needs more than an implicit conversion.
template <class Abi, class T>
Abi pass(const T& converted) {
  if constexpr (std::is_same_v<T, std::string>) {
    return converted.c_str();
  } else {
    return converted;
  }
}

/// The untyped half of an operator: its two symbols, found at first use.
class AclnnBase {
 public:
  explicit constexpr AclnnBase(const char* name) : name_(name) {}

  /// False where this CANN has no such operator: the caller falls back. One load once known.
  bool available() {
    const int8_t state = state_.load(std::memory_order_acquire);
    return state != 0 ? state > 0 : resolve();
  }
  const char* name() const { return name_; }

  /// Calls of each operator since the start or the last clear_calls(), without those never called.
  static std::map<std::string, int64_t> calls();
  static void clear_calls();

 protected:
  using Phase2 = aclError (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);

  bool resolve();
  /// Raises with CANN's message for what phase 1 refused.
  [[noreturn]] void refused(aclError code) const;
  void launch(uint64_t workspace_size, aclOpExecutor* executor);

  const char* name_;
  std::atomic<int8_t> state_{0};  // 0 not looked up, 1 there, -1 missing
  std::atomic<int64_t> calls_{0};
  void* phase1_ = nullptr;
  Phase2 phase2_ = nullptr;
};

template <class Phase1>
class Aclnn;

/// An aclnn operator with the signature of its phase 1, from the generated prototypes. Parameters end with
/// the workspace size and the executor, which the call supplies.
template <class... P>
class Aclnn<aclError(P...)> : public AclnnBase {
 public:
  using AclnnBase::AclnnBase;

  /// Puts the operator on the current stream of the current device. Arguments as in the op table's signature.
  template <class... Args>
  void operator()(const Args&... args) {
    static_assert(sizeof...(Args) + 2 == sizeof...(P), "wrong number of arguments for this aclnn operator");
    if (!available()) [[unlikely]]
      refused(ACL_ERROR_OP_NOT_FOUND);
    call(std::index_sequence_for<Args...>(), args...);
  }

 private:
  template <size_t I>
  using Parameter = std::tuple_element_t<I, std::tuple<P...>>;

  template <size_t... I, class... Args>
  void call(std::index_sequence<I...>, const Args&... args) {
    uint64_t workspace_size = 0;
    aclOpExecutor* executor = nullptr;
    // Converted arguments live until phase 2 returned.
    run<I...>(workspace_size, executor, Convert<Parameter<I>>::from(args)...);
  }

  template <size_t... I, class... Converted>
  void run(uint64_t& workspace_size, aclOpExecutor*& executor, const Converted&... converted) {
    const auto phase1 = reinterpret_cast<aclError (*)(P...)>(phase1_);
    const aclError code = phase1(pass<Parameter<I>>(converted)..., &workspace_size, &executor);
    if (code != ACL_SUCCESS) [[unlikely]]
      refused(code);
    launch(workspace_size, executor);
  }
};

}  // namespace torch_npu
