#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "torch_npu/csrc/graph/lane.h"
#include "torch_npu/csrc/graph/npu_graph.h"

namespace torch_npu::graph {

/// A captured forward and its captured backward as one node of autograd, which runs without Python.
class TrainingGraphs : public std::enable_shared_from_this<TrainingGraphs> {
 public:
  /// The memory that the graphs read and write.
  struct Static {
    std::vector<at::Tensor> inputs, results;
    std::vector<at::Tensor> grad_results;  // one a result; undefined where that has no gradient
    std::vector<at::Tensor> grads;  // of what the results are differentiated by; undefined: there is none
  };

  TrainingGraphs(std::shared_ptr<Lane> lane, std::shared_ptr<NPUGraph> forward,
                 std::shared_ptr<NPUGraph> backward, Static memory);

  /// Results for the values `inputs`. Gradients go to `differentiable`, one for each of `grads`.
  /// copy: results and gradients are the caller's to keep; else they are the graphs' own memory.
  std::vector<at::Tensor> replay(const std::vector<at::Tensor>& inputs,
                                 const std::vector<at::Tensor>& differentiable, bool copy);

  /// Of the latest forward and a backward: the graphs, and the copies around them.
  size_t launches() const;

 private:
  friend struct ReplayBackward;
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs, bool copy);
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& grad_results, bool copy);

  std::shared_ptr<Lane> lane_;
  std::shared_ptr<NPUGraph> forward_, backward_;
  Static static_;
  // Of the latest replay; before it, what one whose inputs lie elsewhere takes.
  size_t inputs_copied_ = static_.inputs.size();
  bool copies_ = true;
};

}  // namespace torch_npu::graph
