// Boxes that overlap a better one too much are taken away.
#include <algorithm>
#include <cmath>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

/// Corners in any order: [x1, y1, x2, y2] of box i.
struct Box {
  float x1, y1, x2, y2;
  explicit Box(const float* box)
      : x1(std::min(box[0], box[2])),
        y1(std::min(box[1], box[3])),
        x2(std::max(box[0], box[2])),
        y2(std::max(box[1], box[3])) {}
  float area() const { return (x2 - x1) * (y2 - y1); }
  float overlap(const Box& other) const {
    const float width = std::min(x2, other.x2) - std::max(x1, other.x1),
                height = std::min(y2, other.y2) - std::max(y1, other.y1);
    if (width <= 0 || height <= 0) return 0;
    return width * height / (area() + other.area() - width * height);
  }
};

/// Indices of the boxes [n, 4] that stay, best score first: scores above `least`, and no overlap of more than
/// `most` with a better one. At most `count`.
at::Tensor kept(const at::Tensor& boxes, const at::Tensor& scores, float most, float least, int64_t count) {
  TORCH_CHECK(boxes.dim() == 2 && boxes.size(1) == 4, "boxes must be [n, 4], not ", boxes.sizes());
  TORCH_CHECK(scores.dim() == 1 && scores.size(0) == boxes.size(0), "each box needs one score");
  const auto dense = boxes.to(at::kFloat).contiguous(), values = scores.to(at::kFloat).contiguous();
  const auto order = values.argsort(true, 0, true).contiguous();
  std::vector<Box> chosen;
  std::vector<int64_t> indices;
  for (int64_t rank = 0; rank < order.size(0) && static_cast<int64_t>(indices.size()) < count; ++rank) {
    const int64_t i = order.const_data_ptr<int64_t>()[rank];
    if (!(values.const_data_ptr<float>()[i] > least)) break;
    const Box box(dense.const_data_ptr<float>() + 4 * i);
    if (std::any_of(chosen.begin(), chosen.end(),
                    [&](const Box& other) { return box.overlap(other) > most; })) {
      continue;
    }
    chosen.push_back(box);
    indices.push_back(i);
  }
  return at::tensor(indices, at::kLong);
}

at::Tensor filled_up(const at::Tensor& x, int64_t size) {
  auto result = at::zeros(size, x.options());
  result.narrow(0, 0, x.size(0)).copy_(x);
  return result;
}

void suppression_v4(const Arguments& a) {
  const auto indices = kept(a[0], a[1], a.number(3).toFloat(), a.number(4).toFloat(), a.number(2).toLong());
  a.set(0, filled_up(indices, a.sizes(0).at(0)));
  a.set(1, at::scalar_tensor(indices.size(0)));
}

/// Input: boxes and scores, [n, 5].
void suppression_with_mask(const Arguments& a) {
  const auto x = a.wide(0);
  TORCH_CHECK(x.dim() == 2 && x.size(1) == 5, "boxes with scores must be [n, 5], not ", x.sizes());
  const auto indices =
      kept(x.narrow(1, 0, 4), x.select(1, 4), a.attribute<float>("iou_threshold"), -INFINITY, x.size(0));
  a.set(0, x);
  a.set(1, at::arange(x.size(0)));
  a.set(2, at::zeros({x.size(0)}, at::kByte).index_fill_(0, indices, 1));
}

/// Inputs: boxes [batch, n, 1 or classes, 4], scores [batch, n, classes].
void suppression_of_classes(const Arguments& a) {
  TORCH_CHECK(!a.flag("transpose_box") && !a.flag("change_coordinate_frame"),
              "transpose_box and change_coordinate_frame are not known");
  const auto boxes = a.wide(0), scores = a.wide(1);
  TORCH_CHECK(boxes.dim() == 4 && scores.dim() == 3,
              "expected boxes [batch, n, classes, 4], scores [batch, n, classes]");
  const auto most = a.attribute<float>("iou_threshold"), least = a.attribute<float>("score_threshold");
  const auto per_class = a.attribute<int64_t>("max_size_per_class"),
             total = a.attribute<int64_t>("max_total_size");
  std::vector<at::Tensor> all_boxes, all_scores, all_classes, counts;
  for (int64_t b = 0; b < boxes.size(0); ++b) {
    std::vector<at::Tensor> found_boxes, found_scores, found_classes;
    for (int64_t k = 0; k < scores.size(2); ++k) {
      const auto mine = boxes[b].select(1, boxes.size(2) == 1 ? 0 : k), values = scores[b].select(1, k);
      const auto indices = kept(mine, values, most, least, per_class);
      found_boxes.push_back(mine.index_select(0, indices));
      found_scores.push_back(values.index_select(0, indices));
      found_classes.push_back(at::full({indices.size(0)}, k, values.options()));
    }
    const auto [best, order] = at::cat(found_scores).sort(true, 0, true);
    const auto first = order.narrow(0, 0, std::min(total, order.size(0)));
    auto result = at::zeros({total, 4});
    result.narrow(0, 0, first.size(0)).copy_(at::cat(found_boxes).index_select(0, first));
    all_boxes.push_back(result);
    all_scores.push_back(filled_up(best.narrow(0, 0, first.size(0)), total));
    all_classes.push_back(filled_up(at::cat(found_classes).index_select(0, first), total));
    counts.push_back(at::scalar_tensor(first.size(0)));
  }
  a.set(0, at::stack(all_boxes));
  a.set(1, at::stack(all_scores));
  a.set(2, at::stack(all_classes));
  a.set(3, at::stack(counts));
}

}  // namespace

Table suppression_operators() {
  return {
      {"NonMaxSuppressionV4", suppression_v4},
      {"NMSWithMask", suppression_with_mask},
      {"BatchMultiClassNonMaxSuppression", suppression_of_classes},
  };
}

}  // namespace cann_host::legacy
