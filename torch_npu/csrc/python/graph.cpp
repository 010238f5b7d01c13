#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/stream.h"
#include "torch_npu/csrc/graph/npu_graph.h"
#include "torch_npu/csrc/graph/recording.h"
#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

using graph::NPUGraph;

at::GraphCaptureMode capture_mode(const std::string& name) {
  if (name == "global" || name == "default") return at::GraphCaptureMode::Global;
  if (name == "thread_local") return at::GraphCaptureMode::ThreadLocal;
  if (name == "relaxed") return at::GraphCaptureMode::Relaxed;
  TORCH_CHECK_VALUE(
      false, "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got ", name);
}

/// The end of a graph waits for its replays, whose host functions may need the interpreter. Autograd's
/// threads, which may hold a graph last, do not have it.
void delete_without_gil(NPUGraph* graph) {
  std::optional<py::gil_scoped_release> released;
  if (PyGILState_Check() != 0) released.emplace();
  delete graph;
}

/// Groups of tasks in a captured graph that other arguments can be given. A stream crosses as the address of
/// its handle.
void bind_task_groups(py::module_& m) {
  const auto stream_at = [](uintptr_t address) { return reinterpret_cast<aclrtStream>(address); };
  m.def("_task_group_begin",
        [=](uintptr_t s) { cann::api().aclmdlRICaptureTaskGrpBegin.checked(stream_at(s)); });
  m.def("_task_group_end", [=](uintptr_t s) {
    aclrtTaskGrp group = nullptr;
    cann::api().aclmdlRICaptureTaskGrpEnd.checked(stream_at(s), &group);
    return reinterpret_cast<uintptr_t>(group);
  });
  m.def("_task_update_begin", [=](uintptr_t s, uintptr_t group) {
    cann::api().aclmdlRICaptureTaskUpdateBegin.checked(stream_at(s), reinterpret_cast<aclrtTaskGrp>(group));
  });
  m.def("_task_update_end",
        [=](uintptr_t s) { cann::api().aclmdlRICaptureTaskUpdateEnd.checked(stream_at(s)); });
}

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<NPUGraph, std::shared_ptr<NPUGraph>>(m, "_NPUGraph")
      .def(py::init([](bool keep_graph) {
             return std::shared_ptr<NPUGraph>(new NPUGraph(at::GraphImplArgs{keep_graph}),
                                              &delete_without_gil);
           }),
           py::arg("keep_graph") = false)
      .def(
          "capture_begin",
          [](NPUGraph& self, std::optional<c10::MempoolId_t> pool, const std::string& mode) {
            self.capture_begin(pool.value_or(c10::MempoolId_t{0, 0}), capture_mode(mode));
          },
          py::arg("pool") = std::nullopt, py::arg("capture_error_mode") = "global", without_gil())
      .def("capture_end", &NPUGraph::capture_end, without_gil())
      .def("_continue_random_numbers_of", &NPUGraph::continue_random_numbers_of, py::arg("earlier"))
      .def("instantiate", &NPUGraph::instantiate)
      .def("replay", &NPUGraph::replay, without_gil())
      .def("reset", &NPUGraph::reset, without_gil())
      .def("pool", &NPUGraph::pool)
      .def("enable_debug_mode", &NPUGraph::enable_debug_mode)
      .def("debug_dump", &NPUGraph::debug_dump, py::arg("debug_path"), without_gil())
      .def("register_generator_state", &NPUGraph::register_generator_state, py::arg("generator"))
      .def("node_count", &NPUGraph::node_count)
      .def("memory_usage", [](const NPUGraph& self) {
        const NPUGraph::Memory& memory = self.memory();
        return std::map<std::string, int64_t>{
            {"peak", memory.peak}, {"kept", memory.kept}, {"total", memory.total}};
      });
  bind_task_groups(m);
  m.def("_graph_pool_handle", &graph::pool_handle);
  m.def("_empty_strided_npu", [](at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
    return at::empty_strided(sizes, strides, at::TensorOptions().device(at::kPrivateUse1).dtype(dtype));
  });
  // For work that is launched with addresses, of which the graph cannot see whose memory they are.
  m.def("_graph_keep", [](const at::Tensor& tensor) {
    if (graph::Recording* recording = graph::current_recording(tensor.device().index())) {
      recording->keep(tensor.storage());
    }
  });
  // For arguments that are given at each replay, at the same address.
  m.def("_graph_borrow", [](const at::Tensor& tensor) {
    if (graph::Recording* recording = graph::current_recording(tensor.device().index())) {
      recording->borrow(tensor.storage());
    }
  });
  m.def("_has_recorded_streams", [](const at::Tensor& tensor) {
    const memory::Block* block = memory::block_of(tensor.storage().data_ptr());
    return block != nullptr && !block->stream_uses.empty();
  });
  // For work that is launched past the dispatcher.
  m.def("_graph_count_nodes", [](int64_t nodes) {
    if (graph::Recording* recording = graph::current_recording()) {
      for (int64_t i = 0; i < nodes; ++i) recording->count_node();
    }
  });
  m.def("_is_current_stream_capturing", [] {
    return device::is_initialized() && device::is_capturing(device::current_stream(device::current_device()));
  });
}

}  // namespace torch_npu::python
