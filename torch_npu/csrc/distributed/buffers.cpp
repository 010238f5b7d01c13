#include "torch_npu/csrc/distributed/buffers.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_npu::distributed {
namespace {

const char* name_of(c10d::ReduceOp::RedOpType op) {
  constexpr const char* names[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                   "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op < std::size(names) ? names[op] : "UNUSED";
}

[[noreturn]] void cannot_reduce(c10d::ReduceOp::RedOpType op, c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(
      false, "back end hccl cannot reduce ", dtype, " by ReduceOp.", name_of(op),
      "; it has SUM, AVG, PRODUCT, MIN and MAX of numbers (no MIN and MAX of complex ones), and SUM, "
      "PRODUCT, MIN, MAX, BAND and BOR of bool");
}

HcclReduceOp of_numbers(c10d::ReduceOp::RedOpType op, c10::ScalarType dtype) {
  const bool ordered = !c10::isComplexType(dtype);
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      return HCCL_REDUCE_SUM;
    case c10d::ReduceOp::PRODUCT:
      if (ordered) return HCCL_REDUCE_PROD;
      break;
    case c10d::ReduceOp::MIN:
      if (ordered) return HCCL_REDUCE_MIN;
      break;
    case c10d::ReduceOp::MAX:
      if (ordered) return HCCL_REDUCE_MAX;
      break;
    default:
      break;
  }
  cannot_reduce(op, dtype);
}

HcclReduceOp of_bools(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR:
      return HCCL_REDUCE_MAX;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND:
      return HCCL_REDUCE_MIN;
    default:
      cannot_reduce(op, c10::kBool);
  }
}

void check_device(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK_VALUE(tensor.device().is_privateuseone(), call,
                    " of back end hccl takes tensors on npu, got one on ", tensor.device());
  TORCH_CHECK_VALUE(!tensor.is_sparse(), call, " of back end hccl takes dense tensors, got a sparse one");
}

}  // namespace

Buffer buffer(const at::Tensor& tensor) {
  const auto type = data_type(tensor.scalar_type());
  if (!type) return {tensor.data_ptr(), tensor.nbytes(), HCCL_DATA_TYPE_UINT8};
  return {tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()), *type};
}

Buffer reducible(const at::Tensor& tensor) {
  const bool complex = tensor.is_complex();
  const auto type = data_type(complex ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type());
  TORCH_CHECK_TYPE(type, "back end hccl cannot reduce tensors of ", tensor.scalar_type());
  return {tensor.data_ptr(), static_cast<uint64_t>(tensor.numel()) * (complex ? 2 : 1), *type};
}

Reduction::Reduction(const c10d::ReduceOp& asked, c10::ScalarType dtype)
    : op(dtype == c10::kBool ? of_bools(asked.op_) : of_numbers(asked.op_, dtype)),
      average(asked.op_ == c10d::ReduceOp::AVG) {}

void Reduction::finish(const at::Tensor& result, int ranks) const {
  if (!average) return;
  if (c10::isIntegralType(result.scalar_type(), false)) {
    result.div_(ranks, "trunc");
  } else {
    result.div_(ranks);
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call, bool any_order) {
  TORCH_CHECK_VALUE(tensors.size() == 1, call, " of back end hccl takes one tensor of this rank, got ",
                    tensors.size());
  if (any_order && tensors[0].is_non_overlapping_and_dense()) {
    check_device(tensors[0], call);
  } else {
    check_contiguous(tensors[0], call);
  }
  return tensors[0];
}

void check_contiguous(const at::Tensor& tensor, const char* call) {
  check_device(tensor, call);
  TORCH_CHECK_VALUE(tensor.is_contiguous(), call, " of back end hccl takes contiguous tensors, got sizes ",
                    tensor.sizes(), " with strides ", tensor.strides(), "; call contiguous() first");
}

void check_alike(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* call) {
  for (const at::Tensor& tensor : tensors) {
    check_device(tensor, call);
    TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), call, ": a tensor is ", tensor.scalar_type(),
                     ", another one ", like.scalar_type());
    TORCH_CHECK_VALUE(tensor.device() == like.device(), call, ": a tensor is on ", tensor.device(),
                      ", another one on ", like.device());
  }
}

void Parts::add(uint64_t count) {
  counts.push_back(count);
  begins.push_back(total);
  total += count;
}

Parts Parts::of(const std::vector<at::Tensor>& tensors) {
  Parts parts;
  for (const at::Tensor& tensor : tensors) parts.add(buffer(tensor).count);
  return parts;
}

bool Parts::even() const {
  return std::all_of(counts.begin(), counts.end(), [&](uint64_t count) { return count == counts.front(); });
}

at::Tensor joined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

at::Tensor room_for(const std::vector<at::Tensor>& tensors) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  return at::empty({count}, tensors.at(0).options().memory_format(c10::MemoryFormat::Contiguous));
}

void take_apart(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace torch_npu::distributed
