#include "torch_npu/csrc/python/module_state.h"

#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

/// Where the tensors of a list lie, to be compared before each replay as well.
class Addresses {
 public:
  /// 0: anywhere.
  explicit Addresses(std::vector<uintptr_t> addresses) : addresses_(std::move(addresses)) {}

  /// Raises TypeError if the list has another length or holds something else than tensors.
  bool are_those_of(const py::list& tensors) const {
    TORCH_CHECK_TYPE(tensors.size() == addresses_.size(), "expected ", addresses_.size(), " tensors, got ",
                     tensors.size());
    for (size_t i = 0; i < addresses_.size(); ++i) {
      if (addresses_[i] == 0) continue;
      PyObject* tensor = PyList_GET_ITEM(tensors.ptr(), static_cast<Py_ssize_t>(i));
      TORCH_CHECK_TYPE(THPVariable_Check(tensor), "expected a tensor, got a ", Py_TYPE(tensor)->tp_name);
      if (reinterpret_cast<uintptr_t>(THPVariable_Unpack(tensor).const_data_ptr()) != addresses_[i])
        return false;
    }
    return true;
  }

 private:
  std::vector<uintptr_t> addresses_;
};

}  // namespace

void bind_module_state(py::module_& m) {
  py::class_<ModuleState>(m, "_ModuleState")
      .def(py::init<const std::vector<py::dict>&, std::vector<py::dict>, std::vector<py::dict>,
                    const std::vector<at::Tensor>&>(),
           py::arg("members"), py::arg("empty"), py::arg("attributes"), py::arg("values"))
      .def("training", [](const ModuleState& self) { return py::bytes(self.training()); })
      .def("watch_values", &ModuleState::watch_values)
      .def("is_unchanged", &ModuleState::is_unchanged);
  py::class_<Addresses>(m, "_Addresses")
      .def(py::init<std::vector<uintptr_t>>())
      .def("are_those_of", &Addresses::are_those_of);
}

}  // namespace torch_npu::python
