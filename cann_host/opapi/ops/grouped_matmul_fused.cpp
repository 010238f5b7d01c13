// Products of groups of rows, and what is done with them: gradients of weights added up, rows put back to
// their tokens, activation and quantization.
#include "cann_host/opapi/groups.h"
#include "cann_host/opapi/quantized.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// Rows of int8 (or int4, packed in int32) by a matrix of such numbers, times a scale a row and a scale a
/// column.
struct QuantizedRows {
  const at::Tensor &x, &scale;

  at::Tensor rows_of(const Group& group) const { return as_int8(x.narrow(0, group.begin, group.length())); }
  at::Tensor scales_of(const Group& group) const {
    return scale.narrow(0, group.begin, group.length()).to(at::kFloat).unsqueeze(1);
  }
  at::Tensor times(const Group& group, const at::Tensor& matrix, const at::Tensor& column_scale) const {
    return int_product(rows_of(group), matrix).to(at::kFloat) * column_scale.to(at::kFloat) *
           scales_of(group);
  }
};

/// The matrices of groups and what belongs to them.
struct QuantizedMatrices {
  const at::Tensor& weight;  // [G, K, N], or in blocks [G, N / c, K / 16, 16, c]; int32 holds packed int4
  const at::Tensor& scale;   // [G, N], or [G, parts of K, N]; int64 holds bits of float32
  const Optional& assist;    // [G, N], added to products of int8 rows by int4 matrices
  const Optional& smooth;    // [G, N / 2] or [G], a factor after the activation

  /// [K, N] in int8.
  at::Tensor matrix(int64_t group) const {
    if (weight.dim() == 3) return as_int8(weight[group]);
    return as_int8(weight[group].permute({1, 2, 0, 3}).flatten(2).flatten(0, 1));
  }
};

/// CANN multiplies int8 by int4 as two products of int4, of x / 16 and of the rest less 8, so that what it
/// adds up is the product of x - 8. The assistant matrix makes up for the 8.
constexpr int64_t kLessInInt4 = 8;

at::Tensor product_of(const QuantizedRows& rows, const QuantizedMatrices& matrices, const Group& group) {
  const auto x = rows.rows_of(group), matrix = matrices.matrix(group.number);
  const auto scale = plain_scale(matrices.scale[group.number]).view({-1, matrix.size(1)});
  const int64_t parts = scale.size(0), inner = matrix.size(0) / parts;
  TORCH_CHECK(parts * inner == x.size(1), "x has ", x.size(1), " columns, weight ", matrix.size(0),
              " rows, weightScale ", parts, " parts; the parts must divide the rows and columns");
  const bool mixed = rows.x.scalar_type() == at::kChar && matrices.weight.scalar_type() == at::kInt;
  at::Tensor sum = at::zeros({x.size(0), matrix.size(1)}, at::kFloat);
  for (int64_t part = 0; part < parts; ++part) {
    const auto block = matrix.narrow(0, part * inner, inner);
    auto product = int_product(x.narrow(1, part * inner, inner), block);
    if (mixed) product = product - block.sum(0, false, at::kInt) * kLessInInt4;
    sum += product.to(at::kFloat) * scale[part];
  }
  if (mixed) {
    TORCH_CHECK(matrices.assist.has_value(), "int4 weights of int8 rows need their assistant matrix");
    sum += (*matrices.assist)[group.number];
  }
  return sum * rows.scales_of(group);
}

void check_groups(const std::vector<Group>& groups, int64_t weights, int64_t rows) {
  TORCH_CHECK(static_cast<int64_t>(groups.size()) == weights, "groupList has ", groups.size(),
              " numbers for ", weights, " weights");
  TORCH_CHECK(groups.empty() || groups.back().end <= rows, "groupList ends at ", groups.back().end, " of ",
              rows, " rows");
}

/// silu(a) * b of the halves of a product, quantized; rows of no group come out as zeros.
void swiglu_quantized(const QuantizedRows& rows, const QuantizedMatrices& matrices,
                      const std::vector<Group>& groups, const at::Tensor& out, const at::Tensor& out_scale) {
  check_groups(groups, matrices.weight.size(0), rows.x.size(0));
  out.zero_();
  out_scale.zero_();
  for (const auto& group : groups) {
    if (group.length() == 0) continue;
    const auto halves = product_of(rows, matrices, group).chunk(2, -1);
    auto values = at::silu(halves[0]) * halves[1];
    if (matrices.smooth.has_value()) values = values * (*matrices.smooth)[group.number];
    quantize_rows(values, out.narrow(0, group.begin, group.length()),
                  out_scale.narrow(0, group.begin, group.length()));
  }
}

}  // namespace

