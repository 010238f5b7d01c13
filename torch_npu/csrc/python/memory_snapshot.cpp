#include <torch/csrc/profiler/combined_traceback.h>

#include "torch_npu/csrc/memory/caching_allocator.h"
#include "torch_npu/csrc/python/bindings.h"

// Of torch/csrc/profiler/python/combined_traceback.h, which includes a header that the torch wheel lacks.
namespace torch {
TORCH_API std::vector<py::object> py_symbolize(std::vector<CapturedTraceback*>& tracebacks);
TORCH_PYTHON_API void freeDeadCapturedTracebackFrames();
}  // namespace torch

namespace torch_npu::python {
namespace {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;
using memory::caching_allocator;
using memory::History;

std::shared_ptr<c10::GatheredContext> python_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/false);
}

std::shared_ptr<c10::GatheredContext> full_stack() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, /*cpp=*/true);
}

const char* name_of(History::Event::Action action) {
  switch (action) {
    case History::Event::ALLOC:
      return "alloc";
    case History::Event::FREE_REQUESTED:
      return "free_requested";
    case History::Event::FREE_COMPLETED:
      return "free_completed";
    case History::Event::SEGMENT_ALLOC:
      return "segment_alloc";
    case History::Event::SEGMENT_FREE:
      return "segment_free";
    case History::Event::SEGMENT_MAP:
      return "segment_map";
    case History::Event::SEGMENT_UNMAP:
      return "segment_unmap";
    case History::Event::SNAPSHOT:
      return "snapshot";
    case History::Event::OOM:
      return "oom";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown memory event ", static_cast<int>(action));
}

History::Level level_of(const std::optional<std::string>& context) {
  if (!context) return History::Level::NEVER;
  if (*context == "state") return History::Level::STATE;
  if (*context == "alloc") return History::Level::ALLOC;
  TORCH_CHECK_VALUE(*context == "all", "expected context to be None, 'state', 'alloc' or 'all', but got '",
                    *context, "'");
  return History::Level::ALL;
}

/// Turns call stacks into lists of Python frames: all at once, because looking symbols up is slow.
class Frames {
 public:
  /// Gives `item` the frames of `context` under the key "frames" when resolve() is called.
  void add(py::dict item, const History::Context& context) {
    if (!context) {
      item["frames"] = py::list();
      return;
    }
    items_.push_back(std::move(item));
    contexts_.push_back(context);  // the allocator may drop its own reference meanwhile
    tracebacks_.push_back(torch::getCapturedTracebackFromContext(context));
  }

  void resolve() {
    const std::vector<py::object> frames = torch::py_symbolize(tracebacks_);
    for (size_t i = 0; i < items_.size(); ++i) items_[i]["frames"] = frames[i];
  }

 private:
  std::vector<py::dict> items_;
  std::vector<History::Context> contexts_;
  std::vector<torch::CapturedTraceback*> tracebacks_;
};

py::tuple to_tuple(const c10::MempoolId_t& id) { return py::make_tuple(id.first, id.second); }

py::dict to_dict(const SegmentInfo& segment, Frames& frames) {
  py::dict result;
  result["device"] = segment.device;
  result["address"] = segment.address;
  result["total_size"] = segment.total_size;
  result["allocated_size"] = segment.allocated_size;
  result["active_size"] = segment.active_size;
  result["requested_size"] = segment.requested_size;
  result["stream"] = reinterpret_cast<uintptr_t>(segment.stream);
  result["segment_type"] = segment.is_large ? "large" : "small";
  result["segment_pool_id"] = to_tuple(segment.owner_private_pool_id);
  result["is_expandable"] = segment.is_expandable;
  frames.add(result, segment.context_when_allocated);
  py::list blocks;
  size_t address = segment.address;
  for (const BlockInfo& block : segment.blocks) {
    py::dict item;
    item["address"] = address;
    item["size"] = block.size;
    item["requested_size"] = block.requested_size;
    item["state"] = block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive";
    frames.add(item, block.context_when_allocated);
    blocks.append(item);
    address += block.size;
  }
  result["blocks"] = blocks;
  return result;
}

py::dict to_dict(const History::Event& event, Frames& frames) {
  py::dict result;
  result["action"] = name_of(event.action_);
  result[event.action_ == History::Event::OOM ? "device_free" : "addr"] = event.addr_;
  result["size"] = event.size_;
  result["stream"] = reinterpret_cast<uintptr_t>(event.stream_);
  result["pool_id"] = to_tuple(event.mempool_);
  result["time_us"] = event.time_.t_ / 1000;
  frames.add(result, event.context_);
  return result;
}

py::list segments(Frames& frames, c10::MempoolId_t pool) {
  py::list result;
  for (const SegmentInfo& segment : caching_allocator().snapshot(pool))
    result.append(to_dict(segment, frames));
  return result;
}

py::list events(Frames& frames) {
  py::list result;
  for (const auto& events : caching_allocator().history()) {
    py::list of_device;
    for (const History::Event& event : events) of_device.append(to_dict(event, frames));
    result.append(of_device);
  }
  return result;
}

py::dict settings() {
  const memory::Settings& current = memory::settings();
  py::dict result;
  result["PYTORCH_NPU_ALLOC_CONF"] = current.text;
  result["max_split_size"] = static_cast<int64_t>(current.max_split_size);
  result["garbage_collection_threshold"] = current.garbage_collection_threshold;
  result["expandable_segments"] = current.expandable_segments;
  py::dict divisions;
  for (size_t i = 0; i < current.power2_divisions.size(); ++i) {
    divisions[py::str(std::to_string(size_t{1} << i))] = current.power2_divisions[i];
  }
  result["roundup_power2_divisions"] = divisions;
  return result;
}

/// The innermost Python frame outside torch, without one the innermost at all: "train.py:12 in forward".
std::string line_of_context(const History::Context& context) {
  if (!Py_IsInitialized()) return "";
  const py::gil_scoped_acquire gil;
  std::vector<torch::CapturedTraceback*> stack{torch::getCapturedTracebackFromContext(context)};
  const std::vector<py::object> stacks = torch::py_symbolize(stack);
  std::string innermost;
  for (const py::handle frame : stacks.at(0)) {
    const auto file = frame["filename"].cast<std::string>();
    const bool is_python = file.starts_with('<') || file.ends_with(".py");  // the others are frames of C++
    if (!is_python) continue;
    std::string line = c10::str(file, ":", py::str(frame["line"]).cast<std::string>(), " in ",
                                frame["name"].cast<std::string>());
    if (!is_library_file(file)) return line;
    if (innermost.empty()) innermost = std::move(line);
  }
  return innermost;
}

void record_memory_history(const std::optional<std::string>& enabled,
                           const std::optional<std::string>& context, const std::string& stacks,
                           size_t max_entries, bool clear_history,
                           const std::vector<std::string>& skip_actions) {
  History::Options options;
  TORCH_CHECK_VALUE(!enabled || *enabled == "state" || *enabled == "all",
                    "expected enabled to be None, 'state' or 'all', but got '", enabled.value_or(""), "'");
  TORCH_CHECK_VALUE(stacks == "python" || stacks == "all",
                    "expected stacks to be 'python' or 'all', but got '", stacks, "'");
  options.enabled = enabled.has_value();
  options.contexts = level_of(context);
  options.recorder = stacks == "all" ? full_stack : python_stack;
  options.max_events = enabled == "state" ? 1 : max_entries;
  options.clear = clear_history;
  for (const std::string& action : skip_actions) {
    options.skipped.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
  caching_allocator().record_history(options);
  torch::freeDeadCapturedTracebackFrames();
}

}  // namespace

/// The dictionaries of torch.cuda.memory._snapshot(), which PyTorch's memory visualiser reads.
void bind_memory_snapshot(py::module_& m) {
  memory::set_line_of_context(&line_of_context);
  m.def("_record_memory_history", &record_memory_history);
  m.def("_memory_segments", [](c10::MempoolId_t pool) {
    Frames frames;
    py::list result = segments(frames, pool);
    frames.resolve();
    return result;
  });
  m.def("_memory_snapshot", [] {
    Frames frames;
    py::dict result;
    result["device_traces"] = events(frames);  // before the snapshot becomes an event itself
    result["segments"] = segments(frames, memory::kDefaultPool);
    result["allocator_settings"] = settings();
    result["external_annotations"] = py::list();
    frames.resolve();
    torch::freeDeadCapturedTracebackFrames();
    return result;
  });
}

}  // namespace torch_npu::python
