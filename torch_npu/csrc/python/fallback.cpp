// What ran natively, what fell back to the CPU and what was composed, for Python.
#include "torch_npu/csrc/dispatch/fallback.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <list>

#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/ledger.h"
#include "torch_npu/csrc/dispatch/unfused.h"
#include "torch_npu/csrc/python/bindings.h"

namespace torch_npu::python {
namespace {

/// An operator of torch.ops.npu that was registered in Python has no derivative: whoever asks for it gets an
/// error. PyTorch alone would warn once and take zeros.
void refuse_gradients(const std::string& op) {
  static auto* kept = new std::list<torch::Library>;  // outlive the interpreter
  kept->emplace_back(torch::Library::IMPL, "npu", std::optional(c10::DispatchKey::Autograd), __FILE__,
                     __LINE__)
      .impl(op.c_str(), torch::autograd::autogradNotImplementedFallback());
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
  m.def("_native_calls", &AclnnBase::calls);
  m.def("_native_calls_clear", &AclnnBase::clear_calls);
  py::class_<UnfusedCall>(m, "_UnfusedCall")
      .def_readonly("function", &UnfusedCall::function)
      .def_readonly("reason", &UnfusedCall::reason)
      .def_readonly("calls", &UnfusedCall::calls)
      .def_readonly("first_line", &UnfusedCall::first_line);
  m.def("_unfused_calls", &unfused_calls);
  m.def("_unfused_calls_clear", &clear_unfused_calls);
  m.def("_refuse_gradients", &refuse_gradients, py::arg("operator"));

  register_fallbacks();
}

}  // namespace torch_npu::python