void GroupedMatmulAddV2(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& groupList,
                        at::Tensor& yRef, bool transposeX, bool transposeWeight, int64_t groupType,
                        int64_t groupListType) {
  TORCH_CHECK(transposeX && !transposeWeight && groupType == 2, "transposeX is ", transposeX,
              ", transposeWeight ", transposeWeight, ", groupType ", groupType,
              "; CANN has true, false and 2 (groups of the inner dimension)");
  TORCH_CHECK(x.size(0) == weight.size(0), "x has ", x.size(0), " rows, weight ", weight.size(0));
  const auto groups = groups_of(groupList, groupListType);
  check_groups(groups, groupList.size(0), x.size(0));
  const auto sums = yRef.view({groupList.size(0), x.size(1), weight.size(1)});
  for (const auto& group : groups) {
    const auto part = [&](const at::Tensor& t) {
      return t.narrow(0, group.begin, group.length()).to(at::kFloat);
    };
    sums[group.number].addmm_(part(x).t(), part(weight));
  }
}

void GroupedMatmulFinalizeRoutingV3(const at::Tensor& x, const at::Tensor& w, const Optional& scaleOptional,
                                    const Optional& biasOptional, const Optional& offsetOptional,
                                    const Optional& antiquantScaleOptional,
                                    const Optional& antiquantOffsetOptional,
                                    const Optional& pertokenScaleOptional, const at::Tensor& groupList,
                                    const Optional& sharedInputOptional, const Optional& logitOptional,
                                    const Optional& rowIndexOptional, int64_t, float sharedInputWeight,
                                    int64_t sharedInputOffset, bool transposeX, bool transposeW,
                                    int64_t groupListType, at::OptionalIntArrayRef, at::Tensor& out) {
  TORCH_CHECK(!biasOptional.has_value() && !offsetOptional.has_value() &&
                  !antiquantScaleOptional.has_value() && !antiquantOffsetOptional.has_value() && !transposeX,
              "bias, offset, antiquantization and transposeX are not in cann_host");
  TORCH_CHECK(scaleOptional.has_value() && pertokenScaleOptional.has_value() && logitOptional.has_value() &&
                  rowIndexOptional.has_value(),
              "scale, pertokenScale, logit and rowIndex are needed");
  const auto groups = groups_of(groupList, groupListType);
  check_groups(groups, w.size(0), x.size(0));
  out.zero_();
  if (sharedInputOptional.has_value()) {
    out.narrow(0, sharedInputOffset, sharedInputOptional->size(0))
        .copy_(sharedInputOptional->to(at::kFloat) * sharedInputWeight);
  }
  const QuantizedRows rows{x, *pertokenScaleOptional};
  for (const auto& group : groups) {
    if (group.length() == 0) continue;
    const auto matrix = transposeW ? w[group.number].t() : w[group.number];
    const auto product = rows.times(group, matrix, (*scaleOptional)[group.number]);
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, group.begin, group.length()); };
    out.index_add_(0, part(*rowIndexOptional), product * part(*logitOptional).unsqueeze(1));
  }
}

void GroupedMatmulSwigluQuantWeightNZ(const at::Tensor& x, const at::Tensor& weight,
                                      const Optional& biasOptional, const Optional& offsetOptional,
                                      const at::Tensor& weightScale, const at::Tensor& xScale,
                                      const at::Tensor& groupList, at::Tensor& quantOutput,
                                      at::Tensor& quantScaleOutput, const Optional& quantOffsetOutput) {
  TORCH_CHECK(!offsetOptional.has_value(), "offset is not in CANN; pass a null pointer");
  swiglu_quantized({x, xScale}, {weight, weightScale, biasOptional, std::nullopt}, groups_of(groupList, 0),
                   quantOutput, quantScaleOutput);
  if (quantOffsetOutput.has_value()) quantOffsetOutput->zero_();
}

void GroupedMatmulSwigluQuantV2(const at::Tensor& x, const std::vector<at::Tensor>& weight,
                                const std::vector<at::Tensor>& weightScale,
                                const std::vector<at::Tensor>& weightAssistMatrixOptional,
                                const Optional& biasOptional, const at::Tensor& xScale,
                                const Optional& smoothScaleOptional, const at::Tensor& groupList,
                                int64_t dequantMode, int64_t dequantDtype, int64_t quantMode,
                                int64_t groupListType, at::OptionalIntArrayRef, at::Tensor& output,
                                at::Tensor& outputScale) {
  TORCH_CHECK(!biasOptional.has_value() && dequantMode <= 1 && dequantDtype == 0 && quantMode == 0,
              "bias, dequantMode ", dequantMode, ", dequantDtype ", dequantDtype, " or quantMode ", quantMode,
              " is not in cann_host: no bias, and the modes of int8 and int4 in float32 (0 and 1, 0, 0)");
  const auto& assist = weightAssistMatrixOptional;
  swiglu_quantized({x, xScale},
                   {weight[0], weightScale[0], assist.empty() ? Optional() : assist[0], smoothScaleOptional},
                   groups_of(groupList, groupListType), output, outputScale);
}

}  // namespace cann_host::host
