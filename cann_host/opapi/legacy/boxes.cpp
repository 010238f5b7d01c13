// Boxes of detectors.
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Floats = std::vector<float>;

/// Corners of boxes [4, n]: x1, y1, x2, y2, or (trans) centre, width and height.
struct Corners {
  at::Tensor x1, y1, x2, y2;

  Corners(const at::Tensor& boxes, bool trans) {
    const auto part = boxes.unbind(0);
    TORCH_CHECK(part.size() == 4, "boxes have four numbers in the first dimension, not ", part.size());
    x1 = trans ? part[0] - part[2] / 2 : part[0];
    y1 = trans ? part[1] - part[3] / 2 : part[1];
    x2 = trans ? part[0] + part[2] / 2 : part[2];
    y2 = trans ? part[1] + part[3] / 2 : part[3];
  }
  void become_column() {
    for (auto* t : {&x1, &y1, &x2, &y2}) *t = t->unsqueeze(1);
  }
};

/// Two sets of boxes, each with each (is_cross) or pair by pair.
struct Pairs {
  Corners a, b;
  at::Tensor intersection, united, width, height;  // width and height of the box around both

  Pairs(const Arguments& arguments, const at::Tensor& first_boxes, const at::Tensor& second_boxes)
      : a(first_boxes, arguments.flag("trans")), b(second_boxes, arguments.flag("trans")) {
    if (arguments.flag("is_cross")) a.become_column();
    intersection = (at::minimum(a.x2, b.x2) - at::maximum(a.x1, b.x1)).clamp_min(0) *
                   (at::minimum(a.y2, b.y2) - at::maximum(a.y1, b.y1)).clamp_min(0);
    const auto first = (a.x2 - a.x1) * (a.y2 - a.y1);
    const bool of_first = arguments.attribute<std::string>("mode", "iou") == "iof";
    united = (of_first ? first : first + (b.x2 - b.x1) * (b.y2 - b.y1) - intersection) + 1e-9;
    width = at::maximum(a.x2, b.x2) - at::minimum(a.x1, b.x1);
    height = at::maximum(a.y2, b.y2) - at::minimum(a.y1, b.y1);
  }
  at::Tensor iou() const { return intersection / united; }
  /// Square of the distance between the centres over that of the diagonal.
  at::Tensor distance() const {
    const auto dx = b.x1 + b.x2 - a.x1 - a.x2, dy = b.y1 + b.y2 - a.y1 - a.y2;
    return (dx * dx + dy * dy) / 4 / (width * width + height * height + 1e-9);
  }
};

at::Tensor giou(const Pairs& p) {
  const auto around = p.width * p.height;
  return p.iou() - (around - p.united) / around;
}

at::Tensor diou(const Pairs& p) { return p.iou() - p.distance(); }

at::Tensor angle(const Corners& box) { return at::atan((box.x2 - box.x1) / (box.y2 - box.y1 + 1e-9)); }

/// The weight of the difference of the angles counts as constant.
at::Tensor ciou(const Pairs& p) {
  const auto difference = angle(p.b) - angle(p.a);
  const auto v = 4 / (M_PI * M_PI) * difference * difference;
  const auto iou = p.iou();
  return iou - p.distance() - v * (v / (1 + 1e-9 - iou + v)).detach();
}

using Overlap = at::Tensor (*)(const Pairs&);

template <Overlap overlap>
void forward(const Arguments& a) {
  a.set(0, overlap(Pairs(a, a.wide(0), a.wide(1))));
}

void ciou_with_angle(const Arguments& a) {
  const Pairs p(a, a.wide(0), a.wide(1));
  a.set(0, ciou(p));
  a.set(1, angle(p.b) - angle(p.a));
}

/// Inputs: gradient, both sets of boxes. By autograd, which operators otherwise run without.
template <Overlap overlap>
void backward(const Arguments& a) {
  const c10::impl::ForceDispatchKeyGuard guard(c10::default_included_set, c10::default_excluded_set);
  const c10::AutoGradMode enabled(true);
  auto first = a.wide(1).clone().requires_grad_(), second = a.wide(2).clone().requires_grad_();
  const auto value = overlap(Pairs(a, first, second));
  value.backward(a.wide(0).reshape(value.sizes()));
  a.set(0, first.grad());
  a.set(1, second.grad());
}

/// Centre, width and height of boxes [n, 4] whose last pixel counts.
struct Centres {
  at::Tensor x, y, width, height;
  explicit Centres(const at::Tensor& boxes) {
    const auto part = boxes.unbind(-1);
    x = (part[0] + part[2]) * 0.5;
    y = (part[1] + part[3]) * 0.5;
    width = part[2] - part[0] + 1;
    height = part[3] - part[1] + 1;
  }
};

at::Tensor normal(const at::Tensor& deltas, const Arguments& a) {
  const auto means = a.attribute<Floats>("means", {0, 0, 0, 0}),
             stds = a.attribute<Floats>("stds", {1, 1, 1, 1});
  return (deltas - at::tensor(means)) / at::tensor(stds);
}

