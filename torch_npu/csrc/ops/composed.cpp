#include "torch_npu/csrc/ops/composed.h"

#include <algorithm>
#include <vector>

#include "adapter/npu_calls.h"

namespace torch_npu {

std::tuple<at::Tensor, at::Tensor> rms_norm_gradients(const at::Tensor& dy, const at::Tensor& x,
                                                      const at::Tensor& gamma, const at::Tensor& rstd) {
  if (!at::GradMode::is_enabled()) return call::npu_rms_norm_backward(dy, x, gamma, rstd);
  std::vector<int64_t> rows, columns;
  for (int64_t d = 0; d < x.dim(); ++d) (d < x.dim() - gamma.dim() ? rows : columns).push_back(d);
  const at::Tensor wide = x.to(at::kFloat), wide_dy = dy.to(at::kFloat);
  const at::Tensor squares = wide.square().mean(columns, true);
  const at::Tensor epsilon = (rstd.pow(-2) - squares).detach();
  const at::Tensor factor = (squares + epsilon).rsqrt(), normed = wide * factor;
  const at::Tensor of_normed = wide_dy * gamma.to(at::kFloat);
  const at::Tensor dx = factor * (of_normed - normed * (of_normed * normed).mean(columns, true));
  const at::Tensor products = wide_dy * normed;
  const at::Tensor dgamma = rows.empty() ? products : products.sum(rows);
  return {dx.to(x.scalar_type()), dgamma.to(gamma.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad_y,
                                                                     const at::Tensor& grad_x,
                                                                     const at::Tensor& x,
                                                                     const at::Tensor& gamma,
                                                                     const at::Tensor& rstd) {
  auto [dx, dgamma] = rms_norm_gradients(grad_y, x, gamma, rstd);
  dx = dx + grad_x;
  return {dx, dx, dgamma};
}

at::Tensor slice_block(const at::Tensor& self, at::IntArrayRef offsets, at::IntArrayRef size) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(offsets.size()) == self.dim() && offsets.size() == size.size(),
                    "npu_slice: offsets and size must have a number for each dimension of self; got ",
                    offsets, " and ", size, " for ", self.sizes());
  at::Tensor block = self;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const int64_t length = size[d] == -1 ? self.size(d) - offsets[d] : size[d];
    block = block.narrow(d, offsets[d], length);
  }
  return block.contiguous();
}

std::tuple<at::Tensor, at::Tensor> top_k_top_p_sample(
    const at::Tensor& logits, const at::Tensor& top_k, const at::Tensor& top_p,
    const std::optional<at::Tensor>& q, double eps, bool is_need_logits, int64_t top_k_guess,
    const std::optional<at::Tensor>& min_ps, int64_t ks_max, bool input_is_logits,
    const std::optional<c10::string_view>& post_sample, const std::optional<at::Generator>& generator) {
  const bool draws = is_one_of(post_sample, "multiNomial");
  auto [selected, visible, classes, probabilities] = call::npu_top_k_top_p_candidates(
      logits, top_k, top_p, q, eps, is_need_logits, top_k_guess, min_ps, ks_max, input_is_logits, draws);
  if (draws) {
    const auto place = at::multinomial(probabilities, 1, /*replacement=*/true, generator);
    selected = classes.gather(1, place).flatten();
  }
  return {selected, visible};
}

bool quantized_dtype(int64_t dtype, bool divides) {
  const auto is = [dtype](std::initializer_list<at::ScalarType> types) {
    return std::any_of(types.begin(), types.end(), [&](auto t) { return static_cast<int64_t>(t) == dtype; });
  };
  if (!divides) return is({at::kChar, at::kQInt8, at::ScalarType::QUInt4x2});
  return is({at::kChar, at::kByte, at::kInt, at::kQInt8, at::kQUInt8, at::kQInt32});
}

at::ScalarType quantized_storage(int64_t dtype) {
  switch (static_cast<at::ScalarType>(dtype)) {
    case at::kQInt8:
      return at::kChar;
    case at::kQUInt8:
      return at::kByte;
    case at::kQInt32:
    case at::ScalarType::QUInt4x2:
      return at::kInt;
    default:
      return static_cast<at::ScalarType>(dtype);
  }
}

bool packs_columns(const at::Tensor& matrix) {
  return !(matrix.dim() >= 2 && matrix.stride(-2) == 1 && matrix.stride(-1) != 1);
}

namespace {

/// Corners and extents of boxes [4, N], each [N] (or [N, 1]).
struct Corners {
  at::Tensor x1, y1, x2, y2;

  Corners(const at::Tensor& boxes, bool by_centre) {
    const auto rows = boxes.unbind(0);
    if (by_centre) {
      x1 = rows[0] - rows[2] / 2;
      y1 = rows[1] - rows[3] / 2;
      x2 = rows[0] + rows[2] / 2;
      y2 = rows[1] + rows[3] / 2;
    } else {
      x1 = rows[0];
      y1 = rows[1];
      x2 = rows[2];
      y2 = rows[3];
    }
  }
  void make_columns() {
    for (auto* t : {&x1, &y1, &x2, &y2}) *t = t->unsqueeze(-1);
  }
  at::Tensor width() const { return x2 - x1; }
  at::Tensor height() const { return y2 - y1; }
};

}  // namespace

