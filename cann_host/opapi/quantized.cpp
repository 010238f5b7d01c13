#include "cann_host/opapi/quantized.h"

#include <limits>

namespace cann_host {
namespace {

constexpr int64_t kInt4InInt32 = 8;

/// The int4 numbers of int32s, as int8.
at::Tensor unpacked(const at::Tensor& numbers) {
  const auto nibbles =
      numbers.unsqueeze(-1).bitwise_right_shift(at::arange(0, 32, 4, at::kInt)).bitwise_and(15).flatten(-2);
  return nibbles.where(nibbles.lt(8), nibbles - 16).to(at::kChar);
}

}  // namespace

at::Tensor packed_int4(const at::Tensor& numbers) {
  TORCH_CHECK(numbers.size(-1) % kInt4InInt32 == 0,
              "int4 needs a last dimension that is a multiple of 8; it is ", numbers.size(-1));
  const auto nibbles = numbers.to(at::kLong).bitwise_and(15).unflatten(-1, {-1, kInt4InInt32});
  const auto shifted = nibbles.bitwise_left_shift(at::arange(0, 32, 4, at::kLong)).sum(-1);
  return shifted.where(shifted.lt(int64_t{1} << 31), shifted - (int64_t{1} << 32)).to(at::kInt);
}

at::Tensor as_int8(const at::Tensor& numbers) {
  if (numbers.scalar_type() != at::kInt) return numbers;
  const bool transposed = numbers.dim() >= 2 && numbers.stride(-2) == 1 && numbers.stride(-1) != 1;
  return transposed ? unpacked(numbers.transpose(-1, -2)).transpose(-1, -2) : unpacked(numbers);
}

void store_rounded(const at::Tensor& values, at::ScalarType dtype, const at::Tensor& out) {
  if (out.scalar_type() == at::kInt && dtype != at::kInt) {  // int4
    out.copy_(packed_int4(values.round().clamp(-8, 7)));
    return;
  }
  const auto rounded = values.round();
  switch (out.scalar_type()) {
    case at::kChar:
      out.copy_(rounded.clamp(-128, 127));
      break;
    case at::kByte:
      out.copy_(rounded.clamp(0, 255));
      break;
    default:
      out.copy_(rounded.to(at::kDouble).clamp(-2147483648.0, 2147483647.0));
  }
}

void quantize_rows(const at::Tensor& values, const at::Tensor& out, const at::Tensor& scales) {
  const auto scale = values.abs().amax(-1, true) / 127;
  store_rounded(values / scale.clamp_min(std::numeric_limits<float>::min()), at::kChar, out);
  scales.copy_(scale.view(scales.sizes()));
}

}  // namespace cann_host
