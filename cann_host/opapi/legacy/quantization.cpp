// Ranges of quantized numbers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

/// Inputs: data, its minimum and maximum, running sums of its histogram. Outputs: the scale and offset of
/// int8 that reproduce the data best, of those that a search tries between the outer percentiles.
void search_scale(const Arguments& a) {
  const auto x = a.wide(0);
  const float low = a.number(1).toFloat(), high = a.number(2).toFloat();
  const auto share = a.wide(3) / x.numel();
  const auto bins = static_cast<float>(share.numel());
  const auto at_share = [&](double of) {
    return (share < of).sum().item<float>() / bins * (high - low) + low;
  };
  const float highest = at_share(a.attribute<float>("max_percentile")),
              lowest = at_share(1 - a.attribute<float>("min_percentile"));
  const auto range = a.attribute<std::vector<float>>("search_range");
  const float step = a.attribute<float>("search_step");
  TORCH_CHECK(range.size() == 2 && step > 0 && range[1] > range[0], "IFMR searches from search_range[0] to ",
              "search_range[1] by a positive search_step");
  const bool with_offset = a.flag("with_offset");
  float best = std::numeric_limits<float>::infinity(), scale = 1, offset = 0;
  for (float share_of_end = range[0]; share_of_end < range[1]; share_of_end += step) {
    float try_scale, try_offset = 0;
    if (with_offset) {
      const float bottom = std::min(lowest, 0.0F);
      try_scale = (std::max(highest, 0.0F) * share_of_end - bottom) / 255;
      if (try_scale < std::numeric_limits<float>::epsilon()) try_scale = 1;
      try_offset = -128 - std::nearbyint(bottom / try_scale);
    } else {
      try_scale = std::max(std::abs(lowest), std::abs(highest)) * share_of_end / 127;
    }
    const auto near = ((x / try_scale).round() + try_offset).clamp(-128, 127);
    const float loss = ((near - try_offset) * try_scale - x).square().sum().item<float>();
    if (loss < best) best = loss, scale = try_scale, offset = try_offset;
  }
  a.set(0, at::full(a.sizes(0), scale, at::kFloat));
  a.set(1, at::full(a.sizes(1), offset, at::kFloat));
}

}  // namespace

Table quantization_operators() { return {{"IFMR", search_scale}}; }

}  // namespace cann_host::legacy
