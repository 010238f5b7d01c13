// Pooling of regions of images. A bin of a region is a sum over rows and columns whose weights are products.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

/// For each region its image, and the weights [R, bins, size] of its bins along rows and columns.
struct Bins {
  at::Tensor image, rows, columns;
};

/// The mean of the pixels that each of the bins of an interval touches.
at::Tensor touched(const at::Tensor& begin, const at::Tensor& end, int64_t bins, int64_t size) {
  constexpr double smallest_region = 0.1;
  const auto length = (end - begin).clamp_min(smallest_region).unsqueeze(1) / bins;
  const auto number = at::arange(bins, at::kFloat), pixel = at::arange(size, at::kFloat);
  const auto first = (begin.unsqueeze(1) + number * length).floor().clamp(0, size),
             last = (begin.unsqueeze(1) + (number + 1) * length).ceil().clamp(0, size);
  const auto inside = (pixel >= first.unsqueeze(2)).logical_and(pixel < last.unsqueeze(2));
  return inside / (last - first).clamp_min(1).unsqueeze(2);
}

/// Of rois [B, 5, R]: number of the image and corners, which are rounded; the last pixel belongs to the
/// region.
Bins position_sensitive(const at::Tensor& rois, double scale, int64_t bins, int64_t height, int64_t width) {
  TORCH_CHECK(rois.dim() == 3 && rois.size(1) == 5, "rois are [B, 5, R], got ", rois.sizes());
  const auto part = rois.permute({1, 0, 2}).flatten(1).round().unbind(0);
  return {part[0], touched(part[2] * scale, (part[4] + 1) * scale, bins, height),
          touched(part[1] * scale, (part[3] + 1) * scale, bins, width)};
}

at::Tensor of_image(const Bins& bins, int64_t image) {
  return bins.rows * (bins.image == image).view({-1, 1, 1});
}

/// Inputs: x [B, output_dim * group_size^2, H, W], rois.
void position_sensitive_pooling(const Arguments& a) {
  const auto x = a.wide(0);
  const int64_t group = a.attribute<int64_t>("group_size"), outputs = a.attribute<int64_t>("output_dim");
  const Bins bins =
      position_sensitive(a.wide(1), a.attribute<float>("spatial_scale"), group, x.size(2), x.size(3));
  auto result = at::zeros({bins.image.size(0), outputs, group, group});
  for (int64_t i = 0; i < x.size(0); ++i) {
    const auto planes = x[i].unflatten(0, {outputs, group, group});
    result += at::einsum("ogkhw,rgh,rkw->rogk", {planes, of_image(bins, i), bins.columns});
  }
  a.set(0, result);
}

/// Inputs: gradient [B * R, output_dim, group_size, group_size], rois.
void position_sensitive_pooling_grad(const Arguments& a) {
  const auto grad = a.wide(0), rois = a.wide(1);
  const auto size = a.attribute<std::vector<int64_t>>("input_size");
  TORCH_CHECK(size.size() == 2, "input_size has ", size.size(), " numbers, 2 were expected");
  const Bins bins = position_sensitive(rois, a.attribute<float>("spatial_scale"),
                                       a.attribute<int64_t>("group_size"), size[0], size[1]);
  std::vector<at::Tensor> images;
  for (int64_t i = 0; i < rois.size(0); ++i) {
    images.push_back(
        at::einsum("rogk,rgh,rkw->ogkhw", {grad, of_image(bins, i), bins.columns}).flatten(0, 2));
  }
  a.set(0, at::stack(images));
}

/// The mean of points between pixels in each of the bins of an interval; `points` 0: as many as a bin has
/// pixels.
at::Tensor sampled(const at::Tensor& begin, const at::Tensor& length, int64_t bins, int64_t points,
                   int64_t size) {
  const auto bin = length / bins;
  const auto count = points ? at::full_like(bin, points) : bin.ceil();
  const int64_t most = points ? points : count.numel() ? count.max().item<int64_t>() : 0;
  const auto number = at::arange(most, at::kFloat), pixel = at::arange(size, at::kFloat);
  const auto share = (number + 0.5) / count.clamp_min(1).unsqueeze(1);
  const auto at_bin = at::arange(bins, at::kFloat).view({1, -1, 1}) + share.unsqueeze(1);
  auto point = begin.view({-1, 1, 1}) + at_bin * bin.view({-1, 1, 1});
  const auto counts =
      (number < count.unsqueeze(1)).unsqueeze(1).logical_and(point >= -1).logical_and(point <= size);
  point = point.clamp(0, size - 1);
  // The weight of a pixel falls from 1 to 0 at its neighbours.
  const auto weight = (1 - (point.unsqueeze(-1) - pixel).abs()).clamp_min(0) * counts.unsqueeze(-1);
  return weight.sum(2) / count.clamp_min(1).view({-1, 1, 1});
}

/// Inputs: gradient [R, C, pooled_height, pooled_width], rois [R, 5].
void align_grad(const Arguments& a) {
  const auto grad = a.wide(0);
  const auto roi = a.wide(1).unbind(1);
  const auto size = a.attribute<std::vector<int64_t>>("xdiff_shape");
  const auto mode = a.attribute<int64_t>("roi_end_mode", 1), points = a.attribute<int64_t>("sample_num", 2);
  TORCH_CHECK(roi.size() == 5 && size.size() == 4 && mode >= 0 && mode <= 2,
              "ROIAlignGrad takes rois [R, 5], xdiff_shape of four and roi_end_mode 0, 1 or 2");
  const double scale = a.attribute<float>("spatial_scale"), extra = mode == 1 ? 1 : 0,
               half = mode == 2 ? 0.5 : 0;
  const auto x = roi[1] * scale - half, y = roi[2] * scale - half;
  auto across = (roi[3] + extra) * scale - half - x, down = (roi[4] + extra) * scale - half - y;
  if (mode != 2) across = across.clamp_min(1), down = down.clamp_min(1);
  const Bins bins{roi[0], sampled(y, down, a.attribute<int64_t>("pooled_height"), points, size[2]),
                  sampled(x, across, a.attribute<int64_t>("pooled_width"), points, size[3])};
  std::vector<at::Tensor> images;
  for (int64_t i = 0; i < size[0]; ++i) {
    images.push_back(at::einsum("rcij,rih,rjw->chw", {grad, of_image(bins, i), bins.columns}));
  }
  a.set(0, at::stack(images));
}

}  // namespace

Table region_operators() {
  return {
      {"PSROIPoolingV2", position_sensitive_pooling},
      {"PSROIPoolingGradV2D", position_sensitive_pooling_grad},
      {"ROIAlignGrad", align_grad},
  };
}

}  // namespace cann_host::legacy
