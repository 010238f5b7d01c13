// Making, asking and destroying communicators.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <unordered_map>
#include <vector>

#include "communicators.h"
#include "error.h"

using namespace cann_host::hccl;

namespace {

std::atomic<int32_t> deterministic{0};

std::string name_of(const HcclRootInfo& root, const HcclCommConfig* config) {
  if (config && config->hcclCommName[0]) {
    return {config->hcclCommName, strnlen(config->hcclCommName, HCCL_COMM_NAME_BYTES)};
  }
  const std::hash<std::string_view> hash;
  return "hccl_" + std::to_string(hash({root.internal, sizeof root.internal}));
}

void initialize(uint32_t ranks, const HcclRootInfo* root, uint32_t rank, const HcclCommConfig* config,
                HcclComm* comm) {
  require_pointer(root, "rootInfo");
  require_pointer(comm, "comm");
  *comm = add(std::make_shared<Communicator>(ranks, *root, rank, name_of(*root, config)));
}

}  // namespace

HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  return entry(__func__, [&] {
    require_pointer(root, "rootInfo");
    *root = Communicator::make_root_info();
  });
}

HcclResult HcclCommInitRootInfo(uint32_t ranks, const HcclRootInfo* root, uint32_t rank, HcclComm* comm) {
  return entry(__func__, [&] { initialize(ranks, root, rank, nullptr, comm); });
}

HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo* root, uint32_t rank,
                                      const HcclCommConfig* config, HcclComm* comm) {
  return entry(__func__, [&] {
    require_pointer(config, "config");
    initialize(ranks, root, rank, config, comm);
  });
}

HcclResult HcclCommInitAll(uint32_t count, int32_t* devices, HcclComm* comms) {
  return entry(__func__, [&] {
    require_pointer(devices, "devices");
    require_pointer(comms, "comms");
    if (count == 0 || count > max_ranks) {
      refuse(HCCL_E_PARA, "ndev=" + std::to_string(count) + ": expected 1 to " + std::to_string(max_ranks));
    }
    if (count > 1 && cannHostStreamRunsInline(nullptr)) {
      refuse(HCCL_E_NOT_SUPPORT,
             "one thread cannot be at the collectives of " + std::to_string(count) +
                 " ranks while work runs on it; set CANN_HOST_ASYNC=1, or use one process for each rank");
    }
    const HcclRootInfo root = Communicator::make_root_info();
    std::vector<HcclResult> results(count);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < count; ++rank) {
      threads.emplace_back(
          [&, rank] { results[rank] = HcclCommInitRootInfo(count, &root, rank, &comms[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const HcclResult result : results) {
      if (result) refuse(result, "a rank could not join");
    }
  });
}

HcclResult HcclCommDestroy(HcclComm comm) {
  return entry(__func__, [&] { remove(comm); });
}

HcclResult HcclGetRankSize(HcclComm comm, uint32_t* size) {
  return entry(__func__, [&] {
    require_pointer(size, "rankSize");
    *size = find(comm)->ranks;
  });
}

HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
  return entry(__func__, [&] {
    require_pointer(rank, "rank");
    *rank = find(comm)->rank;
  });
}

HcclResult HcclGetCommName(HcclComm comm, char* name) {
  return entry(__func__, [&] {
    require_pointer(name, "commName");
    const std::string& text = find(comm)->name;
    const size_t length = std::min<size_t>(text.size(), HCCL_COMM_NAME_BYTES - 1);
    std::memcpy(name, text.data(), length);
    name[length] = '\0';
  });
}

HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult* error) {
  return entry(__func__, [&] {
    require_pointer(error, "asyncError");
    *error = find(comm)->error();
  });
}

const char* HcclGetErrorString(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS:
      return "success";
    case HCCL_E_PARA:
      return "wrong argument";
    case HCCL_E_PTR:
      return "null pointer";
    case HCCL_E_MEMORY:
      return "no memory";
    case HCCL_E_INTERNAL:
      return "internal error";
    case HCCL_E_NOT_SUPPORT:
      return "not supported";
    case HCCL_E_NOT_FOUND:
      return "not found";
    case HCCL_E_UNAVAIL:
      return "not available";
    case HCCL_E_SYSCALL:
      return "failed system call";
    case HCCL_E_TIMEOUT:
      return "timeout";
    case HCCL_E_REMOTE:
      return "failure of another rank";
  }
  return "unknown error";
}

// Buffer size, determinism and name.
uint32_t HcclGetCommConfigCapability() { return 3; }

HcclResult HcclSetConfig(HcclConfig config, HcclConfigValue value) {
  return entry(__func__, [&] {
    if (config != HCCL_DETERMINISTIC) {
      refuse(HCCL_E_NOT_SUPPORT, "config=" + std::to_string(config) + " is not known; HCCL_DETERMINISTIC is");
    }
    // Reductions add in the order of the ranks, whatever is asked for.
    deterministic = value.value;
  });
}

HcclResult HcclGetConfig(HcclConfig config, HcclConfigValue* value) {
  return entry(__func__, [&] {
    require_pointer(value, "configValue");
    if (config != HCCL_DETERMINISTIC) {
      refuse(HCCL_E_NOT_SUPPORT, "config=" + std::to_string(config) + " is not known; HCCL_DETERMINISTIC is");
    }
    value->value = deterministic;
  });
}
