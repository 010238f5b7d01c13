// The collectives of ProcessGroupHCCL. Lists of tensors are joined and split on the communicator's stream;
// calls that take one tensor for all ranks copy nothing.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/distributed/buffers.h"
#include "torch_npu/csrc/distributed/process_group.h"

namespace torch_npu::distributed {
namespace {

using c10d::OpType;

void all_reduce(const at::Tensor& tensor, const Reduction& reduction, const Communicator& on,
                aclrtStream stream) {
  const Buffer b = reducible(tensor);
  check(hccl().HcclAllReduce(b.data, b.data, b.count, b.type, reduction.op, on.handle(), stream),
        "HcclAllReduce");
  reduction.finish(tensor, static_cast<int>(on.ranks));
}

void all_gather(const at::Tensor& output, const at::Tensor& input, const Communicator& on,
                aclrtStream stream) {
  const Buffer from = buffer(input);
  check(hccl().HcclAllGather(from.data, output.data_ptr(), from.count, from.type, on.handle(), stream),
        "HcclAllGather");
}

void reduce_scattered(const at::Tensor& output, const at::Tensor& input, const Reduction& reduction,
                      const Communicator& on, aclrtStream stream) {
  const Buffer to = reducible(output);
  check(hccl().HcclReduceScatter(input.data_ptr(), to.data, to.count, to.type, reduction.op, on.handle(),
                                 stream),
        "HcclReduceScatter");
  reduction.finish(output, static_cast<int>(on.ranks));
}

void all_to_all(const at::Tensor& output, const Parts& received, const at::Tensor& input, const Parts& sent,
                const Communicator& on, aclrtStream stream) {
  const Buffer from = buffer(input), to = buffer(output);
  check(hccl().HcclAlltoAllV(from.data, sent.counts.data(), sent.begins.data(), from.type, to.data,
                             received.counts.data(), received.begins.data(), to.type, on.handle(), stream),
        "HcclAlltoAllV");
}

/// One tensor holds what is another's for each rank.
void check_sizes(const at::Tensor& whole, const at::Tensor& part, int ranks, const char* call) {
  check_contiguous(whole, call);
  check_contiguous(part, call);
  check_alike({whole}, part, call);
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * ranks, call, ": a tensor of ", whole.numel(),
                    " elements does not hold ", part.numel(), " of each of ", ranks, " ranks");
}

void check_count(size_t count, int ranks, const char* call) {
  TORCH_CHECK_VALUE(count == static_cast<size_t>(ranks), call, " takes one tensor for each of ", ranks,
                    " ranks, got ", count);
}

/// Elements for each rank: rows of the first dimension, as many for each where no splits are given.
Parts parts_of_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks,
                    const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const uint64_t row = rows == 0 ? 0 : buffer(tensor).count / static_cast<uint64_t>(rows);
  Parts parts;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0, "all_to_all_single: the ", what, " has ", rows, " rows, which ",
                      ranks, " ranks cannot share evenly; give ", what, "_split_sizes");
    for (int i = 0; i < ranks; ++i) parts.add(row * static_cast<uint64_t>(rows / ranks));
    return parts;
  }
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "all_to_all_single: ", what, "_split_sizes are ", splits);
    sum += split;
    parts.add(row * static_cast<uint64_t>(split));
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(ranks) && sum == rows, "all_to_all_single: ", what,
                    "_split_sizes are ", splits, "; ", ranks, " numbers with the sum ", rows,
                    " were expected");
  return parts;
}

Tensors with(Tensors tensors, const Tensors& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

}  // namespace

WorkPtr ProcessGroupHCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast", true);
  check_root(options.rootRank);
  Communicator& on = communicator(tensor.device().index());
  return run(on, OpType::BROADCAST, tensors, tensors, [&](aclrtStream stream) {
    const Buffer b = buffer(tensor);
    check(hccl().HcclBroadcast(b.data, b.count, b.type, static_cast<uint32_t>(options.rootRank), on.handle(),
                               stream),
          "HcclBroadcast");
  });
}

