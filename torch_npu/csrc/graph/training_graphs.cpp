#include "torch_npu/csrc/graph/training_graphs.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "torch_npu/csrc/ops/nn_sizes.h"

namespace torch_npu::graph {

namespace autograd = torch::autograd;

/// Runs the backward graph.
struct ReplayBackward final : autograd::Node {
  ReplayBackward(std::shared_ptr<TrainingGraphs> graphs, const std::vector<at::Tensor>& differentiable,
                 bool copy)
      : Node(autograd::collect_next_edges(differentiable)),
        graphs_(std::move(graphs)),
        awaited_(graphs_->lane_->await_backward()),
        copy_(copy) {
    saved_.reserve(differentiable.size());
    for (const at::Tensor& tensor : differentiable) saved_.emplace_back(tensor, /*is_output=*/false);
  }

  std::string name() const override { return "EnableGraphBackward"; }

  autograd::variable_list apply(autograd::variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    // The graph reads these where they lie: autograd raises its usual error if one was changed since the
    // forward.
    for (const autograd::SavedVariable& saved : saved_) saved.unpack();
    TORCH_CHECK(
        !awaited_->done,
        "Trying to backward through a graph of enable_graph() a second time: its backward has overwritten "
        "what the forward left. Call the module once for each backward, or outside of enable_graph().");
    autograd::variable_list found;
    {
      const at::NoGradGuard no_grad;
      found = graphs_->backward(grads, copy_);
    }
    awaited_->done.store(true, std::memory_order_release);
    if (!at::GradMode::is_enabled()) return found;
    const auto error = c10::make_intrusive<autograd::DelayedError>(
        "trying to differentiate twice a module that ran under enable_graph(): call it outside of "
        "enable_graph()",
        static_cast<int64_t>(found.size()));
    for (at::Tensor& grad : found) {
      if (grad.defined()) grad = grad.detach().requires_grad_();
    }
    return (*error)(std::move(found));
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (autograd::SavedVariable& saved : saved_) saved.reset_data();
  }

 private:
  std::shared_ptr<TrainingGraphs> graphs_;
  std::shared_ptr<Lane::AwaitedBackward> awaited_;
  std::vector<autograd::SavedVariable> saved_;
  bool copy_;
};

TrainingGraphs::TrainingGraphs(std::shared_ptr<Lane> lane, std::shared_ptr<NPUGraph> forward,
                               std::shared_ptr<NPUGraph> backward, Static memory)
    : lane_(std::move(lane)),
      forward_(std::move(forward)),
      backward_(std::move(backward)),
      static_(std::move(memory)) {}

std::vector<at::Tensor> TrainingGraphs::replay(const std::vector<at::Tensor>& inputs,
                                               const std::vector<at::Tensor>& differentiable, bool copy) {
  const auto node = c10::make_intrusive<ReplayBackward>(shared_from_this(), differentiable, copy);
  std::vector<at::Tensor> results;
  {
    const at::NoGradGuard no_grad;
    results = forward(inputs, copy);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (static_.grad_results[i].defined()) autograd::set_history(results[i], node);
  }
  return results;
}

std::vector<at::Tensor> TrainingGraphs::forward(const std::vector<at::Tensor>& inputs, bool copy) {
  TORCH_CHECK_VALUE(inputs.size() == static_.inputs.size(), "expected ", static_.inputs.size(),
                    " inputs, got ", inputs.size());
  lane_->order();
  copies_ = copy;
  inputs_copied_ = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].const_data_ptr() == static_.inputs[i].const_data_ptr()) continue;
    static_.inputs[i].copy_(inputs[i]);
    ++inputs_copied_;
  }
  forward_->replay();
  std::vector<at::Tensor> results;
  results.reserve(static_.results.size());
  for (const at::Tensor& result : static_.results) {
    results.push_back(copy ? result.detach().clone() : result.detach());
  }
  return results;
}

std::vector<at::Tensor> TrainingGraphs::backward(const std::vector<at::Tensor>& grad_results, bool copy) {
  lane_->order();
  // Autograd gives one for each result that has a gradient, undefined where nothing flowed back.
  auto given = grad_results.begin();
  for (const at::Tensor& grad : static_.grad_results) {
    if (!grad.defined()) continue;
    given->defined() ? grad.copy_(*given) : grad.zero_();
    ++given;
  }
  backward_->replay();
  if (!copy) return static_.grads;
  std::vector<at::Tensor> from, to, grads(static_.grads.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!static_.grads[i].defined()) continue;
    grads[i] = at::empty_like(static_.grads[i]);
    from.push_back(static_.grads[i]);
    to.push_back(grads[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  return grads;
}

size_t TrainingGraphs::launches() const {
  const auto defined = [](const std::vector<at::Tensor>& tensors) {
    return static_cast<size_t>(
        std::count_if(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.defined(); }));
  };
  size_t copies = inputs_copied_ + defined(static_.grad_results);
  if (copies_) {
    copies += static_.results.size();
    for_slices(defined(static_.grads), 2, [&](size_t, size_t) { ++copies; });
  }
  return 2 + copies;
}

}  // namespace torch_npu::graph
