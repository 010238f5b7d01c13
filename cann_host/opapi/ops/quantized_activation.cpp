// Activations with quantization behind them, quantization by groups and into caches.
#include "cann_host/opapi/groups.h"
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr int64_t kAclInt8 = 2;  // aclDataType
constexpr float kMost = 127;     // of int8

/// By a factor of each row: 127 over its largest magnitude. Returns the factors [rows, 1].
at::Tensor quantize_by_factors(const at::Tensor& rows, const at::Tensor& out) {
  const auto largest = rows.abs().amax(-1, true), factors = kMost / largest;
  store_rounded((rows * factors).masked_fill(largest.eq(0), 0), at::kChar, out);
  return factors;
}

}  // namespace

void SwiGluQuantV2(const at::Tensor& x, const Optional& smoothScalesOptional, const Optional& offsetsOptional,
                   const Optional& groupIndexOptional, bool activateLeft, std::string_view quantMode,
                   int64_t groupListType, int64_t dstType, at::Tensor& yOut, at::Tensor& scaleOut) {
  TORCH_CHECK(quantMode == "static" || quantMode == "dynamic", "quantMode is '", quantMode,
              "'; known: static, dynamic");
  TORCH_CHECK(dstType == kAclInt8, "dstType is ", dstType, "; cann_host has 2 (int8)");
  const auto halves = x.to(at::kFloat).flatten(0, -2).chunk(2, -1);
  const auto values = at::silu(halves[activateLeft ? 0 : 1]) * halves[activateLeft ? 1 : 0];
  int64_t rows = values.size(0);
  at::Tensor group;  // of each row; rows of none come out as zeros
  if (groupIndexOptional.has_value()) {
    const auto groups = groups_of(*groupIndexOptional, groupListType);
    const int64_t end = groups.empty() ? 0 : groups.back().end;
    TORCH_CHECK(end <= rows, "groupIndex ends at ", end, " of ", rows, " rows");
    rows = end;
    group = group_of_rows(*groupIndexOptional, groupListType, rows);
  }
  // [groups, H] or a number a group; without groups the first row, or numbers for all.
  const auto of_rows = [&](const at::Tensor& t) {
    const auto matrix = t.dim() == 1 && group.defined() ? t.unsqueeze(1) : t;
    if (group.defined()) return matrix.index_select(0, group);
    return matrix.dim() == 2 ? matrix[0] : matrix;
  };
  auto kept = values.narrow(0, 0, rows);
  if (smoothScalesOptional.has_value()) kept = kept * of_rows(*smoothScalesOptional);
  const auto out = yOut.flatten(0, -2), scales = scaleOut.view({-1, 1});
  out.slice(0, rows).zero_();
  scales.zero_();
  if (quantMode == "dynamic") {
    scales.narrow(0, 0, rows).copy_(quantize_by_factors(kept, out.narrow(0, 0, rows)));
    return;
  }
  if (offsetsOptional.has_value()) kept = kept + of_rows(*offsetsOptional);
  store_rounded(kept, at::kChar, out.narrow(0, 0, rows));
}

void GeluQuant(const at::Tensor& self, const Optional& inputScaleOptional,
               const Optional& inputOffsetOptional, std::string_view approximate, std::string_view quantMode,
               std::string_view roundMode, int64_t dstType, at::Tensor& y, const Optional& outScaleOptional) {
  TORCH_CHECK(quantMode == "static" || quantMode == "dynamic", "quantMode is '", quantMode,
              "'; known: static, dynamic");
  TORCH_CHECK(dstType == kAclInt8 && roundMode == "rint", "dstType is ", dstType, ", roundMode '", roundMode,
              "'; cann_host has 2 (int8) and rint");
  auto values = at::gelu(self.to(at::kFloat), std::string(approximate));
  if (inputScaleOptional.has_value()) values = values * inputScaleOptional->to(at::kFloat);
  if (quantMode == "static") {
    TORCH_CHECK(inputScaleOptional.has_value(), "quantMode static needs inputScale");
    if (inputOffsetOptional.has_value()) values = values + inputOffsetOptional->to(at::kFloat);
    store_rounded(values, at::kChar, y);
    return;
  }
  TORCH_CHECK(outScaleOptional.has_value(), "quantMode dynamic needs outScale");
  const auto rows = values.reshape({-1, values.size(-1)});
  auto scales = at::empty({rows.size(0)}, at::kFloat), numbers = at::empty(rows.sizes(), at::kChar);
  quantize_rows(rows, numbers, scales);
  y.copy_(numbers.view(y.sizes()));
  outScaleOptional->copy_(scales.view(outScaleOptional->sizes()));
}