WorkPtr ProcessGroupHCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce", true);
  const Reduction reduction(options.reduceOp, tensor.scalar_type());
  Communicator& on = communicator(tensor.device().index());
  return run(on, OpType::ALLREDUCE, tensors, tensors,
             [&](aclrtStream stream) { all_reduce(tensor, reduction, on, stream); });
}

WorkPtr ProcessGroupHCCL::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce_coalesced of no tensors");
  for (const at::Tensor& tensor : tensors) only({tensor}, "all_reduce_coalesced", true);
  check_alike(tensors, tensors[0], "all_reduce_coalesced");
  const Reduction reduction(options.reduceOp, tensors[0].scalar_type());
  Communicator& on = communicator(tensors[0].device().index());
  return run(on, OpType::ALLREDUCE_COALESCED, tensors, tensors, [&](aclrtStream stream) {
    for (const at::Tensor& tensor : tensors) all_reduce(tensor, reduction, on, stream);
  });
}

WorkPtr ProcessGroupHCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce", true);
  check_root(options.rootRank);
  const Reduction reduction(options.reduceOp, tensor.scalar_type());
  Communicator& on = communicator(tensor.device().index());
  return run(on, OpType::REDUCE, tensors, tensors, [&](aclrtStream stream) {
    const Buffer b = reducible(tensor);
    check(hccl().HcclReduce(b.data, b.data, b.count, b.type, reduction.op,
                            static_cast<uint32_t>(options.rootRank), on.handle(), stream),
          "HcclReduce");
    if (rank_ == options.rootRank) reduction.finish(tensor, size_);
  });
}

WorkPtr ProcessGroupHCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions&) {
  const at::Tensor& input = only(inputs, "all_gather");
  check_count(outputs.at(0).size(), size_, "all_gather");
  const Tensors& results = outputs[0];
  check_alike(results, input, "all_gather");
  TORCH_CHECK_VALUE(results[static_cast<size_t>(rank_)].numel() == input.numel(),
                    "all_gather: this rank gives ", input.numel(), " elements and takes ",
                    results[static_cast<size_t>(rank_)].numel(), " of itself");
  Communicator& on = communicator(input.device().index());
  return run(on, OpType::ALLGATHER, with(results, inputs), results, [&](aclrtStream stream) {
    const at::Tensor flat = room_for(results);
    const Parts parts = Parts::of(results);
    if (parts.even()) {
      all_gather(flat, input, on, stream);
    } else {
      const Buffer from = buffer(input);
      check(hccl().HcclAllGatherV(from.data, from.count, flat.data_ptr(), parts.counts.data(),
                                  parts.begins.data(), from.type, on.handle(), stream),
            "HcclAllGatherV");
    }
    take_apart(flat, results);
  });
}

WorkPtr ProcessGroupHCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions&) {
  check_sizes(output, input, size_, "all_gather_into_tensor");
  Communicator& on = communicator(input.device().index());
  return run(on, OpType::_ALLGATHER_BASE, {output, input}, {output},
             [&](aclrtStream stream) { all_gather(output, input, on, stream); });
}

WorkPtr ProcessGroupHCCL::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions&) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(),
                    "all_gather_into_tensor_coalesced: ", inputs.size(), " inputs and ", outputs.size(),
                    " outputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_sizes(outputs[i], inputs[i], size_, "all_gather_into_tensor_coalesced");
  }
  Communicator& on = communicator(inputs[0].device().index());
  return run(on, OpType::ALLGATHER_COALESCED, with(outputs, inputs), outputs, [&](aclrtStream stream) {
    for (size_t i = 0; i < inputs.size(); ++i) all_gather(outputs[i], inputs[i], on, stream);
  });
}

