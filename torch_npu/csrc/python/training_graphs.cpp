#include "torch_npu/csrc/graph/training_graphs.h"

#include "torch_npu/csrc/graph/lane.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

using graph::Lane;
using graph::NPUGraph;
using graph::TrainingGraphs;
using Tensors = std::vector<at::Tensor>;

/// None stands for an undefined tensor.
Tensors with_undefined(const std::vector<std::optional<at::Tensor>>& tensors) {
  Tensors found;
  for (const auto& tensor : tensors) found.push_back(tensor.value_or(at::Tensor()));
  return found;
}

std::shared_ptr<TrainingGraphs> make(std::shared_ptr<Lane> lane, std::shared_ptr<NPUGraph> forward,
                                     std::shared_ptr<NPUGraph> backward, Tensors inputs, Tensors results,
                                     const std::vector<std::optional<at::Tensor>>& grad_results,
                                     const std::vector<std::optional<at::Tensor>>& grads) {
  return std::make_shared<TrainingGraphs>(std::move(lane), std::move(forward), std::move(backward),
                                          TrainingGraphs::Static{.inputs = std::move(inputs),
                                                                 .results = std::move(results),
                                                                 .grad_results = with_undefined(grad_results),
                                                                 .grads = with_undefined(grads)});
}

}  // namespace

void bind_training_graphs(py::module_& m) {
  py::class_<Lane, std::shared_ptr<Lane>>(m, "_Lane")
      .def(py::init<>())
      .def_property_readonly("pool", &Lane::pool)
      .def("is_free", &Lane::is_free)
      .def("order", &Lane::order);
  py::class_<TrainingGraphs, std::shared_ptr<TrainingGraphs>>(m, "_TrainingGraphs")
      .def(py::init(&make), py::kw_only(), py::arg("lane"), py::arg("forward"), py::arg("backward"),
           py::arg("inputs"), py::arg("results"), py::arg("grad_results"), py::arg("grads"))
      .def("replay", &TrainingGraphs::replay, py::arg("inputs"), py::arg("differentiable"), py::arg("copy"),
           without_gil())
      .def("launches", &TrainingGraphs::launches);
}

}  // namespace torch_npu::python
