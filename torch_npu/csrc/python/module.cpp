#include "torch_npu/csrc/python/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native part of torch_npu. Private: use torch_npu and torch.npu.";
  torch_npu::python::bind_device(m);
  torch_npu::python::bind_stream(m);
  torch_npu::python::bind_controls(m);
  torch_npu::python::bind_random(m);
  torch_npu::python::bind_python_line();
  torch_npu::python::bind_fallback(m);
  torch_npu::python::bind_memory(m);
  torch_npu::python::bind_graph(m);
  torch_npu::python::bind_training_graphs(m);
  torch_npu::python::bind_memory_alias(m);
  torch_npu::python::bind_memory_snapshot(m);
  torch_npu::python::bind_mempool(m);
  torch_npu::python::bind_vm_pool(m);
  torch_npu::python::bind_trace(m);
  torch_npu::python::bind_module_state(m);
  torch_npu::python::bind_recorded_call(m);
  torch_npu::python::bind_recorded_plan(m);
  torch_npu::python::bind_distributed(m);
}
