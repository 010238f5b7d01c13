#include "torch_npu/csrc/distributed/communicator.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <vector>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"

namespace torch_npu::distributed {
namespace {

/// The first rank makes the root info, and the others read it from the store.
HcclRootInfo meet(c10d::Store& store, const std::string& key, uint32_t rank) {
  HcclRootInfo root{};
  if (rank == 0) {
    check(hccl().HcclGetRootInfo(&root), "HcclGetRootInfo");
    store.set(key, std::vector<uint8_t>(root.internal, root.internal + sizeof(root.internal)));
    return root;
  }
  const std::vector<uint8_t> bytes = store.get(key);
  TORCH_CHECK(bytes.size() == sizeof(root.internal), "the first rank put ", bytes.size(), " bytes under ",
              key, ", ", sizeof(root.internal), " were expected: do all ranks use the same version of CANN?");
  std::memcpy(root.internal, bytes.data(), bytes.size());
  return root;
}

/// HCCL's settings for a group, as its own initialisation lays them out: size, a magic number and the version
/// of the layout. Not run on hardware.
HcclCommConfig settings(const Config& config) {
  constexpr uint32_t default_buffer_mb = 200, magic = 0xf0f0f0f0, version = 1;
  HcclCommConfig result{};
  const uint64_t size = sizeof(result);
  std::memcpy(result.header, &size, sizeof(size));
  std::memcpy(result.header + 8, &magic, sizeof(magic));
  std::memcpy(result.header + 12, &version, sizeof(version));
  result.hcclBufferSize = default_buffer_mb;
  for (const auto& [name, value] : config) {
    TORCH_CHECK_VALUE(name == "hccl_buffer_size", "hccl_config has the key '", name,
                      "'; known is hccl_buffer_size, in MB");
    TORCH_CHECK_VALUE(value > 0, "hccl_buffer_size is ", value, " MB; it must be positive");
    result.hcclBufferSize = static_cast<uint32_t>(value);
  }
  return result;
}

}  // namespace

Communicator::Communicator(c10d::Store& store, const std::string& key, c10::DeviceIndex device, uint32_t rank,
                           uint32_t ranks, bool high_priority, const Config& config)
    : device(device), ranks(ranks), stream(device::stream_from_pool(device, high_priority ? -1 : 0)) {
  device::activate(device);
  const HcclRootInfo root = meet(store, key, rank);
  if (config.empty()) {
    check(hccl().HcclCommInitRootInfo(ranks, &root, rank, &handle_), "HcclCommInitRootInfo");
    return;
  }
  const HcclCommConfig asked = settings(config);
  check(hccl().HcclCommInitRootInfoConfig(ranks, &root, rank, &asked, &handle_),
        "HcclCommInitRootInfoConfig");
}

Communicator::~Communicator() {
  // Runs when a process group is given up, maybe because another rank has failed: what goes wrong is told.
  try {
    device::synchronize_stream(stream);
    device::activate(device);
    check(hccl().HcclCommDestroy(handle_), "HcclCommDestroy");
  } catch (const std::exception& error) {
    TORCH_WARN("a communicator of ", ranks, " ranks did not end well: ", error.what());
  }
}

std::string Communicator::name() const {
  std::array<char, HCCL_COMM_NAME_BYTES + 1> text{};
  check(hccl().HcclGetCommName(handle_, text.data()), "HcclGetCommName");
  return text.data();
}

void Communicator::check_error() const {
  HcclResult result = HCCL_SUCCESS;
  check(hccl().HcclGetCommAsyncError(handle_, &result), "HcclGetCommAsyncError");
  check(result, "an earlier collective");
}

}  // namespace torch_npu::distributed
