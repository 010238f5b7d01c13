#pragma once

#include <torch/csrc/utils/pybind.h>

/// torch_npu._C: one file a subject adds its functions; module.cpp lists them. Python's headers are included
/// in this folder only.
namespace torch_npu::python {

void bind_device(py::module_& m);
void bind_stream(py::module_& m);
void bind_controls(py::module_& m);
void bind_random(py::module_& m);
void bind_fallback(py::module_& m);
void bind_graph(py::module_& m);
void bind_training_graphs(py::module_& m);
void bind_python_line();
void bind_trace(py::module_& m);
void bind_module_state(py::module_& m);
void bind_recorded_call(py::module_& m);
void bind_recorded_plan(py::module_& m);
void bind_memory(py::module_& m);
void bind_memory_alias(py::module_& m);
void bind_memory_snapshot(py::module_& m);
void bind_mempool(py::module_& m);
void bind_vm_pool(py::module_& m);
void bind_distributed(py::module_& m);

/// True for files of torch, torch_npu and Python itself, whose lines say nothing about the user's program.
bool is_library_file(const std::string& file);

/// Lets other Python threads run during a call that waits for a device.
using without_gil = py::call_guard<py::gil_scoped_release>;

}  // namespace torch_npu::python
