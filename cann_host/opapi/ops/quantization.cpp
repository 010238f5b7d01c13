// Quantization and products of quantized matrices.
#include "cann_host/kernels/matvec.h"
#include "cann_host/opapi/fused.h"
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr int64_t kAclInt8 = 2;  // aclDataType

/// What TransQuantParamV2 makes: the upper 19 bits of a float32 scale, an offset above it, and a mark.
constexpr int64_t kScale = 0xffffe000, kNineBits = 511, kPlaceOfOffset = 37, kMark = int64_t{1} << 46;

/// The offset in what TransQuantParamV2 made.
at::Tensor offset_of_scale(const at::Tensor& scale) {
  const auto bits = scale.bitwise_right_shift(kPlaceOfOffset).bitwise_and(kNineBits);
  return at::where(bits.gt(kNineBits / 2), bits - (kNineBits + 1), bits);
}

/// One number an element of dimension `axis`, to be combined with a tensor of that rank.
at::Tensor along(const at::Tensor& values, const at::Tensor& x, int64_t axis) {
  if (values.numel() == 1) return values.reshape(at::IntArrayRef());
  std::vector<int64_t> sizes(x.dim(), 1);
  const int64_t d = axis < 0 ? axis + x.dim() : axis;
  sizes[d] = values.numel();
  return values.reshape(sizes);
}

/// y = x @ ((weight + offset) * scale) for few rows and a transposed int8 weight; false where that does not
/// fit.
bool multiply_int8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale,
                   const Optional& offset, const at::Tensor& y) {
  const int64_t inner = x.size(-1), rows = inner == 0 ? 0 : x.numel() / inner;
  if (rows == 0 || rows > kernels::most_matvec_rows || weight.scalar_type() != at::kChar ||
      weight.dim() != 2 || weight.stride(0) != 1 || weight.stride(1) < inner || inner < 2 ||
      !x.is_contiguous() || !y.is_contiguous()) {
    return false;
  }
  const auto of_columns = [&](const at::Tensor& t) {
    return t.to(at::kFloat).reshape({-1}).expand({weight.size(1)}).contiguous();
  };
  const at::Tensor scales = of_columns(scale),
                   offsets = offset.has_value() ? of_columns(*offset) : at::Tensor();
  return kernels::matvec({kernel_type(x), kernels::DataType::int8, x.const_data_ptr(),
                          weight.const_data_ptr(), nullptr, scales.const_data_ptr<float>(),
                          static_cast<const float*>(data_or_null(offsets)), y.mutable_data_ptr(), rows,
                          weight.size(1), inner, weight.stride(1)});
}

/// act(x) * y for the halves x, y (mode 0: silu; 2: clamped, x sigmoid(alpha x), y + bias) or, in mode 1, for
/// even and odd columns as in mode 2.
at::Tensor gated_linear_unit(const at::Tensor& values, int64_t mode, bool left, double limit, double alpha,
                             double bias) {
  TORCH_CHECK(0 <= mode && mode <= 2, "swigluMode is ", mode, "; known: 0, 1, 2");
  at::Tensor gate, linear;
  if (mode == 1) {
    gate = values.slice(-1, 0, std::nullopt, 2);
    linear = values.slice(-1, 1, std::nullopt, 2);
  } else {
    const auto halves = values.chunk(2, -1);
    gate = halves[left ? 0 : 1];
    linear = halves[left ? 1 : 0];
  }
  if (mode == 0) return at::silu(gate) * linear;
  const auto low = gate.clamp_max(limit);
  return low * (low * alpha).sigmoid() * (linear.clamp(-limit, limit) + bias);
}

}  // namespace

void Quantize(const at::Tensor& x, const at::Tensor& scales, const Optional& zeroPoints, at::ScalarType dtype,
              int64_t axis, at::Tensor& out) {
  auto values = (x.to(at::kFloat) / along(scales.to(at::kFloat), x, axis)).round_();
  if (zeroPoints.has_value()) values = values + along(zeroPoints->to(at::kFloat), x, axis);
  store_rounded(values, dtype, out);
}

