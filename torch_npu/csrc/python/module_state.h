#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace torch_npu::python {

/// What the dictionaries of a module and its submodules hold (parameters, buffers, submodules), to be
/// compared before each replay of a graph: thousands of comparisons that must take a few microseconds
/// together.
class ModuleState {
 public:
  /// `members`: dictionaries that must keep their values, and those that are tensors their memory and
  /// requires_grad. `empty`: dictionaries that must stay empty. `attributes`: `__dict__` of each module.
  /// `values`: tensors that must keep their values, too.
  ModuleState(const std::vector<py::dict>& members, std::vector<py::dict> empty,
              std::vector<py::dict> attributes, const std::vector<at::Tensor>& values)
      : empty_(std::move(empty)), attributes_(std::move(attributes)) {
    watch_values(values);
    for (const py::dict& dict : members) {
      Members& kept = members_.emplace_back(Members{dict, {}});
      for (const auto& [name, value] : dict) {
        kept.values.push_back(py::reinterpret_borrow<py::object>(value));
        if (THPVariable_Check(value.ptr())) {
          const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
          tensors_.push_back({tensor, address_of(tensor), tensor.requires_grad()});
        }
      }
    }
  }

  /// From now on these must keep their values, too.
  void watch_values(const std::vector<at::Tensor>& values) {
    for (const at::Tensor& tensor : values) versions_.push_back({tensor, version_of(tensor)});
  }

  bool is_unchanged() const {
    return std::all_of(members_.begin(), members_.end(), has_its_values) &&
           std::all_of(empty_.begin(), empty_.end(), [](const py::dict& d) { return d.empty(); }) &&
           std::all_of(tensors_.begin(), tensors_.end(),
                       [](const Kept& kept) {
                         return address_of(kept.tensor) == kept.address &&
                                kept.tensor.requires_grad() == kept.requires_grad;
                       }) &&
           std::all_of(versions_.begin(), versions_.end(),
                       [](const auto& kept) { return version_of(kept.first) == kept.second; });
  }

  /// A byte for each module: whether it is in train mode.
  std::string training() const {
    static PyObject* const name = PyUnicode_InternFromString("training");
    std::string flags(attributes_.size(), '\0');
    std::transform(attributes_.begin(), attributes_.end(), flags.begin(), [](const py::dict& attributes) {
      PyObject* const value = PyDict_GetItemWithError(attributes.ptr(), name);
      if (PyErr_Occurred()) throw py::error_already_set();
      return static_cast<char>(value != nullptr && py::handle(value).cast<bool>());
    });
    return flags;
  }

 private:
  struct Members {
    py::dict dict;
    std::vector<py::object> values;
  };
  struct Kept {
    at::Tensor tensor;
    const void* address;
    bool requires_grad;
  };

  static bool has_its_values(const Members& members) {
    if (members.dict.size() != members.values.size()) return false;
    return std::equal(members.values.begin(), members.values.end(), members.dict.begin(),
                      [](const py::object& kept, const auto& entry) { return kept.is(entry.second); });
  }

  static const void* address_of(const at::Tensor& tensor) {
    return tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
  }

  /// How often the tensor was written; tensors of inference mode do not count it.
  static int64_t version_of(const at::Tensor& tensor) {
    return tensor.is_inference() ? 0 : tensor._version();
  }

  std::vector<Members> members_;
  std::vector<py::dict> empty_;
  std::vector<py::dict> attributes_;
  std::vector<Kept> tensors_;
  std::vector<std::pair<at::Tensor, int64_t>> versions_;
};

}  // namespace torch_npu::python
