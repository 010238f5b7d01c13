// Boxes: how far they overlap, and what lies in them.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "cann/acl.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

/// Corners of boxes.
struct Boxes {
  at::Tensor x1, y1, x2, y2;
  explicit Boxes(const at::Tensor& boxes) {
    const auto wide = boxes.to(at::kFloat);
    x1 = wide.select(-1, 0);
    y1 = wide.select(-1, 1);
    x2 = wide.select(-1, 2);
    y2 = wide.select(-1, 3);
  }
  Boxes(at::Tensor a, at::Tensor b, at::Tensor c, at::Tensor d)
      : x1(std::move(a)), y1(std::move(b)), x2(std::move(c)), y2(std::move(d)) {}
  Boxes column() const { return {x1.unsqueeze(-1), y1.unsqueeze(-1), x2.unsqueeze(-1), y2.unsqueeze(-1)}; }
};

/// The value between four pixels of a plane; 0 more than a pixel outside.
float interpolated(const float* plane, int64_t height, int64_t width, float y, float x) {
  if (y < -1 || y > height || x < -1 || x > width) return 0;
  y = std::max(y, 0.0f);
  x = std::max(x, 0.0f);
  const auto top = std::min<int64_t>(static_cast<int64_t>(y), height - 1),
             left = std::min<int64_t>(static_cast<int64_t>(x), width - 1);
  const int64_t bottom = std::min(top + 1, height - 1), right = std::min(left + 1, width - 1);
  const float fy = top >= height - 1 ? 0 : y - top, fx = left >= width - 1 ? 0 : x - left;
  return (1 - fy) * ((1 - fx) * plane[top * width + left] + fx * plane[top * width + right]) +
         fy * ((1 - fx) * plane[bottom * width + left] + fx * plane[bottom * width + right]);
}

/// A region of an image, cut into bins in which points are taken: begin, size of a bin and points along y and
/// x.
struct Bins {
  float y, x, height, width;
  int64_t rows, columns;

  /// `region`: number of the image, x1, y1, x2, y2. Mode 2 counts from the centres of pixels; 1 includes the
  /// end.
  Bins(const float* region, float scale, int64_t mode, int64_t down, int64_t across, int64_t points) {
    const float half = mode == 2 ? 0.5f : 0.0f, extra = mode == 1 ? 1.0f : 0.0f;
    x = region[1] * scale - half;
    y = region[2] * scale - half;
    float whole_width = (region[3] + extra) * scale - half - x;
    float whole_height = (region[4] + extra) * scale - half - y;
    if (mode != 2) {
      whole_width = std::max(whole_width, 1.0f);
      whole_height = std::max(whole_height, 1.0f);
    }
    height = whole_height / down;
    width = whole_width / across;
    rows = points > 0 ? points : static_cast<int64_t>(std::ceil(height));
    columns = points > 0 ? points : static_cast<int64_t>(std::ceil(width));
  }

  /// The mean over the points of bin (i, j).
  float mean(const float* plane, int64_t plane_height, int64_t plane_width, int64_t i, int64_t j) const {
    float sum = 0;
    for (int64_t a = 0; a < rows; ++a) {
      for (int64_t b = 0; b < columns; ++b) {
        sum += interpolated(plane, plane_height, plane_width, y + (i + (a + 0.5f) / rows) * height,
                            x + (j + (b + 0.5f) / columns) * width);
      }
    }
    return sum / std::max<int64_t>(1, rows * columns);
  }
};

}  // namespace

void Iou(const at::Tensor& bBoxes, const at::Tensor& gtBoxes, std::string_view mode, float eps, bool aligned,
         at::Tensor& overlap) {
  TORCH_CHECK(mode == "iou" || mode == "iof", "mode is '", mode, "'; known: iou, iof");
  const Boxes boxes = aligned ? Boxes(bBoxes) : Boxes(bBoxes).column();
  const Boxes truth(gtBoxes);
  const auto product = [](const Boxes& of, float longer) {
    return (of.x2 - of.x1 + longer).clamp_min(0) * (of.y2 - of.y1 + longer).clamp_min(0);
  };
  const auto area = [&](const Boxes& of) { return product(of, eps); };
  // Sides of boxes are eps longer; on Ascend950 those of what both cover as well.
  static const bool lengthens_common = std::string_view(aclrtGetSocName()).starts_with("Ascend950");
  const Boxes both(at::maximum(boxes.x1, truth.x1), at::maximum(boxes.y1, truth.y1),
                   at::minimum(boxes.x2, truth.x2), at::minimum(boxes.y2, truth.y2));
  const auto common = product(both, lengthens_common ? eps : 0);
  const auto of_truth = area(truth);
  const auto whole = mode == "iof" ? of_truth.expand_as(common) : area(boxes) + of_truth - common;
  overlap.copy_((common / whole).view(overlap.sizes()));
}

void ROIAlign(const at::Tensor& self, const at::Tensor& rois, float spatialScale, int64_t outputHeight,
              int64_t outputWidth, int64_t samplingRatio, int64_t alignedMode, at::Tensor& out) {
  const auto input = self.to(at::kFloat).contiguous();
  const auto regions = rois.to(at::kFloat).contiguous();
  const int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
  const auto result = at::zeros({regions.size(0), channels, outputHeight, outputWidth}, input.options());
  const float* planes = input.const_data_ptr<float>();
  float* target = result.mutable_data_ptr<float>();
  at::parallel_for(0, regions.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* region = regions.const_data_ptr<float>() + 5 * r;
      const Bins bins(region, spatialScale, alignedMode, outputHeight, outputWidth, samplingRatio);
      const float* image = planes + static_cast<int64_t>(region[0]) * channels * height * width;
      for (int64_t n = 0; n < channels * outputHeight * outputWidth; ++n) {
        const int64_t j = n % outputWidth, i = n / outputWidth % outputHeight;
        const float* plane = image + n / outputWidth / outputHeight * height * width;
        target[r * channels * outputHeight * outputWidth + n] = bins.mean(plane, height, width, i, j);
      }
    }
  });
  out.copy_(result);
}

}  // namespace cann_host::host