void ClippedSwiglu(const at::Tensor& x, const Optional& groupIndexOptional, int64_t dim, double alpha,
                   double limit, double bias, bool interleaved, at::Tensor& out) {
  const int64_t axis = at::maybe_wrap_dim(dim, x.dim());
  const int64_t rows = c10::multiply_integers(x.sizes().slice(0, axis));
  const int64_t columns = c10::multiply_integers(x.sizes().slice(axis));
  const int64_t kept =
      groupIndexOptional.has_value() ? std::min(rows, groupIndexOptional->sum().item<int64_t>()) : rows;
  const auto values = x.reshape({rows, columns}).narrow(0, 0, kept).to(at::kFloat);
  const auto halves = values.chunk(2, -1);
  const auto gate = interleaved ? values.slice(-1, 0, std::nullopt, 2) : halves[0];
  const auto linear = interleaved ? values.slice(-1, 1, std::nullopt, 2) : halves[1];
  const auto low = gate.clamp_max(limit);
  auto result = at::zeros({rows, columns / 2});
  result.narrow(0, 0, kept).copy_(low * (low * alpha).sigmoid() * (linear.clamp(-limit, limit) + bias));
  out.copy_(result.view(out.sizes()));
}

void GroupQuant(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& groupIndex,
                const Optional& offsetOptional, at::ScalarType, at::Tensor& y) {
  const auto groups = groups_of(groupIndex, 0);
  TORCH_CHECK((groups.empty() ? 0 : groups.back().end) == x.size(0), "groupIndex ends at ",
              groups.empty() ? 0 : groups.back().end, "; x has ", x.size(0), " rows");
  auto values =
      x.to(at::kFloat) * scale.to(at::kFloat).index_select(0, group_of_rows(groupIndex, 0, x.size(0)));
  if (offsetOptional.has_value()) values = values + offsetOptional->to(at::kFloat);
  store_rounded(values, at::kChar, y);
}

void InplaceQuantScatter(at::Tensor& selfRef, const at::Tensor& indices, const at::Tensor& updates,
                         const at::Tensor& quantScales, const Optional& quantZeroPointsOptional, int64_t axis,
                         int64_t quantAxis, int64_t reduction) {
  TORCH_CHECK(reduction == 1 && (quantAxis == -1 || quantAxis == updates.dim() - 1), "reduction is ",
              reduction, ", quantAxis ", quantAxis, "; CANN has 1 (update) and the last dimension");
  auto values = updates.to(at::kFloat) / quantScales.to(at::kFloat).flatten();
  if (quantZeroPointsOptional.has_value())
    values = values + quantZeroPointsOptional->to(at::kFloat).flatten();
  const auto numbers = at::empty(values.sizes(), at::kChar);
  store_rounded(values, at::kChar, numbers);
  const auto starts = indices.to(at::kLong).contiguous();
  for (int64_t i = 0; i < updates.size(0); ++i) {
    selfRef[i]
        .narrow(at::maybe_wrap_dim(axis, updates.dim()) - 1, starts.const_data_ptr<int64_t>()[i],
                updates.size(axis))
        .copy_(numbers[i]);
  }
}

}  // namespace cann_host::host
