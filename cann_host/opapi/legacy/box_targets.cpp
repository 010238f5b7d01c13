// What a detector is to predict for boxes, and the boxes of what it predicted.
#include <cmath>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

constexpr double smallest = 1e-6, degrees = 57.29577951308232;

/// Centres and sizes of corners x1, y1, x2, y2, which lie along a dimension.
struct Centred {
  at::Tensor x, y, width, height;

  Centred(const at::Tensor& boxes, int64_t dim, double least) {
    const auto part = boxes.unbind(dim);
    TORCH_CHECK(part.size() >= 4, "boxes have four corners, got ", boxes.sizes());
    width = (part[2] - part[0]).clamp_min(least);
    height = (part[3] - part[1]).clamp_min(least);
    x = part[0] + width / 2;
    y = part[1] + height / 2;
  }
};

/// Inputs: anchors, boxes, both [N, 4], strides [N].
void yolo_encode(const Arguments& a) {
  const Centred anchor(a.wide(0), -1, -INFINITY), truth(a.wide(1), -1, -INFINITY);
  const auto stride = a.wide(2);
  const auto share = [&](const at::Tensor& of_truth, const at::Tensor& of_anchor) {
    return ((of_truth - of_anchor) / stride + 0.5).clamp(smallest, 1 - smallest);
  };
  const auto ratio = [](const at::Tensor& of_truth, const at::Tensor& of_anchor) {
    return (of_truth / of_anchor).clamp_min(smallest).log();
  };
  a.set(0, at::stack({share(truth.x, anchor.x), share(truth.y, anchor.y), ratio(truth.width, anchor.width),
                      ratio(truth.height, anchor.height)},
                     -1));
}

/// Of [B, 5, N]: corners and an angle in degrees. Sizes below 1 count as 1.
struct Rotated {
  Centred box;
  at::Tensor tangent;

  explicit Rotated(const at::Tensor& boxes)
      : box(boxes, 1, 1), tangent((boxes.select(1, 4) / degrees).tan()) {}
};

at::Tensor weights(const Arguments& a) {
  const auto weight = a.attribute<std::vector<float>>("weight", {1, 1, 1, 1, 1});
  TORCH_CHECK(weight.size() == 5, "weight has ", weight.size(), " numbers, 5 were expected");
  return at::tensor(weight).view({5, 1});
}

void rotated_encode(const Arguments& a) {
  const Rotated anchor(a.wide(0)), truth(a.wide(1));
  const auto targets =
      at::stack({(truth.box.x - anchor.box.x) / anchor.box.width,
                 (truth.box.y - anchor.box.y) / anchor.box.height, (truth.box.width / anchor.box.width).log(),
                 (truth.box.height / anchor.box.height).log(), truth.tangent - anchor.tangent},
                1);
  a.set(0, targets * weights(a));
}

void rotated_decode(const Arguments& a) {
  const Rotated anchor(a.wide(0));
  const auto delta = (a.wide(1) / weights(a)).unbind(1);
  const auto x = anchor.box.x + delta[0] * anchor.box.width, y = anchor.box.y + delta[1] * anchor.box.height;
  const auto half_width = anchor.box.width * delta[2].exp() / 2,
             half_height = anchor.box.height * delta[3].exp() / 2;
  const auto angle = (anchor.tangent + delta[4]).atan() * degrees;
  a.set(0, at::stack({x - half_width, y - half_height, x + half_width, y + half_height, angle}, 1));
}

}  // namespace

Table box_target_operators() {
  return {{"YoloBoxesEncode", yolo_encode},
          {"RotatedBoxEncode", rotated_encode},
          {"RotatedBoxDecode", rotated_decode}};
}

}  // namespace cann_host::legacy