WorkPtr ProcessGroupHCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  check_root(options.rootRank);
  const bool is_root = rank_ == options.rootRank;
  const Tensors results = is_root ? outputs.at(0) : Tensors();
  if (is_root) {
    check_count(results.size(), size_, "gather");
    check_alike(results, input, "gather");
  }
  Communicator& on = communicator(input.device().index());
  return run(on, OpType::GATHER, with(results, inputs), results, [&](aclrtStream stream) {
    Parts sent, received = Parts::of(results);
    for (int rank = 0; rank < size_; ++rank) {
      sent.add(rank == options.rootRank ? buffer(input).count : 0);
      if (!is_root) received.add(0);
    }
    const at::Tensor flat = is_root ? room_for(results) : at::empty({0}, input.options());
    all_to_all(flat, received, input, sent, on, stream);
    take_apart(flat, results);
  });
}

WorkPtr ProcessGroupHCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  check_root(options.rootRank);
  const bool is_root = rank_ == options.rootRank;
  const Tensors given = is_root ? inputs.at(0) : Tensors();
  if (is_root) {
    check_count(given.size(), size_, "scatter");
    check_alike(given, output, "scatter");
    for (const at::Tensor& tensor : given) {
      TORCH_CHECK_VALUE(tensor.numel() == output.numel(), "scatter: a rank is given ", tensor.numel(),
                        " elements, this one takes ", output.numel());
    }
  }
  Communicator& on = communicator(output.device().index());
  return run(on, OpType::SCATTER, with(outputs, given), outputs, [&](aclrtStream stream) {
    const at::Tensor flat = is_root ? joined(given) : at::Tensor();
    const Buffer to = buffer(output);
    check(hccl().HcclScatter(is_root ? flat.data_ptr() : nullptr, to.data, to.count, to.type,
                             static_cast<uint32_t>(options.rootRank), on.handle(), stream),
          "HcclScatter");
  });
}

WorkPtr ProcessGroupHCCL::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  const Tensors& given = inputs.at(0);
  check_count(given.size(), size_, "reduce_scatter");
  check_alike(given, output, "reduce_scatter");
  TORCH_CHECK_VALUE(given[static_cast<size_t>(rank_)].numel() == output.numel(),
                    "reduce_scatter: this rank takes ", output.numel(), " elements and gives ",
                    given[static_cast<size_t>(rank_)].numel(), " for itself");
  const Reduction reduction(options.reduceOp, output.scalar_type());
  Communicator& on = communicator(output.device().index());
  return run(on, OpType::REDUCE_SCATTER, with(outputs, given), outputs, [&](aclrtStream stream) {
    const at::Tensor flat = joined(given);
    Parts parts;
    for (const at::Tensor& tensor : given) parts.add(reducible(tensor).count);
    if (parts.even()) return reduce_scattered(output, flat, reduction, on, stream);
    const Buffer to = reducible(output);
    check(hccl().HcclReduceScatterV(flat.data_ptr(), parts.counts.data(), parts.begins.data(), to.data,
                                    to.count, to.type, reduction.op, on.handle(), stream),
          "HcclReduceScatterV");
    reduction.finish(output, size_);
  });
}

WorkPtr ProcessGroupHCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  check_sizes(input, output, size_, "reduce_scatter_tensor");
  const Reduction reduction(options.reduceOp, output.scalar_type());
  Communicator& on = communicator(output.device().index());
  return run(on, OpType::_REDUCE_SCATTER_BASE, {output, input}, {output},
             [&](aclrtStream stream) { reduce_scattered(output, input, reduction, on, stream); });
}

WorkPtr ProcessGroupHCCL::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs.size() == outputs.size(),
                    "reduce_scatter_tensor_coalesced: ", inputs.size(), " inputs and ", outputs.size(),
                    " outputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_sizes(inputs[i], outputs[i], size_, "reduce_scatter_tensor_coalesced");
  }
  Communicator& on = communicator(outputs[0].device().index());
  return run(on, OpType::REDUCE_SCATTER_TENSOR_COALESCED, with(outputs, inputs), outputs,
             [&](aclrtStream stream) {
               for (size_t i = 0; i < inputs.size(); ++i) {
                 reduce_scattered(outputs[i], inputs[i],
                                  Reduction(options.reduceOp, outputs[i].scalar_type()), on, stream);
               }
             });
}

