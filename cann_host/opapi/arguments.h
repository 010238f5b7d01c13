// How each kind of argument crosses the ABI: what the client passes (Abi), what an executor keeps (Held) and
// what the body of an operator sees (Host). One small struct for each kind of opspec/table.py's C_TYPES.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cann_host/opapi/descriptor.h"

namespace cann_host {

/// A CPU tensor over the client's memory. The tensor does not own it.
at::Tensor to_aten(const aclTensor& tensor);
at::Scalar to_aten(const aclScalar& scalar);
at::ScalarType to_aten(aclDataType dtype);

/// An output whose shape the operator finds out. The client made it large enough and reads the shape
/// afterwards.
class DynamicOutput {
 public:
  explicit DynamicOutput(aclTensor* descriptor) : descriptor_(descriptor) {}
  /// Writes the values and the shape back. Throws if the client's memory is too small.
  void set(const at::Tensor& result);
  bool wanted() const { return descriptor_ != nullptr; }

 private:
  aclTensor* descriptor_;
};

namespace arg {

struct Tensor {
  using Abi = const aclTensor*;
  using Held = Ref<const aclTensor>;
  static Held hold(Abi a) { return Held(a); }
  static at::Tensor host(const Held& h) { return h.get() == nullptr ? at::Tensor() : to_aten(*h.get()); }
};

struct OutTensor {
  using Abi = aclTensor*;
  using Held = Ref<aclTensor>;
  static Held hold(Abi a) { return Held(a); }
  static at::Tensor host(const Held& h) { return to_aten(*h.get()); }
};

struct OptionalTensor {
  using Abi = const aclTensor*;
  using Held = Ref<const aclTensor>;
  static Held hold(Abi a) { return Held(a); }
  static std::optional<at::Tensor> host(const Held& h) {
    return h.get() == nullptr ? std::nullopt : std::optional(to_aten(*h.get()));
  }
};

struct OptionalOutTensor : OptionalTensor {
  using Abi = aclTensor*;
};

struct DynamicTensor {
  using Abi = aclTensor*;
  using Held = Ref<aclTensor>;
  static Held hold(Abi a) { return Held(a); }
  static DynamicOutput host(const Held& h) { return DynamicOutput(h.get()); }
};

struct TensorList {
  using Abi = const aclTensorList*;
  using Held = Ref<const aclTensorList>;
  static Held hold(Abi a) { return Held(a); }
  static std::vector<at::Tensor> host(const Held& h) {
    std::vector<at::Tensor> tensors;
    if (h.get() == nullptr) return tensors;
    tensors.reserve(h.get()->values.size());
    for (const auto& t : h.get()->values) tensors.push_back(Tensor::host(t));
    return tensors;
  }
};

struct OutTensorList : TensorList {
  using Abi = aclTensorList*;
};

struct Scalar {
  using Abi = const aclScalar*;
  using Held = Ref<const aclScalar>;
  static Held hold(Abi a) { return Held(a); }
  static at::Scalar host(const Held& h) { return to_aten(*h.get()); }
};

struct OptionalScalar : Scalar {
  static std::optional<at::Scalar> host(const Held& h) {
    return h.get() == nullptr ? std::nullopt : std::optional(to_aten(*h.get()));
  }
};

struct ScalarList {
  using Abi = const aclScalarList*;
  using Held = Ref<const aclScalarList>;
  static Held hold(Abi a) { return Held(a); }
  static std::vector<at::Scalar> host(const Held& h) {
    std::vector<at::Scalar> scalars;
    for (const auto& s : h.get()->values) scalars.push_back(Scalar::host(s));
    return scalars;
  }
};

struct IntArray {
  using Abi = const aclIntArray*;
  using Held = Ref<const aclIntArray>;
  static Held hold(Abi a) { return Held(a); }
  static at::IntArrayRef host(const Held& h) {
    return h.get() == nullptr ? at::IntArrayRef() : at::IntArrayRef(h.get()->values);
  }
};

struct OptionalIntArray : IntArray {
  static at::OptionalIntArrayRef host(const Held& h) {
    return h.get() == nullptr ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(h.get()->values);
  }
};

struct BoolArray {
  using Abi = const aclBoolArray*;
  using Held = Ref<const aclBoolArray>;
  static Held hold(Abi a) { return Held(a); }
  static const std::vector<bool>& host(const Held& h) { return h.get()->values; }
};

/// Empty for null.
struct OptionalBoolArray : BoolArray {
  static const std::vector<bool>& host(const Held& h) {
    static const std::vector<bool> none;
    return h.get() == nullptr ? none : BoolArray::host(h);
  }
};

struct FloatArray {
  using Abi = const aclFloatArray*;
  using Held = Ref<const aclFloatArray>;
  static Held hold(Abi a) { return Held(a); }
  static at::ArrayRef<float> host(const Held& h) { return h.get()->values; }
};

struct Dtype {
  using Abi = aclDataType;
  using Held = aclDataType;
  static Held hold(Abi a) { return a; }
  static at::ScalarType host(Held h) { return to_aten(h); }
};

struct String {
  using Abi = const char*;
  using Held = std::string;
  static Held hold(Abi a) { return a == nullptr ? std::string() : std::string(a); }
  static std::string_view host(const Held& h) { return h; }
};

template <class T>
struct Plain {
  using Abi = T;
  using Held = T;
  static Held hold(Abi a) { return a; }
  static T host(Held h) { return h; }
};

using Bool = Plain<bool>;
using Int = Plain<int64_t>;
using Int32 = Plain<int32_t>;
using Int8 = Plain<int8_t>;
using Float = Plain<double>;
using Float32 = Plain<float>;

}  // namespace arg
}  // namespace cann_host
