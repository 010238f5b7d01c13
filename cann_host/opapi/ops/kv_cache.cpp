// Keys and values on their way into a cache: scatter by slots; for latent attention also RMS norm, rotary
// embedding and quantization.
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using Optional = std::optional<at::Tensor>;

at::Tensor rms_normalised(const at::Tensor& x, const at::Tensor& gamma, double epsilon) {
  return x * (x.square().mean(-1, true) + epsilon).rsqrt() * gamma.to(at::kFloat);
}

/// Rotary embedding of pairs of neighbours, which come out as halves.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto pairs = x.unflatten(-1, {-1, 2});
  const auto first = pairs.select(-1, 0), second = pairs.select(-1, 1);
  return at::cat({first, second}, -1) * cos.to(at::kFloat) +
         at::cat({-second, first}, -1) * sin.to(at::kFloat);
}

/// What a cache keeps of float32 values: int8 where there is a scale.
at::Tensor stored(const at::Tensor& values, const Optional& scale, at::ScalarType dtype) {
  if (!scale.has_value()) return values.to(dtype);
  return (values * *scale).round().clamp(-128, 127).to(at::kChar);
}

/// Where each token goes: its place among all rows of the pages, negative for padding.
at::Tensor rows_of_tokens(const at::Tensor& index, std::string_view mode, int64_t batch, int64_t length,
                          int64_t page) {
  const auto wide = index.to(at::kLong);
  if (mode == "Norm") return (wide + at::arange(batch).unsqueeze(1) * page).where(wide.ge(0), wide).flatten();
  if (mode != "PA_BLK_BNSD" && mode != "PA_BLK_NZ") return wide.flatten();
  // One number a page, where the page starts.
  const auto tokens = at::arange(length);
  const auto starts = wide.view({batch, -1}).index_select(1, tokens.floor_divide(page));
  const auto rows = starts - starts.remainder(page) + tokens.remainder(page);
  return rows.where(starts.ge(0), starts).flatten();
}

/// Puts one row of values for each token where `rows` says.
void scatter(at::Tensor& cache, const at::Tensor& values, const at::Tensor& rows, std::string_view mode) {
  const bool by_page = mode != "Norm";
  const int64_t pages = cache.size(0), page = cache.size(by_page ? 1 : 2), size = cache.size(3);
  const bool fractal = mode == "PA_NZ" || mode == "PA_BLK_NZ";
  const int64_t fractal_size = cache.element_size() == 1 ? 32 : 16;
  const int64_t part = fractal ? std::min(size, fractal_size) : size;
  const auto kept = rows.ge(0);
  const auto places = rows.masked_select(kept);
  const auto tokens = values.reshape({rows.numel(), size / part, part}).index({kept});
  const auto whole = cache.contiguous();
  auto view = fractal ? whole.view({pages, size / part, page, part}).transpose(1, 2)
                      : whole.view({pages, page, 1, part});
  view.index_put_({places.floor_divide(page), places.remainder(page)}, tokens);
  if (!whole.is_same(cache)) cache.copy_(whole);
}

}  // namespace

