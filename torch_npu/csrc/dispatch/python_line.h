// How the core learns which Python line is running, without knowing Python.
#pragma once

#include <string>

namespace torch_npu {

/// "train.py:12 in forward": the innermost frame outside torch. Empty where no Python runs (autograd's
/// threads, C++ programs). The text lives as long as the process, so that a launch can be remembered by its
/// address.
const std::string& python_line();

/// Called once by the bindings.
void set_python_line(const std::string& (*function)());

}  // namespace torch_npu
