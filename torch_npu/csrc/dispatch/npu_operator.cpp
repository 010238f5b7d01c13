#include "torch_npu/csrc/dispatch/npu_operator.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace torch_npu {
namespace {

/// "float32", as torch prints it.
std::string dtype_name(at::ScalarType dtype) { return std::string(at::getDtypeNames(dtype).first); }

std::string dtype_names(uint64_t mask) {
  std::string text;
  for (int i = 0; i < 64; ++i) {
    if ((mask >> i & 1) == 0) continue;
    text += (text.empty() ? "" : ", ") + dtype_name(static_cast<at::ScalarType>(i));
  }
  return text;
}

}  // namespace

at::ScalarType dtype_named(const char* op, int64_t number) {
  TORCH_CHECK_VALUE(0 <= number && number < static_cast<int64_t>(at::ScalarType::NumOptions), op,
                    ": dtype is ", number,
                    "; expected a torch.dtype (CANN's own numbers from 256 on are not supported)");
  return static_cast<at::ScalarType>(number);
}

std::string describe(std::initializer_list<std::pair<const char*, at::Tensor>> tensors) {
  std::ostringstream text;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    text << (text.tellp() > 0 ? ", " : "") << name << ' ' << dtype_name(tensor.scalar_type())
         << tensor.sym_sizes();
  }
  return text.str();
}

void check_dtype(const char* op, const char* name, const at::Tensor& tensor, uint64_t allowed) {
  if (!tensor.defined() || (allowed >> static_cast<int>(tensor.scalar_type()) & 1) != 0) [[likely]]
    return;
  TORCH_CHECK_TYPE(false, op, ": ", name, " is ", dtype_name(tensor.scalar_type()), "; expected ",
                   dtype_names(allowed));
}

void check_dtype(const char* op, const char* name, const std::optional<at::Tensor>& tensor,
                 uint64_t allowed) {
  if (tensor.has_value()) check_dtype(op, name, *tensor, allowed);
}

void check_dtype(const char* op, const char* name, at::TensorList tensors, uint64_t allowed) {
  for (const auto& tensor : tensors) check_dtype(op, name, tensor, allowed);
}

void check_dtype(const char* op, const char* name, const std::optional<at::TensorList>& tensors,
                 uint64_t allowed) {
  if (tensors.has_value()) check_dtype(op, name, *tensors, allowed);
}

}  // namespace torch_npu
