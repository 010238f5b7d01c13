#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::device {
namespace {

/// What PyTorch asks an accelerator outside of operators.
struct NPUHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  void init() const override { ensure_initialized(); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return has_context(index); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return exchange_device(index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchange_device(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    if (index >= 0) check_index(index);
    return at::make_generator<NPUGeneratorImpl>(index);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    const auto index = device_of_pointer(data);
    TORCH_CHECK(index, "the pointer ", data, " is not memory of an npu device");
    return {c10::DeviceType::PrivateUse1, *index};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return at::getHostAllocator(c10::DeviceType::PrivateUse1);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = impl->allocator()->allocate(nbytes);
    if (const size_t kept = std::min(nbytes, storage.nbytes()); kept > 0) {
      if (graph::Recording* recording = graph::current_recording(storage.device().index())) [[unlikely]] {
        recording->keep(storage);
        recording->count_node();
      }
      cann::api().aclrtMemcpyAsync.checked(data.get(), nbytes, storage.data(), kept,
                                           ACL_MEMCPY_DEVICE_TO_DEVICE,
                                           current_stream_handle(storage.device().index()));
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(nbytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new NPUHooks);  // PyTorch keeps it for the life of the process
  return true;
}();

}  // namespace
}  // namespace torch_npu::device
