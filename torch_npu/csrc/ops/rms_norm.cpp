// torch.nn.functional.rms_norm in eager mode is npu_rms_norm, where that takes the arguments; PyTorch
// composes it.
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <torch/library.h>

#include <limits>

#include "adapter/npu_calls.h"
#include "torch_npu/csrc/dispatch/npu_operator.h"
#include "torch_npu/csrc/dispatch/rules.h"
#include "torch_npu/csrc/dispatch/unfused.h"
#include "torch_npu/csrc/ops/nn_sizes.h"

namespace torch_npu::ops {
namespace {

/// PyTorch's epsilon where none is given.
double epsilon_of(at::ScalarType dtype) {
  if (dtype == at::kHalf) return std::numeric_limits<at::Half>::epsilon();
  return dtype == at::kBFloat16 ? static_cast<double>(std::numeric_limits<at::BFloat16>::epsilon())
                                : std::numeric_limits<float>::epsilon();
}

/// Why npu_rms_norm does not take the arguments; null where it does.
const char* why_unfused(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                        const std::optional<at::Tensor>& weight) {
  if (!given(weight)) return "weight must be given";
  if (!input.is_privateuseone() || !weight->is_privateuseone()) return "both tensors must be on the device";
  if (!takes(kHalfAndFloat, input)) return "input must be float16, bfloat16 or float32";
  if (!same_dtype(*weight, input)) return "weight must have input's dtype";
  const bool shapes_fit = weight->sym_sizes() == normalized_shape && weight->dim() <= input.dim() &&
                          input.sym_sizes().slice(input.dim() - weight->dim()) == normalized_shape;
  if (!shapes_fit) return "weight must have the shape of input's last dimensions";
  return input.numel() == 0 ? "input must not be empty" : nullptr;
}

bool fits(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
          const std::optional<at::Tensor>& weight) {
  // Compilers trace the composition, which they fuse with its neighbours.
  if (input.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) return false;
  const char* reason = why_unfused(input, normalized_shape, weight);
  if (reason != nullptr) note_unfused("rms_norm", reason);
  return reason == nullptr;
}

/// As PyTorch's own rms_norm, which libtorch does not export.
at::Tensor composed(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  at::native::_check_rms_norm_inputs_symint(input, normalized_shape, weight.value_or(at::Tensor()));
  return std::get<0>(at::_fused_rms_norm(input, C10_AS_INTARRAYREF_SLOW(normalized_shape), weight, eps));
}

at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  if (!fits(input, normalized_shape, weight)) return composed(input, normalized_shape, weight, eps);
  return std::get<0>(call::npu_rms_norm(input, *weight, eps.value_or(epsilon_of(input.scalar_type()))));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("rms_norm", TORCH_FN(rms_norm)); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("rms_norm", TORCH_FN(rms_norm)); }

}  // namespace torch_npu::ops
