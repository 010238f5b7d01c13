// torch_npu.empty_with_swapped_memory: npu tensors whose memory is the host's, for states that do not fit the
// device and are used seldom. The device reaches them over the bus.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <cstdlib>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/dispatch/deterministic.h"

namespace torch_npu::memory {
namespace {

constexpr size_t kPage = 4096;  // what CANN registers is whole pages

void free_swapped(void* host, c10::DeviceIndex device) noexcept {
  try {
    device::synchronize(device);  // no stream says whether it still uses memory that the pool does not know
    cann::api().aclrtHostUnregister.checked(host);
  } catch (const std::exception& error) {
    TORCH_WARN("could not free swapped memory of npu:", static_cast<int>(device), ": ", error.what());
    return;
  }
  std::free(host);
}

at::Tensor empty_with_swapped_memory(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                                     std::optional<at::Device> device) {
  const at::Device on = device.value_or(at::Device(at::kPrivateUse1));
  TORCH_CHECK_VALUE(on.type() == at::kPrivateUse1, "empty_with_swapped_memory: expected a npu device, got ",
                    on);
  const c10::DeviceIndex index = on.has_index() ? on.index() : device::current_device();
  device::activate(index);
  const auto options =
      at::TensorOptions().dtype(c10::dtype_or_default(dtype)).device(at::Device(at::kPrivateUse1, index));
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, options.dtype().itemsize());
  if (bytes == 0) return at::empty(size, options);
  const size_t pages = (bytes + kPage - 1) / kPage * kPage;
  void* host = std::aligned_alloc(kPage, pages);
  TORCH_CHECK_WITH(OutOfMemoryError, host, "empty_with_swapped_memory: the host has no ", pages, " bytes");
  void* pointer = nullptr;
  if (const aclError code = cann::api().aclrtHostRegister(host, pages, ACL_HOST_REGISTER_MAPPED, &pointer)) {
    std::free(host);
    cann::raise_error(code, "aclrtHostRegister");
  }
  const auto release = [host, index](void*) { free_swapped(host, index); };
  const at::Tensor tensor = at::for_blob(pointer, size)
                                .deleter(release)
                                .target_device(options.device())
                                .options(options)
                                .make_tensor();
  return uninitialized(tensor);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(npu, m) {
  m.def("empty_with_swapped_memory(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(npu, CompositeExplicitAutograd, m) {
  m.impl("empty_with_swapped_memory", TORCH_FN(empty_with_swapped_memory));
}

}  // namespace torch_npu::memory
