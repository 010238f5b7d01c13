// The life of a group, and how its work gets onto streams.
#include "torch_npu/csrc/distributed/process_group.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/distributed/work.h"
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::distributed {

ProcessGroupHCCL::ProcessGroupHCCL(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : Backend(rank, size), store_(std::move(store)), options_(std::move(options)) {
  TORCH_CHECK(device::device_count() > 0, "back end hccl needs a device npu, and this process sees none");
  init();
}

std::unique_ptr<Communicator> ProcessGroupHCCL::connect(const std::string& key, c10::DeviceIndex device,
                                                        uint32_t rank, uint32_t ranks) {
  graph::require_no_recording("the first collective of a group", "its ranks have yet to meet; run one before",
                              device);
  return std::make_unique<Communicator>(*store_, key, device, rank, ranks, options_->is_high_priority_stream,
                                        options_->hccl_config);
}

Communicator& ProcessGroupHCCL::communicator(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  auto& found = communicators_["group"];
  if (!found) {
    found = connect("hccl/group/" + std::to_string(meetings_), device, static_cast<uint32_t>(rank_),
                    static_cast<uint32_t>(size_));
    ++meetings_;
  }
  TORCH_CHECK(found->device == device, "this rank's group communicates on npu:", int(found->device),
              ", but the tensor is on npu:", int(device), "; a process group serves one device of each rank");
  return *found;
}

Communicator& ProcessGroupHCCL::pair(c10::DeviceIndex device, int peer) {
  const int low = std::min(rank_, peer), high = std::max(rank_, peer);
  const std::string key = std::to_string(low) + "-" + std::to_string(high);
  const std::lock_guard lock(mutex_);
  auto& found = communicators_[key];
  if (!found) found = connect("hccl/pair/" + key, device, rank_ == low ? 0 : 1, 2);
  return *found;
}

std::string ProcessGroupHCCL::communicator_name(c10::DeviceIndex device, bool connect) {
  if (!connect) {
    const std::lock_guard lock(mutex_);
    const auto found = communicators_.find("group");
    return found == communicators_.end() || !found->second ? "" : found->second->name();
  }
  return communicator(device).name();
}

void ProcessGroupHCCL::eagerConnectSingleDevice(at::Device device) { communicator(device.index()); }

c10::intrusive_ptr<c10d::Backend> ProcessGroupHCCL::split(
    const c10::intrusive_ptr<c10d::Store>& /*store*/, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  // The store that comes along is named by a count of groups, which differs between ranks that belong to
  // different ones. How often these ranks were split off before is the same on all of them.
  const std::string name = c10::str("split ", splits_[ranks]++, " of ranks ", c10::Join(",", ranks));
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  const auto given = c10::dynamic_intrusive_pointer_cast<Options>(options);
  TORCH_CHECK_TYPE(given, "options of back end hccl are ProcessGroupHCCL.Options");
  // They may be this group's own.
  const auto own = c10::make_intrusive<Options>(*given);
  own->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    const auto& all = options_->global_ranks_in_group;
    own->global_ranks_in_group.push_back(all.empty() ? static_cast<uint64_t>(rank)
                                                     : all.at(static_cast<size_t>(rank)));
  }
  return c10::make_intrusive<ProcessGroupHCCL>(c10::make_intrusive<c10d::PrefixStore>(name, store_->clone()),
                                               static_cast<int>(mine - ranks.begin()),
                                               static_cast<int>(ranks.size()), own);
}

void ProcessGroupHCCL::shutdown() {
  const std::lock_guard lock(mutex_);
  communicators_.clear();
}

WorkPtr ProcessGroupHCCL::run(Communicator& on, c10d::OpType type, Tensors used, Tensors results,
                              const Launch& launch) {
  on.check_error();
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::PrivateUse1);
  c10::Event ready(c10::DeviceType::PrivateUse1);
  ready.record(device.getStream(on.stream.device()));
  ready.block(on.stream);
  {
    const c10::StreamGuard guard(on.stream);
    if (auto* recording = graph::current_recording(on.device)) {
      for (const at::Tensor& tensor : used) recording->keep(tensor.storage());
      recording->count_node();
    }
    launch(device::current_stream_handle(on.device));
  }
  ++sequence_;
  if (coalescing_) {
    coalescing_->device = on.device;
    coalescing_->used.insert(coalescing_->used.end(), used.begin(), used.end());
    coalescing_->results.insert(coalescing_->results.end(), results.begin(), results.end());
  }
  return c10::make_intrusive<WorkHCCL>(on.stream, rank_, type, std::move(used), std::move(results),
                                       type == c10d::OpType::BARRIER);
}

void ProcessGroupHCCL::startCoalescing() {
  TORCH_CHECK(!coalescing_, "collectives of this group are being coalesced already");
  coalescing_.emplace();
}

WorkPtr ProcessGroupHCCL::endCoalescing() {
  TORCH_CHECK(coalescing_, "there is no startCoalescing to this endCoalescing");
  Coalescing all = std::move(*coalescing_);
  coalescing_.reset();
  if (!all.device) return nullptr;  // nothing was called between
  return run(communicator(*all.device), c10d::OpType::COALESCED, std::move(all.used), std::move(all.results),
             [&](aclrtStream stream) {
               if (all.messages.empty()) return;
               check(hccl().HcclBatchSendRecv(all.messages.data(), static_cast<uint32_t>(all.messages.size()),
                                              communicator(*all.device).handle(), stream),
                     "HcclBatchSendRecv");
             });
}

void ProcessGroupHCCL::check_root(int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "the root is rank ", root, " of a group of ", size_);
}

}  // namespace torch_npu::distributed
