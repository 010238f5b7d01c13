// torch_npu._C._distributed_c10d: the back end hccl of torch.distributed.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/distributed/process_group.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {

void bind_distributed(py::module_& m) {
  using distributed::ProcessGroupHCCL;
  // Registers the classes that these derive from.
  if (!py::module_::import("torch.distributed").attr("is_available")().cast<bool>()) return;
  auto sub = m.def_submodule("_distributed_c10d", "The back end hccl of torch.distributed.");
  py::class_<ProcessGroupHCCL, c10::intrusive_ptr<ProcessGroupHCCL>, c10d::Backend> group(sub,
                                                                                          "ProcessGroupHCCL");
  using Options = ProcessGroupHCCL::Options;
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(group, "Options")
      .def(py::init<>())
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def_readwrite("hccl_config", &Options::hccl_config)
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def("__deepcopy__",
           [](const Options& self, const py::dict& /*memo*/) { return c10::make_intrusive<Options>(self); });
  group
      .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, c10::intrusive_ptr<Options>>(),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"))
      .def(
          "get_hccl_comm_name",
          [](ProcessGroupHCCL& self, int /*rank*/, bool init_comm) {
            return self.communicator_name(device::current_device(), init_comm);
          },
          "The name by which operators that communicate find the group, on the current device. A group that "
          "has not "
          "met its other ranks yet does so, or with init_comm=False has the name ''.",
          py::arg("rank"), py::arg("init_comm") = true, without_gil())
      .def_property_readonly("options", &ProcessGroupHCCL::options)
      // PyTorch asks the ranks that are no part of a new group for it; here those have nothing to do.
      .def("perform_nocolor_split", [](ProcessGroupHCCL&, const py::object& /*device*/) {});
}

}  // namespace torch_npu::python
