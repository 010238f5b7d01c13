// Products with activations, cross entropy, sampling, caches and boxes.
#include <ATen/Parallel.h>

#include <cmath>

#include "cann_host/kernels/matvec.h"
#include "cann_host/opapi/fused.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

/// One number a row: how much it counts, 0 where it is ignored.
at::Tensor row_weights(const at::Tensor& target, const Optional& weight, int64_t ignored) {
  const auto counts = target.ne(ignored).to(at::kFloat);
  if (!weight.has_value()) return counts;
  return counts * weight->index_select(0, target.where(target.ne(ignored), at::zeros_like(target)));
}

at::Tensor reduced(const at::Tensor& losses, const at::Tensor& weights, std::string_view reduction) {
  if (reduction == "none") return losses;
  const auto sum = losses.sum();
  return reduction == "sum" ? sum : sum / weights.sum();
}

/// x1, y1, x2, y2 and area of boxes.
struct Boxes {
  at::Tensor x1, y1, x2, y2, area;
  explicit Boxes(const at::Tensor& boxes) {
    const auto wide = boxes.to(at::kFloat);
    x1 = wide.select(-1, 0);
    y1 = wide.select(-1, 1);
    x2 = wide.select(-1, 2);
    y2 = wide.select(-1, 3);
    area = (x2 - x1) * (y2 - y1);
  }
  Boxes(at::Tensor a, at::Tensor b, at::Tensor c, at::Tensor d, at::Tensor s)
      : x1(std::move(a)), y1(std::move(b)), x2(std::move(c)), y2(std::move(d)), area(std::move(s)) {}
  Boxes column() const {
    return {x1.unsqueeze(-1), y1.unsqueeze(-1), x2.unsqueeze(-1), y2.unsqueeze(-1), area.unsqueeze(-1)};
  }
};

/// y = x x2 + bias by the kernel for few rows; false where it does not take them.
bool multiply_few_rows(const at::Tensor& x, const at::Tensor& x2, const Optional& bias, const at::Tensor& y) {
  const int64_t inner = x.size(-1), rows = inner == 0 ? 0 : x.numel() / inner;
  const auto fits = [&](const at::Tensor& t) {
    return t.is_contiguous() && t.scalar_type() == x.scalar_type();
  };
  if (rows == 0 || rows > kernels::most_matvec_rows || x2.dim() != 2 || x2.stride(0) != 1 ||
      x2.stride(1) < inner || inner < 2 || x2.scalar_type() != x.scalar_type() || !fits(x) || !fits(y) ||
      (bias.has_value() && !fits(*bias))) {
    return false;
  }
  return kernels::matvec({kernel_type(x), kernel_type(x), x.const_data_ptr(), x2.const_data_ptr(),
                          bias.has_value() ? bias->const_data_ptr() : nullptr, nullptr, nullptr,
                          y.mutable_data_ptr(), rows, x2.size(1), inner, x2.stride(1)});
}

}  // namespace

void FusedMatmul(const at::Tensor& x, const at::Tensor& x2, const Optional& bias, const Optional& x3,
                 std::string_view fusedOpType, int8_t, at::Tensor& y) {
  TORCH_CHECK(x3.has_value() == (fusedOpType == "add" || fusedOpType == "mul"),
              "x3 belongs to fusedOpType add and mul, and to no other; it is '", fusedOpType, "'");
  if (!multiply_few_rows(x, x2, bias, y)) {
    const Placement placement({y});
    assign(y, at::linear(x, x2.transpose(-1, -2), bias));
  }
  // The product is in the cache where that pays.
  if (fusedOpType == "relu") {
    at::relu_(y);
  } else if (fusedOpType == "gelu_erf" || fusedOpType == "gelu_tanh") {
    at::gelu_(y, fusedOpType == "gelu_erf" ? "none" : "tanh");
  } else if (fusedOpType == "add") {
    y.add_(*x3);
  } else if (fusedOpType == "mul") {
    y.mul_(*x3);
  } else {
    TORCH_CHECK(fusedOpType.empty(), "fusedOpType is '", fusedOpType,
                "'; known: relu, gelu_erf, gelu_tanh, add, mul");
  }
}