void bounding_box_encode(const Arguments& a) {
  const Centres anchor(a.wide(0)), truth(a.wide(1));
  const auto deltas = at::stack({(truth.x - anchor.x) / anchor.width, (truth.y - anchor.y) / anchor.height,
                                 (truth.width / anchor.width).log(), (truth.height / anchor.height).log()},
                                -1);
  a.set(0, normal(deltas, a));
}

void bounding_box_decode(const Arguments& a) {
  const auto means = a.attribute<Floats>("means", {0, 0, 0, 0}),
             stds = a.attribute<Floats>("stds", {1, 1, 1, 1});
  const Centres box(a.wide(0));
  const auto delta = (a.wide(1) * at::tensor(stds) + at::tensor(means)).unbind(-1);
  const double limit = std::abs(std::log(a.attribute<float>("wh_ratio_clip", 0.016f)));
  const auto width = box.width * delta[2].clamp(-limit, limit).exp(),
             height = box.height * delta[3].clamp(-limit, limit).exp();
  const auto x = box.x + box.width * delta[0], y = box.y + box.height * delta[1];
  std::vector<at::Tensor> sides{x - width * 0.5 + 0.5, y - height * 0.5 + 0.5, x + width * 0.5 - 0.5,
                                y + height * 0.5 - 0.5};
  const auto shape = a.attribute<std::vector<int64_t>>("max_shape", {});  // height, width
  for (size_t i = 0; i < sides.size() && shape.size() == 2; ++i)
    sides[i] = sides[i].clamp(0, shape[1 - i % 2] - 1);
  a.set(0, at::stack(sides, -1));
}

void anchor_response_flags(const Arguments& a) {
  const auto size = a.attribute<std::vector<int64_t>>("featmap_size"),
             strides = a.attribute<std::vector<int64_t>>("strides");
  TORCH_CHECK(size.size() == 2 && strides.size() == 2, "featmap_size and strides have two numbers each");
  const auto part = a.wide(0).unbind(-1);
  const auto column = ((part[0] + part[2]) * 0.5 / strides[0]).floor().to(at::kLong),
             row = ((part[1] + part[3]) * 0.5 / strides[1]).floor().to(at::kLong);
  auto flags = at::zeros({size[0] * size[1]}, at::kByte);
  flags.index_fill_(0, row * size[1] + column, 1);
  a.set(0, flags.unsqueeze(1).expand({-1, a.attribute<int64_t>("num_base_anchors")}).reshape({-1}));
}

/// Inputs: boxes [N, 4] and true boxes [M, 4]; output [M, N]. Sides are eps longer where areas are divided
/// by.
void overlap(const Arguments& a) {
  const Corners boxes(a.wide(0).t(), false);
  Corners truth(a.wide(1).t(), false);
  truth.become_column();
  const double eps = a.attribute<float>("eps", 1.0F);
  const auto area = [&](const Corners& c) { return (c.x2 - c.x1 + eps) * (c.y2 - c.y1 + eps); };
  const auto both = (at::minimum(boxes.x2, truth.x2) - at::maximum(boxes.x1, truth.x1)).clamp_min(0) *
                    (at::minimum(boxes.y2, truth.y2) - at::maximum(boxes.y1, truth.y1)).clamp_min(0);
  const bool of_truth = a.attribute<std::string>("mode", "iou") == "iof";
  a.set(0, both / (of_truth ? area(truth) : area(truth) + area(boxes) - both));
}

/// Inputs: numbers [N], overlaps [K, N], flags [N], largest overlap and its box of each anchor, and of each
/// box, count of boxes. An anchor answers for the box that it overlaps most; each box takes the anchors that
/// overlap it most.
void grid_assign_positive(const Arguments& a) {
  const auto overlaps = a[1], of_box = a[5];
  const int64_t boxes = overlaps.size(0), anchors = overlaps.size(1);
  const auto responsible = a[2] != 0;
  const auto own = responsible.logical_and(a[3] > a.attribute<float>("pos_iou_thr"));
  auto result = at::where(own, (a[4] + 1).to(at::kFloat), a.wide(0));
  const auto number = at::arange(1, boxes + 1).unsqueeze(1);
  auto taken = a.flag("gt_max_assign_all") ? overlaps == of_box.unsqueeze(1)
                                           : a[6].unsqueeze(1) == at::arange(anchors, a[6].options());
  taken = taken.logical_and(responsible)
              .logical_and((of_box > a.attribute<float>("min_pos_iou")).unsqueeze(1))
              .logical_and(number <= a.number(7));
  if (boxes > 0) {
    const auto last = (taken * number).amax(0);
    result = at::where(last > 0, last.to(at::kFloat), result);
  }
  a.set(0, result);
}

}  // namespace

Table box_operators() {
  return {
      {"Iou", overlap},
      {"GridAssignPositive", grid_assign_positive},
      {"GIoU", forward<giou>},
      {"GIoUGrad", backward<giou>},
      {"DIoU", forward<diou>},
      {"DIoUGrad", backward<diou>},
      {"CIoU", ciou_with_angle},
      {"CIoUGrad", backward<ciou>},
      {"BoundingBoxEncode", bounding_box_encode},
      {"BoundingBoxDecode", bounding_box_decode},
      {"AnchorResponseFlags", anchor_response_flags},
  };
}

}  // namespace cann_host::legacy
