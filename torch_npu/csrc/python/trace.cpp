#include "torch_npu/csrc/device/trace.h"

#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

struct Description {
  const char* name;
  int handles;
};

Description describe(device::Trace what) {
  using device::Trace;
  switch (what) {
    case Trace::kEventDeletion:
      return {"event_deletion", 1};
    case Trace::kEventRecord:
      return {"event_record", 2};
    case Trace::kEventWait:
      return {"event_wait", 2};
    case Trace::kEventSynchronization:
      return {"event_synchronization", 1};
    case Trace::kMemoryAllocation:
      return {"memory_allocation", 1};
    case Trace::kMemoryDeallocation:
      return {"memory_deallocation", 1};
    case Trace::kStreamSynchronization:
      return {"stream_synchronization", 1};
    case Trace::kDeviceSynchronization:
      return {"device_synchronization", 0};
  }
  TORCH_INTERNAL_ASSERT(false, "unknown trace event");
}

PyObject* observer = nullptr;  // guarded by Python's lock; a reference of our own

void observe(device::Trace what, const void* first, const void* second) {
  const py::gil_scoped_acquire gil;
  // Memory is also freed while an exception is on its way.
  const py::error_scope exception_under_way;
  if (observer == nullptr) return;
  try {
    const auto [name, count] = describe(what);
    py::list handles;
    if (count > 0) handles.append(reinterpret_cast<uintptr_t>(first));
    if (count > 1) handles.append(reinterpret_cast<uintptr_t>(second));
    py::reinterpret_borrow<py::object>(observer)(name, *handles);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("torch_npu._C._observe_trace");
  }
}

void observe_trace(const py::object& callback) {
  device::trace_observer.store(callback.is_none() ? nullptr : &observe, std::memory_order_release);
  PyObject* previous = std::exchange(observer, callback.is_none() ? nullptr : callback.inc_ref().ptr());
  Py_XDECREF(previous);
}

}  // namespace

void bind_trace(py::module_& m) {
  m.def("_observe_trace", &observe_trace, py::arg("callback").none(true),
        "Calls callback(name, *handles) for each event of device/trace.h; None ends it.");
}

}  // namespace torch_npu::python
