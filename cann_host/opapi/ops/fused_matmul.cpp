// Products with an activation or a further operand.
#include "cann_host/kernels/matvec.h"
#include "cann_host/opapi/fused.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// y = x x2 + bias by the kernel for few rows; false where it does not take them.
bool multiply_few_rows(const at::Tensor& x, const at::Tensor& x2, const Optional& bias, const at::Tensor& y) {
  const int64_t inner = x.size(-1), rows = inner == 0 ? 0 : x.numel() / inner;
  const auto fits = [&](const at::Tensor& t) {
    return t.is_contiguous() && t.scalar_type() == x.scalar_type();
  };
  if (rows == 0 || rows > kernels::most_matvec_rows || x2.dim() != 2 || x2.stride(0) != 1 ||
      x2.stride(1) < inner || inner < 2 || x2.scalar_type() != x.scalar_type() || !fits(x) || !fits(y) ||
      (bias.has_value() && !fits(*bias))) {
    return false;
  }
  return kernels::matvec({kernel_type(x), kernel_type(x), x.const_data_ptr(), x2.const_data_ptr(),
                          bias.has_value() ? bias->const_data_ptr() : nullptr, nullptr, nullptr,
                          y.mutable_data_ptr(), rows, x2.size(1), inner, x2.stride(1)});
}

}  // namespace

void FusedMatmul(const at::Tensor& x, const at::Tensor& x2, const Optional& bias, const Optional& x3,
                 std::string_view fusedOpType, int8_t, at::Tensor& y) {
  TORCH_CHECK(x3.has_value() == (fusedOpType == "add" || fusedOpType == "mul"),
              "x3 belongs to fusedOpType add and mul, and to no other; it is '", fusedOpType, "'");
  if (!multiply_few_rows(x, x2, bias, y)) {
    const Placement placement({y});
    assign(y, at::linear(exact(x), exact(x2).transpose(-1, -2),
                         bias.has_value() ? std::optional(exact(*bias)) : bias));
  }
  // The product is in the cache where that pays.
  if (fusedOpType == "relu") {
    at::relu_(y);
  } else if (fusedOpType == "gelu_erf" || fusedOpType == "gelu_tanh") {
    at::gelu_(y, fusedOpType == "gelu_erf" ? "none" : "tanh");
  } else if (fusedOpType == "add") {
    y.add_(*x3);
  } else if (fusedOpType == "mul") {
    y.mul_(*x3);
  } else {
    TORCH_CHECK(fusedOpType.empty(), "fusedOpType is '", fusedOpType,
                "'; known: relu, gelu_erf, gelu_tanh, add, mul");
  }
}

void TransposeBatchMatMul(const at::Tensor& x1, const at::Tensor& x2, const std::optional<at::Tensor>& bias,
                          const std::optional<at::Tensor>& scale, at::IntArrayRef permX1,
                          at::IntArrayRef permX2, at::IntArrayRef permY, int8_t, int32_t batchSplitFactor,
                          at::Tensor& out) {
  TORCH_CHECK(!bias.has_value() && !scale.has_value(), "bias and scale are not in cann_host");
  TORCH_CHECK(permY == at::IntArrayRef({1, 0, 2}), "permY is ", permY, "; CANN has [1, 0, 2]");
  const auto product = at::matmul(exact(x1.permute(permX1)), exact(x2.permute(permX2))).permute(permY);
  if (batchSplitFactor > 1) {
    out.copy_(product.reshape({product.size(0), batchSplitFactor, -1}).transpose(0, 1));
  } else {
    out.copy_(product);
  }
}

}  // namespace cann_host::host