WorkPtr ProcessGroupHCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<int64_t>& output_splits,
                                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  check_contiguous(output, "all_to_all_single");
  check_contiguous(input, "all_to_all_single");
  check_alike({output}, input, "all_to_all_single");
  const Parts received = parts_of_rows(output, output_splits, size_, "output"),
              sent = parts_of_rows(input, input_splits, size_, "input");
  Communicator& on = communicator(output.device().index());
  return run(on, OpType::ALLTOALL_BASE, {output, input}, {output},
             [&](aclrtStream stream) { all_to_all(output, received, input, sent, on, stream); });
}

WorkPtr ProcessGroupHCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  check_count(outputs.size(), size_, "all_to_all");
  check_count(inputs.size(), size_, "all_to_all");
  check_alike(with(outputs, inputs), inputs[0], "all_to_all");
  Communicator& on = communicator(inputs[0].device().index());
  return run(on, OpType::ALLTOALL, with(outputs, inputs), outputs, [&](aclrtStream stream) {
    const at::Tensor from = joined(inputs), to = room_for(outputs);
    all_to_all(to, Parts::of(outputs), from, Parts::of(inputs), on, stream);
    take_apart(to, outputs);
  });
}

WorkPtr ProcessGroupHCCL::message(const at::Tensor& tensor, int peer, HcclSendRecvType direction) {
  const bool sends = direction == HCCL_SEND;
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_ && peer != rank_, "rank ", rank_, " of ", size_, " cannot ",
                    sends ? "send to" : "receive from", " rank ", peer);
  const auto type = sends ? OpType::SEND : OpType::RECV;
  const Buffer b = buffer(tensor);
  const Tensors results = sends ? Tensors() : Tensors{tensor};
  if (coalescing_) {
    coalescing_->messages.push_back({direction, b.data, b.count, b.type, static_cast<uint32_t>(peer)});
    return run(communicator(tensor.device().index()), type, {tensor}, results, [](aclrtStream) {});
  }
  Communicator& on = pair(tensor.device().index(), peer);
  return run(on, type, {tensor}, results, [&](aclrtStream stream) {
    const uint32_t other = rank_ < peer ? 1 : 0;  // of the two
    if (sends) {
      check(hccl().HcclSend(b.data, b.count, b.type, other, on.handle(), stream), "HcclSend");
    } else {
      check(hccl().HcclRecv(b.data, b.count, b.type, other, on.handle(), stream), "HcclRecv");
    }
  });
}

WorkPtr ProcessGroupHCCL::send(Tensors& tensors, int destination, int) {
  return message(only(tensors, "send"), destination, HCCL_SEND);
}

WorkPtr ProcessGroupHCCL::recv(Tensors& tensors, int source, int) {
  return message(only(tensors, "recv"), source, HCCL_RECV);
}

WorkPtr ProcessGroupHCCL::barrier(const c10d::BarrierOptions& options) {
  c10::DeviceIndex device = device::current_device();
  if (!options.device_ids.empty()) {
    device = static_cast<c10::DeviceIndex>(options.device_ids.front());
  } else if (options.device && options.device->is_privateuseone() && options.device->has_index()) {
    device = options.device->index();
  } else if (const auto bound = getBoundDeviceId()) {
    device = bound->index();
  }
  Communicator& on = communicator(device);
  return run(on, OpType::BARRIER, {}, {},
             [&](aclrtStream stream) { check(hccl().HcclBarrier(on.handle(), stream), "HcclBarrier"); });
}

}  // namespace torch_npu::distributed