void AscendQuantV3(const at::Tensor& x, const at::Tensor& scale, const Optional& offset, bool sqrtMode,
                   std::string_view, at::ScalarType dstType, int64_t axis, at::Tensor& y) {
  auto factor = scale.to(at::kFloat);
  if (sqrtMode) factor = factor.square();
  auto values = x.to(at::kFloat) * along(factor, x, axis);
  if (offset.has_value()) values = values + along(offset->to(at::kFloat), x, axis);
  store_rounded(values, y.scalar_type() == at::kInt ? at::kChar : dstType, y);
}

void AscendAntiQuant(const at::Tensor& x, const at::Tensor& scale, const Optional& offset, at::ScalarType,
                     bool sqrtMode, at::Tensor& y) {
  auto values = as_int8(x).to(at::kFloat);
  if (offset.has_value()) values = values + offset->to(at::kFloat);
  auto factor = scale.to(at::kFloat);
  if (sqrtMode) factor = factor.square();
  y.copy_(values * factor);
}

void DynamicQuantV3(const at::Tensor& x, const Optional& smoothScales, const Optional& groupIndex,
                    at::ScalarType, bool isSymmetrical, std::string_view quantMode, at::Tensor& yOut,
                    at::Tensor& scaleOut, const Optional& offsetOut) {
  TORCH_CHECK(quantMode == "pertoken" || quantMode == "pertensor", "quantMode is '", quantMode,
              "'; cann_host has pertoken and pertensor");
  auto values = x.to(at::kFloat);
  if (smoothScales.has_value()) {
    auto factors = smoothScales->to(at::kFloat);
    if (groupIndex.has_value()) {  // where each group of rows ends
      const auto rows = at::arange(values.numel() / values.size(-1), groupIndex->options());
      const auto group = at::searchsorted(groupIndex->contiguous(), rows, false, /*right=*/true);
      factors = factors.index_select(0, group.clamp_max_(factors.size(0) - 1)).view(values.sizes());
    }
    values = values * factors;
  }
  const bool int4 = yOut.scalar_type() == at::kInt;
  const double low = int4 ? -8 : -128, high = int4 ? 7 : 127;
  const bool whole = quantMode == "pertensor";
  const auto rows = whole ? values.flatten() : values;
  at::Tensor scale, offset;
  if (isSymmetrical) {
    scale = rows.abs().amax(-1, true) / high;
  } else {
    const auto largest = rows.amax(-1, true), smallest = rows.amin(-1, true);
    scale = (largest - smallest) / (high - low);
    offset = high - largest / scale;
  }
  auto quantized = values / scale.clamp_min(std::numeric_limits<float>::min());
  if (offset.defined()) quantized = quantized + offset;
  store_rounded(quantized.clamp_(low, high), at::kChar, yOut);
  scaleOut.copy_(scale.view(scaleOut.sizes()));
  if (offset.defined() && offsetOut.has_value()) offsetOut->copy_(offset.view(offsetOut->sizes()));
}

void TransQuantParamV2(const at::Tensor& scale, const Optional& offset, at::Tensor& out) {
  auto bits = scale.contiguous().view(at::kInt).to(at::kLong).bitwise_and(kScale).bitwise_or(kMark);
  if (offset.has_value()) {
    const auto rounded = offset->round().clamp(-256, 255).to(at::kLong).bitwise_and(kNineBits);
    bits = bits.bitwise_or(rounded.bitwise_left_shift(kPlaceOfOffset));
  }
  out.copy_(bits.numel() == out.numel() ? bits.view(out.sizes()) : bits);
}

namespace {

/// a ((b - offset) * scale), with a row of offset and scale [k / group, n] for so many rows of b. groupSize:
/// what a group has of m, n and k, in 16 bits each from the 33rd one down.
at::Tensor product_in_groups(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale,
                             const Optional& offset, int64_t groupSize) {
  const int64_t group = groupSize & 0xffff, rows = groupSize >> 32, columns = groupSize >> 16 & 0xffff;
  const int64_t inner = b.size(-2);
  TORCH_CHECK(group > 0 && rows <= 1 && columns <= 1 && scale.dim() == 2 &&
                  scale.size(0) == (inner + group - 1) / group,
              "groups of ", rows, ", ", columns, " and ", group, " of m, n and k = ", inner, " with a scale ",
              scale.sizes(), "; cann_host takes [1, 1, g] and [0, 0, g] with a scale [k / g, n]");
  const auto of_rows = [&](const at::Tensor& t) {
    return t.to(at::kFloat).repeat_interleave(group, 0).slice(0, 0, inner);
  };
  auto values = b.to(at::kFloat);
  if (offset.has_value()) values = values - of_rows(*offset);
  return at::matmul(a.to(at::kFloat), values * of_rows(scale));
}

}  // namespace

