// Tells the core which Python line is running.
#include "torch_npu/csrc/dispatch/python_line.h"

#include <c10/util/flat_hash_map.h>

#include <mutex>

#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {

bool is_library_file(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.find("/torch_npu/") != std::string::npos ||
         file.rfind("<frozen", 0) == 0;
}

namespace {

struct Line {
  std::string text;
  bool is_library = false;
};

/// Texts by code object and line. Entries stay: there are as many as lines of the program that launched
/// something, and others keep their addresses. The code object is kept alive, since its address is the key.
/// Needs the GIL.
const Line& line_of(PyFrameObject* frame) {
  static auto* lines = new ska::flat_hash_map<uint64_t, std::unique_ptr<Line>>;
  auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const int number = PyFrame_GetLineNumber(frame);
  const uint64_t key = reinterpret_cast<uint64_t>(code.ptr()) * 31 + static_cast<uint64_t>(number);
  auto& line = (*lines)[key];
  if (line == nullptr) {
    const auto file = py::cast<std::string>(code.attr("co_filename"));
    const auto function = py::cast<std::string>(code.attr("co_name"));
    line = std::make_unique<Line>(
        Line{file + ":" + std::to_string(number) + " in " + function, is_library_file(file)});
    code.release();
  }
  return *line;
}

const std::string& current_line() {
  static const std::string none;
  if (!Py_IsInitialized()) return none;
  const py::gil_scoped_acquire gil;
  const Line* innermost = nullptr;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    const Line& line = line_of(frame);
    if (innermost == nullptr || !line.is_library) innermost = &line;
    PyFrameObject* back = line.is_library ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return innermost == nullptr ? none : innermost->text;
}

}  // namespace

void bind_python_line() { set_python_line(&current_line); }

}  // namespace torch_npu::python
