#include "torch_npu/csrc/dispatch/host_dtypes.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace torch_npu {
namespace {

constexpr std::array<HostDtypes, 19> kTable = {{
    {"aten::put_", "index", false},
    {"aten::take", "index", false},
    {"aten::index_copy", "index", false},
    {"aten::index_copy_", "index", false},
    {"aten::index_fill_", "index", false},
    {"aten::multi_margin_loss", "target", true},
    {"aten::multi_margin_loss_backward", "target", true},
    {"aten::multilabel_margin_loss_forward", "target", true},
    {"aten::multilabel_margin_loss_backward", "target", true},
    {"aten::rrelu_with_noise", "", true},
    {"aten::_pdist_forward", "", true},
    {"aten::_pdist_backward", "", true},
    {"aten::linalg_inv_ex", "", true},
    {"aten::_embedding_bag_backward", "", true},
    {"aten::index_reduce", "", true},
    {"aten::index_reduce_", "", true},
    {"aten::segment_reduce", "", true},
    {"aten::slow_conv_transpose2d", "", true},
    {"aten::slow_conv_transpose3d", "", true},
}};

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

/// An argument that the operator writes, which the converted one stood for.
struct Written {
  at::Tensor given;
  at::Tensor converted;
};

}  // namespace

const HostDtypes* host_dtypes(const c10::OperatorHandle& op) {
  const auto* line = std::find_if(kTable.begin(), kTable.end(),
                                  [&](const HostDtypes& line) { return line.op == op.schema().name(); });
  return line == kTable.end() ? nullptr : line;
}

bool call_converted(const HostDtypes& dtypes, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<Written> written;
  bool any = false;
  auto half = at::ScalarType::Undefined;  // what results become again
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor given = value.toTensor();
    const bool is_index = arguments[i].name() == dtypes.index && given.scalar_type() == at::kInt;
    const bool widens = dtypes.widens_halves && is_half(given.scalar_type());
    if (!is_index && !widens) continue;
    any = true;
    if (widens) half = given.scalar_type();
    at::Tensor converted = given.to(is_index ? at::kLong : at::kFloat);
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back({given, converted});
    value = std::move(converted);
  }
  if (!any) return false;

  op.callBoxed(stack);
  for (const Written& argument : written) {
    argument.given.resize_(argument.converted.sizes());
    argument.given.copy_(argument.converted);
  }
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor()) continue;
    const auto same = std::find_if(written.begin(), written.end(), [&](const Written& argument) {
      return argument.converted.is_same(value.toTensor());
    });
    if (same != written.end()) {
      value = same->given;
    } else if (half != at::ScalarType::Undefined && value.toTensor().scalar_type() == at::kFloat) {
      value = value.toTensor().to(half);
    }
  }
  return true;
}

}  // namespace torch_npu
