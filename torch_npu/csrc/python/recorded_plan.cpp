#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <tuple>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/graph/npu_graph.h"
#include "torch_npu/csrc/python/bindings.h"
#include "torch_npu/csrc/python/handed_out.h"

namespace torch_npu::python {
namespace {

/// A captured plan of the graph compiler, which a call with inputs in the same memory runs without Python.
class RecordedPlan {
 public:
  /// Of a result the graph's memory, or the number of the input that it is, or (-1) a value that is always
  /// the same.
  using Result = std::tuple<std::optional<at::Tensor>, int64_t, py::object>;

  /// `addresses` of the inputs; 0: anywhere, as it is copied to its place. `places`: numbers of inputs, and
  /// where the graph reads them.
  RecordedPlan(std::vector<uintptr_t> addresses, std::vector<std::pair<size_t, at::Tensor>> places,
               std::shared_ptr<graph::NPUGraph> graph, std::vector<Result> results, HandedOut handed_out)
      : addresses_(std::move(addresses)),
        places_(std::move(places)),
        graph_(std::move(graph)),
        results_(std::move(results)),
        handed_out_(std::move(handed_out)) {}

  /// The results; None, and nothing was done, if inputs lie elsewhere, results are in use or the current
  /// stream is another one or captures. Raises TypeError for inputs that are no tensors.
  py::object replay(const py::list& inputs, uintptr_t stream) const {
    const auto device = device::current_device();
    if (reinterpret_cast<uintptr_t>(device::current_stream_handle(device)) != stream) return py::none();
    if (device::is_capturing(device::current_stream(device))) return py::none();
    if (!lie_there(inputs) || !is_free(handed_out_)) return py::none();
    py::tuple given = results(inputs);  // before other threads run, for which the memory is in use now
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    for (const auto& [number, place] : places_) copies.emplace_back(place, tensor_of(inputs, number));
    {
      const py::gil_scoped_release released;
      const at::NoGradGuard no_grad;
      device::activate(device);
      for (auto& [place, input] : copies) place.copy_(input);
      graph_->replay();
    }
    return given;
  }

 private:
  static const at::Tensor& tensor_of(const py::list& inputs, size_t number) {
    PyObject* input = PyList_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(number));
    TORCH_CHECK_TYPE(THPVariable_Check(input), "input ", number, ": expected a tensor, got a ",
                     Py_TYPE(input)->tp_name);
    return THPVariable_Unpack(input);
  }

  bool lie_there(const py::list& inputs) const {
    TORCH_CHECK_TYPE(inputs.size() == addresses_.size(), "expected ", addresses_.size(), " inputs, got ",
                     inputs.size());
    for (size_t i = 0; i < addresses_.size(); ++i) {
      if (addresses_[i] == 0) continue;
      if (reinterpret_cast<uintptr_t>(tensor_of(inputs, i).const_data_ptr()) != addresses_[i]) return false;
    }
    return true;
  }

  py::tuple results(const py::list& inputs) const {
    py::tuple given(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) {
      const auto& [memory, input, constant] = results_[i];
      if (memory.has_value()) {
        given[i] = py::cast(memory->variable_data());  // a tensor of its own to autograd
      } else {
        given[i] = input < 0 ? constant : py::object(inputs[static_cast<size_t>(input)]);
      }
    }
    return given;
  }

  std::vector<uintptr_t> addresses_;
  std::vector<std::pair<size_t, at::Tensor>> places_;
  std::shared_ptr<graph::NPUGraph> graph_;
  std::vector<Result> results_;
  HandedOut handed_out_;
};

}  // namespace

void bind_recorded_plan(py::module_& m) {
  py::class_<RecordedPlan>(m, "_RecordedPlan")
      .def(py::init<std::vector<uintptr_t>, std::vector<std::pair<size_t, at::Tensor>>,
                    std::shared_ptr<graph::NPUGraph>, std::vector<RecordedPlan::Result>, HandedOut>(),
           py::arg("addresses"), py::arg("places"), py::arg("graph"), py::arg("results"),
           py::arg("handed_out"))
      .def("replay", &RecordedPlan::replay, py::arg("inputs"), py::arg("stream"));
}

}  // namespace torch_npu::python
