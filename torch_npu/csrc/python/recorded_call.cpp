#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <optional>
#include <tuple>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/graph/lane.h"
#include "torch_npu/csrc/graph/npu_graph.h"
#include "torch_npu/csrc/python/bindings.h"
#include "torch_npu/csrc/python/handed_out.h"
#include "torch_npu/csrc/python/module_state.h"

namespace torch_npu::python {
namespace {

/// The state of PyTorch, of this thread and global, that decides what an operator does.
struct Modes {
  bool grad = at::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  bool autocast = at::autocast::is_autocast_enabled(at::kPrivateUse1);
  at::ScalarType autocast_dtype = at::autocast::get_autocast_dtype(at::kPrivateUse1);
  bool deterministic = at::globalContext().deterministicAlgorithms();
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();

  bool operator==(const Modes&) const = default;
};

/// Whether somebody wants to see the operators, or a capture would take a replay for one.
bool is_watched() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         c10::impl::tls_local_dispatch_key_set().included_.has(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         device::is_capturing(device::current_stream(device::current_device()));
}

/// An argument as it was: a tensor of this form at this address, or this very object.
class Argument {
 public:
  explicit Argument(const py::handle& value) : value_(py::reinterpret_borrow<py::object>(value)) {
    if (!THPVariable_Check(value.ptr())) return;
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    form_.emplace(Form{tensor.key_set(), tensor.dtype(), tensor.device(), tensor.requires_grad(),
                       tensor.sizes().vec(), tensor.strides().vec(), tensor.const_data_ptr()});
    value_ = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
  }

  bool is(const py::handle& other) const {
    if (!form_.has_value()) return value_.is(other);
    if (value_.ptr() != reinterpret_cast<PyObject*>(Py_TYPE(other.ptr()))) return false;
    const at::Tensor& tensor = THPVariable_Unpack(other.ptr());
    return tensor.key_set() == form_->keys && tensor.dtype() == form_->dtype &&
           tensor.device() == form_->device && tensor.requires_grad() == form_->requires_grad &&
           tensor.sizes() == form_->sizes && tensor.strides() == form_->strides &&
           tensor.const_data_ptr() == form_->address;
  }

 private:
  struct Form {
    c10::DispatchKeySet keys;  // also tells sparse, conjugated and inference tensors
    caffe2::TypeMeta dtype;
    c10::Device device;
    bool requires_grad;
    std::vector<int64_t> sizes, strides;
    const void* address;
  };
  py::object value_;  // of a tensor, its class
  std::optional<Form> form_;
};

/// A graph, and the memory of its results, which callers get as it is.
struct Way {
  std::shared_ptr<graph::NPUGraph> graph;
  std::vector<at::Tensor> results;
  HandedOut handed_out;

  std::vector<at::Tensor> replay() const {
    graph->replay();
    std::vector<at::Tensor> given;
    for (const at::Tensor& result : results) given.push_back(result.detach());
    return given;
  }
};
using WayParts = std::tuple<std::shared_ptr<graph::NPUGraph>, std::vector<at::Tensor>, HandedOut>;

/// A call of a module whose graphs work on the memory of its arguments, found again and replayed without
/// Python. It is made for exactly one call; all that differs from it is for torchtitan_npu.sinking to look
/// at.
class RecordedCall {
 public:
  RecordedCall(py::object state, std::shared_ptr<graph::Lane> lane, const py::tuple& args,
               const py::dict& kwargs, const std::vector<WayParts>& graphs)
      : state_(std::move(state)), training_(of_module().training()), lane_(std::move(lane)) {
    for (const py::handle& value : args) arguments_.emplace_back(value);
    for (const auto& [name, value] : kwargs) {
      names_.push_back(py::reinterpret_borrow<py::object>(name));
      arguments_.emplace_back(value);
    }
    for (const auto& [graph, results, handed_out] : graphs) ways_.push_back({graph, results, handed_out});
  }

  /// The results, or None: the call is another one, or the results of the graphs are all in use.
  std::optional<std::vector<at::Tensor>> replay(const py::tuple& args, const py::dict& kwargs) const {
    if (!are_arguments(args, kwargs) || !(Modes() == modes_) || is_watched() || !lane_->is_free()) return {};
    if (!of_module().is_unchanged() || of_module().training() != training_) return {};
    const auto way =
        std::find_if(ways_.begin(), ways_.end(), [](const Way& w) { return is_free(w.handed_out); });
    if (way == ways_.end()) return {};
    const py::gil_scoped_release released;
    lane_->order();
    return way->replay();
  }

 private:
  const ModuleState& of_module() const { return state_.cast<const ModuleState&>(); }

  bool are_arguments(const py::tuple& args, const py::dict& kwargs) const {
    if (kwargs.size() != names_.size() || args.size() + names_.size() != arguments_.size()) return false;
    auto argument = arguments_.begin();
    for (const py::handle& value : args) {
      if (!(argument++)->is(value)) return false;
    }
    auto name = names_.begin();
    for (const auto& [given, value] : kwargs) {
      if (!(name++)->is(given) || !(argument++)->is(value)) return false;
    }
    return true;
  }

  py::object state_;  // ModuleState
  std::string training_;
  std::shared_ptr<graph::Lane> lane_;
  Modes modes_;
  std::vector<Argument> arguments_;
  std::vector<py::object> names_;
  std::vector<Way> ways_;
};

}  // namespace

void bind_recorded_call(py::module_& m) {
  py::class_<RecordedCall>(m, "_RecordedCall")
      .def(py::init<py::object, std::shared_ptr<graph::Lane>, const py::tuple&, const py::dict&,
                    const std::vector<WayParts>&>(),
           py::arg("state"), py::arg("lane"), py::arg("args"), py::arg("kwargs"), py::arg("graphs"))
      .def("replay", &RecordedCall::replay, py::arg("args"), py::arg("kwargs"));
}

}  // namespace torch_npu::python