void QuantMatmulV5(const at::Tensor& x1, const at::Tensor& x2, const Optional& x1Scale,
                   const at::Tensor& x2Scale, const Optional& yScale, const Optional& x1Offset,
                   const Optional& x2Offset, const Optional& yOffset, const Optional& bias, bool transposeX1,
                   bool transposeX2, int64_t groupSize, at::Tensor& out) {
  TORCH_CHECK(!yScale.has_value() && !x1Offset.has_value(), "yScale and x1Offset are not in cann_host");
  auto a = as_int8(x1), b = as_int8(x2);
  if (transposeX1) a = a.transpose(-1, -2);
  if (transposeX2) b = b.transpose(-1, -2);
  const auto of_rows = [&](const at::Tensor& scale) {
    const auto wide = scale.to(at::kFloat);
    return wide.dim() == 1 ? wide.unsqueeze(-1) : wide;
  };
  if (groupSize != 0) {
    TORCH_CHECK(x1Scale.has_value() && !bias.has_value(), "groups need x1Scale, and take no bias");
    if (x1.scalar_type() == at::kChar) {
      TORCH_CHECK(x2Offset.has_value(), "groups of int8 by int4 need x2Offset");
      // CANN multiplies x1 / 16 and the rest less 8; x2Offset makes up for the 8.
      const auto product =
          product_in_groups(a.to(at::kFloat) - 8, b, plain_scale(x2Scale), std::nullopt, groupSize);
      out.copy_((product + x2Offset->to(at::kFloat)) * of_rows(*x1Scale));
      return;
    }
    out.copy_(product_in_groups(a, b, x2Scale, x2Offset, groupSize) * of_rows(*x1Scale));
    return;
  }
  auto product = int_product(a, b);
  const bool integer_bias = bias.has_value() && bias->scalar_type() == at::kInt;
  if (integer_bias) product = product + *bias;
  if (out.scalar_type() == at::kInt) {
    out.copy_(product);
    return;
  }
  auto result = product.to(at::kFloat) * plain_scale(x2Scale);
  if (x1Scale.has_value()) result = result * of_rows(*x1Scale);
  if (bias.has_value() && !integer_bias) result = result + bias->to(at::kFloat);
  for (const auto* offset : {&x2Offset, &yOffset}) {
    if (offset->has_value() && (*offset)->numel() > 0) result = result + **offset;
  }
  if (out.scalar_type() == at::kChar) {
    store_rounded(result, at::kChar, out);
  } else {
    out.copy_(result);
  }
}

void WeightQuantBatchMatmulV3(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& antiquantScale,
                              const Optional& antiquantOffset, const Optional& quantScale,
                              const Optional& quantOffset, const Optional& bias, int64_t antiquantGroupSize,
                              int64_t, at::Tensor& y) {
  TORCH_CHECK(quantScale.has_value() || !quantOffset.has_value(), "quantOffset needs quantScale");
  if (antiquantGroupSize == 0 && !quantScale.has_value() &&
      multiply_int8(x, weight, antiquantScale, antiquantOffset, y)) {
    if (bias.has_value()) y.add_(*bias);
    return;
  }
  auto values = as_int8(weight).to(at::kFloat);
  const auto per_element = [&](const at::Tensor& t) {
    auto wide = t.to(at::kFloat);
    if (antiquantGroupSize > 0) {  // one row for each group of the inner dimension
      wide = wide.repeat_interleave(antiquantGroupSize, -2).slice(-2, 0, values.size(-2));
    }
    return wide;
  };
  if (antiquantOffset.has_value()) values = values + per_element(*antiquantOffset);
  values = values * per_element(antiquantScale);
  auto result = at::matmul(x.to(at::kFloat), values);
  if (bias.has_value()) result = result + *bias;
  if (!quantScale.has_value()) {
    y.copy_(result);
    return;
  }
  result = result * plain_scale(*quantScale);
  if (quantScale->scalar_type() == at::kLong) {
    result = result + offset_of_scale(*quantScale);
  } else if (quantOffset.has_value()) {
    result = result + *quantOffset;
  }
  store_rounded(result, at::kChar, y);
}

