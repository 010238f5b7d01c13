// Tensors as HCCL's calls take them: an address, a count and a type.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "torch_npu/csrc/distributed/hccl.h"

namespace torch_npu::distributed {

struct Buffer {
  void* data;
  uint64_t count;
  HcclDataType type;
};

/// For calls that move elements: dtypes that HCCL does not know go as bytes.
Buffer buffer(const at::Tensor& tensor);
/// For reductions: complex numbers are pairs. Raises TypeError for dtypes that HCCL cannot reduce.
Buffer reducible(const at::Tensor& tensor);

/// How PyTorch's reductions are HCCL's: bool is reduced by its maximum and minimum, an average is a sum that
/// is divided afterwards.
struct Reduction {
  HcclReduceOp op;
  bool average;

  Reduction(const c10d::ReduceOp& asked, c10::ScalarType dtype);
  void finish(const at::Tensor& result, int ranks) const;
};

/// The only tensor of a list, on npu and contiguous (or without gaps, where the places of elements do not
/// matter). Raises ValueError otherwise.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call, bool any_order = false);
void check_contiguous(const at::Tensor& tensor, const char* call);
/// All of one dtype and device.
void check_alike(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* call);

/// Elements of each rank, and where they begin, in one buffer.
struct Parts {
  std::vector<uint64_t> counts, begins;
  uint64_t total = 0;

  void add(uint64_t count);
  static Parts of(const std::vector<at::Tensor>& tensors);
  bool even() const;
};

/// One buffer for tensors behind each other, and back.
at::Tensor joined(const std::vector<at::Tensor>& tensors);
at::Tensor room_for(const std::vector<at::Tensor>& tensors);
void take_apart(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

}  // namespace torch_npu::distributed