void CrossEntropyLoss(const at::Tensor& input, const at::Tensor& target, const Optional& weightOptional,
                      std::string_view reductionOptional, int64_t ignoreIndex, double labelSmoothing,
                      double lseSquareScaleForZloss, bool, at::Tensor& lossOut, at::Tensor& logProbOut,
                      at::Tensor& zlossOut, at::Tensor& lseForZlossOut) {
  TORCH_CHECK(lseSquareScaleForZloss == 0, "z-loss is not in cann_host; lseSquareScaleForZloss must be 0");
  const at::Tensor logits = dense(input);
  const at::Tensor classes = target.masked_fill(target.eq(ignoreIndex), -1).contiguous();
  TORCH_CHECK(classes.numel() == 0 ||
                  (classes.ge(-1).all().item<bool>() && classes.lt(input.size(1)).all().item<bool>()),
              "target must lie in [0, ", input.size(1), ") or be ignoreIndex");
  const auto rows = at::empty({3, logits.size(0)}, logits.options().dtype(at::kFloat));
  {
    const Result log_probabilities(logProbOut);
    kernels::CrossEntropy call{};
    call.type = kernel_type(logits);
    call.logits = logits.const_data_ptr();
    call.target = classes.const_data_ptr<int64_t>();
    call.log_probabilities = log_probabilities.data();
    call.loss = rows[0].mutable_data_ptr<float>();
    call.mean_negative = rows[1].mutable_data_ptr<float>();
    call.rows = logits.size(0);
    call.columns = logits.size(1);
    kernels::cross_entropy(call);
  }
  const auto weights = row_weights(target, weightOptional, ignoreIndex);
  auto losses = rows[0] * weights;
  if (labelSmoothing > 0) {
    const auto counted = target.ne(ignoreIndex).to(at::kFloat);
    auto smooth = rows[1] * counted;
    if (weightOptional.has_value()) {
      smooth =
          at::matmul(logProbOut.to(at::kFloat), *weightOptional).neg_().div_(logits.size(1)).mul_(counted);
    }
    losses = losses * (1 - labelSmoothing) + smooth * labelSmoothing;
  }
  lossOut.copy_(reduced(losses, weights, reductionOptional).view(lossOut.sizes()));
  zlossOut.zero_();
  lseForZlossOut.zero_();
}

void CrossEntropyLossGrad(const at::Tensor& gradLoss, const at::Tensor& logProb, const at::Tensor& target,
                          const Optional& weightOptional, const Optional&, const Optional&,
                          std::string_view reductionOptional, int64_t ignoreIndex, double labelSmoothing,
                          double lseSquareScaleForZloss, at::Tensor& xGradOut) {
  TORCH_CHECK(lseSquareScaleForZloss == 0, "z-loss is not in cann_host; lseSquareScaleForZloss must be 0");
  const auto weights = row_weights(target, weightOptional, ignoreIndex);
  auto gradient = gradLoss.to(at::kFloat);
  if (reductionOptional == "mean") gradient = gradient / weights.sum();
  if (reductionOptional != "none") gradient = gradient.reshape({1});
  const auto classes = target.where(target.ne(ignoreIndex), at::zeros_like(target)).unsqueeze(1);
  const auto probabilities = logProb.to(at::kFloat).exp();  // not in place: float32 is logProb itself
  // d loss / d log_prob, whose sum times the probabilities is taken off.
  auto of_log = at::zeros_like(probabilities);
  of_log.scatter_(1, classes, (weights * (labelSmoothing - 1)).unsqueeze(1));
  if (labelSmoothing > 0) {
    const auto counted = target.ne(ignoreIndex).to(at::kFloat).unsqueeze(1);
    auto share = counted * (labelSmoothing / static_cast<double>(logProb.size(1)));
    if (weightOptional.has_value()) share = share * weightOptional->unsqueeze(0);
    of_log = of_log - share;
  }
  xGradOut.copy_((of_log - probabilities * of_log.sum(1, true)) * gradient.unsqueeze(1));
}

void ApplyTopKTopP(const at::Tensor& logits, const Optional& p, const Optional& k, at::Tensor& out) {
  auto [sorted, order] = logits.to(at::kFloat).sort(/*stable=*/true, -1, /*descending=*/false);
  const double hidden = -std::numeric_limits<double>::infinity();
  const int64_t size = logits.size(-1);
  if (k.has_value()) {
    const auto place = (size - k->to(at::kLong)).clamp_(0, size - 1).unsqueeze(-1);
    sorted = sorted.masked_fill(sorted.lt(sorted.gather(-1, place)), hidden);
  }
  if (p.has_value()) {
    auto beyond = sorted.softmax(-1).cumsum(-1).le((1 - p->to(at::kFloat)).unsqueeze(-1));
    beyond.select(-1, size - 1).fill_(false);  // the likeliest stays
    sorted = sorted.masked_fill(beyond, hidden);
  }
  out.copy_(at::empty_like(sorted).scatter_(-1, order, sorted));
}

