#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {

void bind_random(py::module_& m) {
  m.def("_default_generator", &default_generator, py::return_value_policy::copy);
  m.def("_seed_default_generators", &seed_default_generators);
}

}  // namespace torch_npu::python