void KvRmsNormRopeCacheV2(const at::Tensor& kv, const at::Tensor& gamma, const at::Tensor& cos,
                          const at::Tensor& sin, const at::Tensor& index, at::Tensor& kCacheRef,
                          at::Tensor& ckvCacheRef, const Optional& kRopeScaleOptional,
                          const Optional& ckvScaleOptional, const Optional& kRopeOffsetOptional,
                          const Optional& cKvOffsetOptional, const Optional& vOptional, double epsilon,
                          std::string_view cacheModeOptional, bool isOutputKv, at::Tensor& kRopeOut,
                          at::Tensor& cKvOut) {
  TORCH_CHECK(!kRopeOffsetOptional.has_value() && !cKvOffsetOptional.has_value(),
              "offsets of quantization are not supported by cann_host; leave them out");
  const auto wide = kv.to(at::kFloat);
  const int64_t rope = cos.size(-1), length = kv.size(2);
  at::Tensor key, latent;
  if (vOptional.has_value()) {
    const auto normal = rms_normalised(wide, gamma, epsilon);
    key = at::cat({rotated(normal.slice(-1, 0, rope), cos, sin), normal.slice(-1, rope)}, -1);
    latent = vOptional->to(at::kFloat);
  } else {
    const int64_t size = gamma.size(0);
    latent = rms_normalised(wide.slice(-1, 0, size), gamma, epsilon);
    key = rotated(wide.slice(-1, size), cos, sin);
  }
  const auto rows = rows_of_tokens(index, cacheModeOptional, kv.size(0), length,
                                   kCacheRef.size(cacheModeOptional == "Norm" ? 2 : 1));
  scatter(kCacheRef, stored(key, kRopeScaleOptional, kCacheRef.scalar_type()), rows, cacheModeOptional);
  scatter(ckvCacheRef, stored(latent, ckvScaleOptional, ckvCacheRef.scalar_type()), rows, cacheModeOptional);
  if (isOutputKv) {
    kRopeOut.copy_(key);
    cKvOut.copy_(latent);
  } else {  // CANN leaves them as they are; zeros repeat
    kRopeOut.zero_();
    cKvOut.zero_();
  }
}

void KvRmsNormRopeCache(const at::Tensor& kv, const at::Tensor& gamma, const at::Tensor& cos,
                        const at::Tensor& sin, const at::Tensor& index, at::Tensor& kCacheRef,
                        at::Tensor& ckvCacheRef, const Optional& kRopeScaleOptional,
                        const Optional& ckvScaleOptional, const Optional& kRopeOffsetOptional,
                        const Optional& cKvOffsetOptional, double epsilon, std::string_view cacheModeOptional,
                        bool isOutputKv, at::Tensor& kRopeOut, at::Tensor& cKvOut) {
  KvRmsNormRopeCacheV2(kv, gamma, cos, sin, index, kCacheRef, ckvCacheRef, kRopeScaleOptional,
                       ckvScaleOptional, kRopeOffsetOptional, cKvOffsetOptional, std::nullopt, epsilon,
                       cacheModeOptional, isOutputKv, kRopeOut, cKvOut);
}

void ScatterPaKvCache(const at::Tensor& key, at::Tensor& keyCacheRef, const at::Tensor& slotMapping,
                      const at::Tensor& value, at::Tensor& valueCacheRef, const Optional& compressLens,
                      const Optional& compressSeqOffsets, const Optional& seqLens, std::string_view cacheMode,
                      std::string_view, at::OptionalIntArrayRef, at::OptionalIntArrayRef) {
  TORCH_CHECK(cacheMode == "Norm" || cacheMode == "PA_NZ", "cacheMode is '", cacheMode,
              "'; cann_host has Norm ([blocks, block size, heads, size]) and PA_NZ ([blocks, heads * size / "
              "last, block size, last])");
  TORCH_CHECK(!compressLens.has_value() && !compressSeqOffsets.has_value() && !seqLens.has_value(),
              "compression of caches is not in cann_host");
  const auto slots = slotMapping.to(at::kLong).flatten();
  const auto kept = slots.ge(0);  // -1: padding
  const auto put = [&](at::Tensor& cache, const at::Tensor& tokens) {
    const bool fractal = cacheMode == "PA_NZ";
    const int64_t page = cache.size(fractal ? 2 : 1), last = cache.size(3);
    const int64_t width = cache.numel() / std::max<int64_t>(1, cache.size(0) * page);
    TORCH_CHECK(tokens.numel() == slots.numel() * width, "a cache of ", cache.sizes(), " takes ", width,
                " elements a token; got tokens ", tokens.sizes());
    auto view = fractal ? cache.transpose(1, 2) : cache;  // [blocks, block size, parts of a token, last]
    const auto places = slots.masked_select(kept);
    const auto values = tokens.reshape({slots.numel(), width / last, last}).index({kept});
    view.index_put_({places.floor_divide(page), places.remainder(page)}, values);
  };
  put(keyCacheRef, key);
  put(valueCacheRef, value);
}

}  // namespace cann_host::host