at::Tensor box_overlap(const at::Tensor& self, const at::Tensor& gtboxes, bool trans, bool is_cross,
                       int64_t mode, BoxPenalty penalty) {
  constexpr double epsilon = 1e-9;
  Corners a(self, trans), b(gtboxes, trans);
  // All pairs are [self, gtboxes] for giou, as Ascend's plug-in turns its result, and [gtboxes, self] for the
  // others.
  if (is_cross) (penalty == BoxPenalty::giou ? a : b).make_columns();
  const auto width = (at::minimum(a.x2, b.x2) - at::maximum(a.x1, b.x1)).clamp_min(0);
  const auto height = (at::minimum(a.y2, b.y2) - at::maximum(a.y1, b.y1)).clamp_min(0);
  const auto common = width * height;
  const auto area_b = b.width() * b.height();
  const auto whole = a.width() * a.height() + area_b - common;
  const auto iou = common / ((mode == 1 ? area_b : whole) + epsilon);
  const auto hull_width = at::maximum(a.x2, b.x2) - at::minimum(a.x1, b.x1);
  const auto hull_height = at::maximum(a.y2, b.y2) - at::minimum(a.y1, b.y1);
  at::Tensor result;
  if (penalty == BoxPenalty::giou) {
    const auto hull = hull_width * hull_height + epsilon;
    result = iou - (hull - whole) / hull;
  } else {
    const auto diagonal = hull_width.square() + hull_height.square() + epsilon;
    const auto dx = a.x1 + a.x2 - b.x1 - b.x2, dy = a.y1 + a.y2 - b.y1 - b.y2;
    result = iou - (dx.square() + dy.square()) / 4 / diagonal;
    if (penalty == BoxPenalty::ciou) {
      const auto angle = [](const Corners& c) { return at::atan(c.width() / (c.height() + epsilon)); };
      constexpr double four_over_pi_squared = 0.4052847345693511;
      const auto v = (angle(b) - angle(a)).square() * four_over_pi_squared;
      const auto share = (v / ((1 - iou) + v + epsilon)).detach();  // a weight, not differentiated
      result = result - share * v;
    }
  }
  // The operator for giou gives pairs as a column, the others as a row.
  return is_cross ? result : result.unsqueeze(penalty == BoxPenalty::giou ? 1 : 0);
}

namespace {

/// Which of boxes [N, 4] overlap by more than the threshold, [N, N].
at::Tensor overlapping(const at::Tensor& boxes, const at::Tensor& threshold) {
  const auto wide = boxes.to(at::kFloat);
  const auto low = at::minimum(wide.slice(1, 0, 2), wide.slice(1, 2, 4));
  const auto high = at::maximum(wide.slice(1, 0, 2), wide.slice(1, 2, 4));
  const auto area = (high - low).prod(1);
  const auto common =
      (at::minimum(high.unsqueeze(1), high.unsqueeze(0)) - at::maximum(low.unsqueeze(1), low.unsqueeze(0)))
          .clamp_min(0)
          .prod(2);
  const auto whole = area.unsqueeze(1) + area.unsqueeze(0) - common;
  return common.gt(whole * threshold.to(at::kFloat)).logical_and_(common.gt(0));
}

}  // namespace

void choose_boxes(const at::Tensor& boxes, const at::Tensor& scores, const at::Tensor& iou_threshold,
                  const at::Tensor& scores_threshold, const at::Tensor& selected, const at::Tensor& count) {
  const at::NoGradGuard without_gradient;
  const auto order = scores.argsort(/*stable=*/true, 0, /*descending=*/true);
  const auto close = overlapping(boxes.index_select(0, order), iou_threshold).to(at::kCPU);
  const auto usable = scores.gt(scores_threshold).index_select(0, order).to(at::kCPU);
  const auto numbers = order.to(at::kCPU);
  const int64_t boxes_count = boxes.size(0), most = selected.numel();
  std::vector<bool> dropped(boxes_count);
  std::vector<int32_t> kept;
  for (int64_t i = 0; i < boxes_count && static_cast<int64_t>(kept.size()) < most; ++i) {
    if (dropped[i] || !usable.const_data_ptr<bool>()[i]) continue;
    kept.push_back(static_cast<int32_t>(numbers.const_data_ptr<int64_t>()[i]));
    const bool* row = close.const_data_ptr<bool>() + i * boxes_count;
    for (int64_t j = i + 1; j < boxes_count; ++j) dropped[j] = dropped[j] || row[j];
  }
  count.fill_(static_cast<int64_t>(kept.size()));
  kept.resize(most);
  selected.copy_(at::tensor(kept, at::kInt));
}

}  // namespace torch_npu