void ConvertWeightToINT4Pack(const at::Tensor& weight, at::Tensor& weightInt4Pack) {
  weightInt4Pack.copy_(packed_int4(weight));
}

void DequantSwigluQuantV2(const at::Tensor& x, const Optional& weightScale, const Optional& activationScale,
                          const Optional& bias, const Optional& quantScale, const Optional& quantOffset,
                          const Optional& groupIndex, bool activateLeft, std::string_view quantMode,
                          int64_t dstType, std::string_view roundMode, int64_t activateDim,
                          int64_t swigluMode, double clampLimit, double gluAlpha, double gluBias,
                          at::Tensor& y, at::Tensor& scale) {
  TORCH_CHECK(dstType == kAclInt8 && roundMode == "rint" && (activateDim == -1 || activateDim == x.dim() - 1),
              "dstType is ", dstType, ", roundMode ", roundMode, ", activateDim ", activateDim,
              "; cann_host has 2 (int8), rint and the last dimension");
  const int64_t rows = groupIndex.has_value() ? groupIndex->sum().item<int64_t>() : x.size(0);
  TORCH_CHECK(rows <= x.size(0), "groupIndex counts ", rows, " rows; x has ", x.size(0));
  // The group of each row; rows of no group come out as zeros.
  const auto group = groupIndex.has_value() ? at::repeat_interleave(*groupIndex) : at::Tensor();
  const auto of_rows = [&](const at::Tensor& t) {
    return group.defined() && t.dim() > 1 && t.size(0) > 1 ? t.index_select(0, group) : t;
  };
  auto values = x.slice(0, 0, rows).to(at::kFloat);
  const bool integer_bias = bias.has_value() && bias->scalar_type() == at::kInt;
  if (integer_bias) values = values + of_rows(*bias);
  if (weightScale.has_value()) values = values * of_rows(*weightScale);
  if (activationScale.has_value()) values = values * activationScale->view({-1, 1}).slice(0, 0, rows);
  if (bias.has_value() && !integer_bias) values = values + bias->to(at::kFloat);
  auto gated = gated_linear_unit(values, swigluMode, activateLeft, clampLimit, gluAlpha, gluBias);
  const auto column = [&](const at::Tensor& t) {  // static scales may be one number a group
    return group.defined() && t.dim() == 1 ? t.index_select(0, group).unsqueeze(1) : of_rows(t);
  };
  y.slice(0, rows).zero_();
  scale.zero_();
  const auto target = y.slice(0, 0, rows);
  if (quantMode == "static") {
    TORCH_CHECK(quantScale.has_value(), "quantMode static needs quantScale");
    gated = gated / column(*quantScale);
    if (quantOffset.has_value()) gated = gated + column(*quantOffset);
    store_rounded(gated, at::kChar, target);
    return;
  }
  if (quantScale.has_value()) gated = gated * of_rows(*quantScale);
  quantize_rows(gated, target, scale.slice(0, 0, rows));
}

void FakeQuantPerTensorAffineCachemask(const at::Tensor& self, const at::Tensor& scale,
                                       const at::Tensor& zeroPoint, float fakeQuantEnabled, int64_t quantMin,
                                       int64_t quantMax, at::Tensor& out, at::Tensor& mask) {
  if (fakeQuantEnabled == 0) {
    out.copy_(self);
    mask.fill_(true);
    return;
  }
  const auto [values, inside] = at::fake_quantize_per_tensor_affine_cachemask(
      widened(self), scale.item<double>(), zeroPoint.item<int64_t>(), quantMin, quantMax);
  out.copy_(values);
  mask.copy_(inside);
}

void FakeQuantPerChannelAffineCachemask(const at::Tensor& self, const at::Tensor& scale,
                                        const at::Tensor& zeroPoint, int64_t axis, int64_t quantMin,
                                        int64_t quantMax, at::Tensor& out, at::Tensor& mask) {
  const auto [values, inside] = at::fake_quantize_per_channel_affine_cachemask(
      widened(self), scale, zeroPoint, at::maybe_wrap_dim(axis, self.dim()), quantMin, quantMax);
  out.copy_(values);
  mask.copy_(inside);
}

}  // namespace cann_host::host
