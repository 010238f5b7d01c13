// Selects a device for a scope; free where the thread is on it already.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "torch_npu/csrc/device/device.h"

namespace torch_npu {

/// The device of the first npu tensor among the arguments of an operator, or -1.
inline c10::DeviceIndex npu_index(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone() ? tensor.device().index() : -1;
}
inline c10::DeviceIndex npu_index(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? npu_index(*tensor) : -1;
}
template <class List>
c10::DeviceIndex first_npu_index(const List& tensors) {
  for (const auto& tensor : tensors) {
    if (const auto index = npu_index(tensor); index >= 0) return index;
  }
  return -1;
}
inline c10::DeviceIndex npu_index(at::TensorList tensors) { return first_npu_index(tensors); }
inline c10::DeviceIndex npu_index(const at::ITensorListRef& tensors) { return first_npu_index(tensors); }
inline c10::DeviceIndex npu_index(const c10::List<std::optional<at::Tensor>>& tensors) {
  for (const std::optional<at::Tensor>& tensor : tensors) {
    if (const auto index = npu_index(tensor); index >= 0) return index;
  }
  return -1;
}
template <class T>
c10::DeviceIndex npu_index(const T&) {
  return -1;
}

class DeviceSwitch {
 public:
  explicit DeviceSwitch(c10::DeviceIndex index) {
    if (index >= 0 && index != device::current_device()) previous_ = device::exchange_device(index);
  }
  DeviceSwitch(const DeviceSwitch&) = delete;
  DeviceSwitch& operator=(const DeviceSwitch&) = delete;
  ~DeviceSwitch() {
    if (previous_ >= 0) device::set_device(previous_);
  }

  /// On the device of the first npu tensor among the arguments.
  template <class... Args>
  static c10::DeviceIndex of(const Args&... args) {
    c10::DeviceIndex index = -1;
    ((index = index < 0 ? npu_index(args) : index), ...);
    return index;
  }

 private:
  c10::DeviceIndex previous_ = -1;
};

}  // namespace torch_npu
