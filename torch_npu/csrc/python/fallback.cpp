// The fallback ledger for Python, and Python's current line for the ledger.
#include "torch_npu/csrc/dispatch/fallback.h"

#include "torch_npu/csrc/dispatch/ledger.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

bool is_library_file(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.find("/torch_npu/") != std::string::npos ||
         file.rfind("<frozen", 0) == 0;
}

/// "train.py:12 in forward": the innermost frame outside torch, else the innermost; empty without a Python
/// frame.
std::string python_line() {
  if (!Py_IsInitialized()) return {};
  const py::gil_scoped_acquire gil;
  std::string innermost;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.ptr() != nullptr && !frame.is_none()) {
    const auto code = frame.attr("f_code");
    const auto file = py::cast<std::string>(code.attr("co_filename"));
    const auto line = py::cast<std::string>(py::str(frame.attr("f_lineno")));
    const auto text = file + ":" + line + " in " + py::cast<std::string>(code.attr("co_name"));
    if (!is_library_file(file)) return text;
    if (innermost.empty()) innermost = text;
    frame = frame.attr("f_back");
  }
  return innermost;
}

}  // namespace

void bind_fallback(py::module_& m) {
  py::enum_<FallbackPolicy>(m, "_FallbackPolicy")
      .value("allow", FallbackPolicy::kAllow)
      .value("warn", FallbackPolicy::kWarn)
      .value("error", FallbackPolicy::kError);
  py::class_<FallbackEntry>(m, "_FallbackEntry")
      .def_readonly("op", &FallbackEntry::op)
      .def_readonly("dtype", &FallbackEntry::dtype)
      .def_readonly("calls", &FallbackEntry::calls)
      .def_readonly("bytes", &FallbackEntry::bytes)
      .def_readonly("copied_bytes", &FallbackEntry::copied_bytes)
      .def_readonly("seconds", &FallbackEntry::seconds)
      .def_readonly("first_line", &FallbackEntry::first_line);
  m.def("_fallback_entries", [] { return FallbackLedger::get().entries(); });
  m.def("_fallback_clear", [] { FallbackLedger::get().clear(); });
  m.def("_fallback_policy", [] { return FallbackLedger::get().policy(); });
  m.def("_set_fallback_policy",
        [](FallbackPolicy policy) { return FallbackLedger::get().set_policy(policy); });

  FallbackLedger::get().set_python_line(&python_line);
  register_fallbacks();
}

}  // namespace torch_npu::python