void ScatterPaKvCache(const at::Tensor& key, at::Tensor& keyCacheRef, const at::Tensor& slotMapping,
                      const at::Tensor& value, at::Tensor& valueCacheRef, const Optional& compressLens,
                      const Optional& compressSeqOffsets, const Optional& seqLens, std::string_view cacheMode,
                      std::string_view, at::OptionalIntArrayRef, at::OptionalIntArrayRef) {
  TORCH_CHECK(cacheMode == "Norm", "cacheMode is '", cacheMode,
              "'; cann_host has Norm ([blocks, block size, heads, size])");
  TORCH_CHECK(!compressLens.has_value() && !compressSeqOffsets.has_value() && !seqLens.has_value(),
              "compression of caches is not in cann_host");
  const auto slots = slotMapping.to(at::kLong).flatten();
  const auto kept = slots.ge(0);  // -1: padding
  const auto put = [&](at::Tensor& cache, const at::Tensor& tokens) {
    TORCH_CHECK(cache.is_contiguous(), "a cache must be contiguous");
    auto rows = cache.view({cache.size(0) * cache.size(1), -1});
    rows.index_copy_(0, slots.masked_select(kept), tokens.reshape({slots.numel(), -1}).index({kept}));
  };
  put(keyCacheRef, key);
  put(valueCacheRef, value);
}

void Iou(const at::Tensor& bBoxes, const at::Tensor& gtBoxes, std::string_view mode, float eps, bool aligned,
         at::Tensor& overlap) {
  TORCH_CHECK(mode == "iou" || mode == "iof", "mode is '", mode, "'; known: iou, iof");
  const Boxes boxes = aligned ? Boxes(bBoxes) : Boxes(bBoxes).column();
  const Boxes truth(gtBoxes);
  const auto width = (at::minimum(boxes.x2, truth.x2) - at::maximum(boxes.x1, truth.x1)).clamp_min_(0);
  const auto height = (at::minimum(boxes.y2, truth.y2) - at::maximum(boxes.y1, truth.y1)).clamp_min_(0);
  const auto common = width * height;
  const auto whole = mode == "iof" ? boxes.area.expand_as(common) : boxes.area + truth.area - common;
  overlap.copy_((common / (whole + eps)).view(overlap.sizes()));
}

void ROIAlign(const at::Tensor& self, const at::Tensor& rois, float spatialScale, int64_t outputHeight,
              int64_t outputWidth, int64_t samplingRatio, int64_t alignedMode, at::Tensor& out) {
  const auto input = self.to(at::kFloat).contiguous();
  const auto regions = rois.to(at::kFloat).contiguous();
  const int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
  const auto result = at::zeros({regions.size(0), channels, outputHeight, outputWidth}, input.options());
  const float half = alignedMode == 2 ? 0.5f : 0.0f;  // 2: pixel centres
  const float* planes = input.const_data_ptr<float>();
  float* target = result.mutable_data_ptr<float>();
  at::parallel_for(0, regions.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* region = regions.const_data_ptr<float>() + 5 * r;
      const auto image = static_cast<int64_t>(region[0]);
      const float x = region[1] * spatialScale - half, y = region[2] * spatialScale - half;
      const float extra = alignedMode == 1 ? 1.0f : 0.0f;  // 1: the end is inside
      float roi_width = (region[3] + extra) * spatialScale - half - x;
      float roi_height = (region[4] + extra) * spatialScale - half - y;
      if (alignedMode != 2) {
        roi_width = std::max(roi_width, 1.0f);
        roi_height = std::max(roi_height, 1.0f);
      }
      const float bin_width = roi_width / outputWidth, bin_height = roi_height / outputHeight;
      const auto points = [&](float size, int64_t bins) {
        return samplingRatio > 0 ? samplingRatio : static_cast<int64_t>(std::ceil(size / bins));
      };
      const int64_t rows = points(roi_height, outputHeight), columns = points(roi_width, outputWidth);
      const float share = 1.0f / std::max<int64_t>(1, rows * columns);
      for (int64_t c = 0; c < channels; ++c) {
        const float* plane = planes + (image * channels + c) * height * width;
        const auto at = [&](float py, float px) {
          if (py < -1 || py > height || px < -1 || px > width) return 0.0f;
          py = std::max(py, 0.0f);
          px = std::max(px, 0.0f);
          auto top = std::min<int64_t>(static_cast<int64_t>(py), height - 1),
               left = std::min<int64_t>(static_cast<int64_t>(px), width - 1);
          const int64_t bottom = std::min(top + 1, height - 1), right = std::min(left + 1, width - 1);
          const float fy = top >= height - 1 ? 0 : py - top, fx = left >= width - 1 ? 0 : px - left;
          return (1 - fy) * ((1 - fx) * plane[top * width + left] + fx * plane[top * width + right]) +
                 fy * ((1 - fx) * plane[bottom * width + left] + fx * plane[bottom * width + right]);
        };
        for (int64_t i = 0; i < outputHeight; ++i) {
          for (int64_t j = 0; j < outputWidth; ++j) {
            float sum = 0;
            for (int64_t a = 0; a < rows; ++a) {
              for (int64_t b = 0; b < columns; ++b) {
                sum +=
                    at(y + (i + (a + 0.5f) / rows) * bin_height, x + (j + (b + 0.5f) / columns) * bin_width);
              }
            }
            target[((r * channels + c) * outputHeight + i) * outputWidth + j] = sum * share;
          }
        }
      }
    }
  });
  out.copy_(result);
}

}  // namespace cann_host::host
