#include "torch_npu/csrc/device/stream.h"

#include <torch/csrc/Event.h>

#include "torch_npu/csrc/cann/cann.h"
#include "torch_npu/csrc/device/device.h"
#include "torch_npu/csrc/device/event.h"
#include "torch_npu/csrc/graph/recording.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

using Triple = std::tuple<c10::StreamId, c10::DeviceIndex, int>;

Triple unpack(c10::Stream stream) {
  const auto fields = stream.pack3();
  return {fields.stream_id, fields.device_index, static_cast<int>(fields.device_type)};
}

c10::Stream pack(c10::StreamId id, int64_t index, int64_t type) {
  TORCH_CHECK(type == static_cast<int64_t>(c10::DeviceType::PrivateUse1), "expected the device type of npu (",
              static_cast<int>(c10::DeviceType::PrivateUse1), "), got ", type);
  TORCH_CHECK(index >= 0 && index < device::kMaxDevices, "invalid device index of a stream: ", index);
  return c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(index), c10::DeviceType::PrivateUse1);
}

/// Milliseconds from `start` to `end`. torch.Event.elapsed_time itself refuses subclasses such as
/// torch.npu.Event.
double elapsed_time(py::handle start, py::handle end) {
  for (py::handle event : {start, end}) {
    TORCH_CHECK_TYPE(THPEvent_Check(event.ptr()), "expected a torch.Event, got ",
                     py::str(py::type::of(event)).cast<std::string>());
  }
  return reinterpret_cast<THPEvent*>(start.ptr())
      ->event.elapsedTime(reinterpret_cast<THPEvent*>(end.ptr())->event);
}

aclrtStream handle_of(const Triple& stream) {
  const auto& [id, index, type] = stream;
  return device::stream_handle(pack(id, index, type));
}

/// torch.npu.ExternalEvent. A graph that waits for the event or records it keeps it.
class ExternalEvent {
 public:
  explicit ExternalEvent()
      : event_(device::create_external_event(),
               [device = device::current_device()](void* event) { device::destroy_event(event, device); }) {}

  void record(const Triple& stream) const { on(stream, device::record_external_event); }
  void wait(const Triple& stream) const { on(stream, device::wait_external_event); }
  void reset(const Triple& stream) const { on(stream, device::reset_event); }
  uintptr_t handle() const { return reinterpret_cast<uintptr_t>(event_.get()); }

 private:
  void on(const Triple& stream, void (*action)(void*, aclrtStream)) const {
    const aclrtStream handle = handle_of(stream);
    if (graph::Recording* recording = graph::recording_on(handle)) {
      recording->keep(event_);
      recording->count_node();
    }
    action(event_.get(), handle);
  }

  std::shared_ptr<void> event_;
};

/// A Python function that a stream calls: `function(argument)`.
struct HostFunction {
  py::object function;
  py::object argument;

  ~HostFunction() {
    const py::gil_scoped_acquire gil;
    function = {};
    argument = {};
  }
};

/// Runs on a thread of CANN's, in stream order. Nobody is there to take an exception: Python prints it.
void call_host_function(void* call) {
  const py::gil_scoped_acquire gil;
  const auto* self = static_cast<const HostFunction*>(call);
  try {
    self->function(self->argument);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable(self->function);
  }
}

void call_host_function_once(void* call) {
  const std::unique_ptr<HostFunction> owned(static_cast<HostFunction*>(call));
  call_host_function(call);
}

/// In a capture the graph keeps the function and each replay calls it, else it is called once.
void launch_host_function(const Triple& stream, py::object function, py::object argument) {
  const aclrtStream handle = handle_of(stream);
  auto call = std::make_unique<HostFunction>(HostFunction{std::move(function), std::move(argument)});
  const py::gil_scoped_release released;  // the function may run before the launch returns
  if (graph::Recording* recording = graph::recording_on(handle)) {
    const std::shared_ptr<HostFunction> kept = std::move(call);
    recording->keep(kept);
    recording->count_node();
    cann::api().aclrtLaunchHostFunc.checked(handle, call_host_function, kept.get());
    return;
  }
  cann::api().aclrtLaunchHostFunc.checked(handle, call_host_function_once, call.get());
  call.release();
}

}  // namespace

/// A stream crosses as (stream_id, device_index, device_type), from which torch.npu.Stream makes its object.
void bind_stream(py::module_& m) {
  m.def("_current_stream", [](c10::DeviceIndex index) { return unpack(device::current_stream(index)); });
  m.def("_default_stream", [](c10::DeviceIndex index) { return unpack(device::default_stream(index)); });
  m.def("_stream_from_pool", [](c10::DeviceIndex index, int priority) {
    return unpack(device::stream_from_pool(index, priority));
  });
  m.def("_external_stream", [](uintptr_t pointer, c10::DeviceIndex index) {
    return unpack(device::external_stream(reinterpret_cast<aclrtStream>(pointer), index));
  });
  m.def("_exchange_stream", [](c10::StreamId id, int64_t index, int64_t type) {
    return unpack(device::exchange_stream(pack(id, index, type)));
  });
  m.def(
      "_stream_handle",
      [](c10::StreamId id, int64_t index, int64_t type) {
        return reinterpret_cast<uintptr_t>(device::stream_handle(pack(id, index, type)));
      },
      py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"));
  m.def("_stream_priority", [](c10::StreamId id, int64_t index, int64_t type) {
    return device::stream_priority(pack(id, index, type));
  });
  py::class_<ExternalEvent>(m, "_ExternalEvent")
      .def(py::init<>())
      .def("record", &ExternalEvent::record)
      .def("wait", &ExternalEvent::wait)
      .def("reset", &ExternalEvent::reset)
      .def("handle", &ExternalEvent::handle);
  m.def("_launch_host_function", &launch_host_function);
  m.def("_elapsed_time", &elapsed_time);
  m.def("_recorded_time",
        [](uintptr_t event) { return device::recorded_time(reinterpret_cast<void*>(event)); });
}

}  // namespace torch_npu::python
