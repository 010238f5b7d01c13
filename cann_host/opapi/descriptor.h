// The objects that a CANN client describes its arguments with. They are counted, because an executor may
// outlive the client's handle: clients destroy descriptors as soon as phase 2 returned, while the work may
// still be queued or recorded.
#pragma once

#include <atomic>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cann/acl.h"

namespace cann_host {

/// Base of everything that aclCreate* returns. The client's handle is one reference.
class Counted {
 public:
  void retain() const noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  bool release() const noexcept { return references_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  mutable std::atomic<int32_t> references_{1};
};

/// Keeps a descriptor alive; null is a legal value (an optional argument that was not given).
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) noexcept : object_(object) {
    if (object_ != nullptr) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref(const Ref& other) noexcept : Ref(other.object_) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr && object_->release()) delete object_;
  }
  T* get() const noexcept { return object_; }

 private:
  T* object_ = nullptr;
};

/// A short list of extents without a heap allocation for up to six dimensions.
class Extents {
 public:
  static constexpr size_t kInline = 6;
  Extents() = default;
  Extents(const int64_t* values, size_t count) { assign(values, count); }
  void assign(const int64_t* values, size_t count) {
    size_ = count;
    if (count > kInline) {
      heap_.assign(values, values + count);
    } else {
      std::copy(values, values + count, inline_);
    }
  }
  size_t size() const noexcept { return size_; }
  const int64_t* data() const noexcept { return size_ > kInline ? heap_.data() : inline_; }
  const int64_t* begin() const noexcept { return data(); }
  const int64_t* end() const noexcept { return data() + size_; }
  int64_t operator[](size_t i) const noexcept { return data()[i]; }
  bool operator==(const Extents& other) const noexcept {
    return size_ == other.size_ && std::equal(begin(), end(), other.begin());
  }

 private:
  size_t size_ = 0;
  int64_t inline_[kInline]{};
  std::vector<int64_t> heap_;
};

/// Bytes of one element; 0 for a type that cann_host does not know.
size_t element_size(aclDataType dtype) noexcept;

/// "float32", "int64" … as torch prints them.
const char* dtype_name(aclDataType dtype) noexcept;

}  // namespace cann_host

struct aclTensor : cann_host::Counted {
  cann_host::Extents sizes;
  cann_host::Extents strides;
  int64_t offset = 0;  // elements
  aclDataType dtype{};
  aclFormat format{};
  void* storage = nullptr;

  /// First element of the view.
  void* data() const noexcept {
    return static_cast<char*>(storage) + offset * static_cast<int64_t>(cann_host::element_size(dtype));
  }
  int64_t numel() const noexcept {
    int64_t n = 1;
    for (int64_t size : sizes) n *= size;
    return n;
  }
  bool is_contiguous() const noexcept {
    int64_t expected = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] != 1 && strides[i] != expected) return false;
      expected *= sizes[i];
    }
    return true;
  }
  std::string describe() const;  // "float32[2, 3]"
};

struct aclScalar : cann_host::Counted {
  aclDataType dtype{};
  // Widest forms, so that a reader need not switch over the narrow ones.
  std::complex<double> complex;
  int64_t integer = 0;
  bool is_integral() const noexcept;
  bool is_complex() const noexcept { return dtype == ACL_COMPLEX64 || dtype == ACL_COMPLEX128; }
  bool is_bool() const noexcept { return dtype == ACL_BOOL; }
};

namespace cann_host {
template <class T>
struct CountedArray : Counted {
  std::vector<T> values;
};
}  // namespace cann_host

struct aclIntArray : cann_host::CountedArray<int64_t> {};
struct aclFloatArray : cann_host::CountedArray<float> {};
struct aclBoolArray : cann_host::CountedArray<bool> {};
struct aclTensorList : cann_host::CountedArray<cann_host::Ref<const aclTensor>> {};
struct aclScalarList : cann_host::CountedArray<cann_host::Ref<const aclScalar>> {};
