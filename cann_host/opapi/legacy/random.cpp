// Random numbers. Seed and offset choose the sequence, as with the aclnn operators, but the sequences are
// ATen's own and not those.
#include <ATen/CPUGeneratorImpl.h>

#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

uint64_t last(const Arguments& a, size_t i) {
  const auto tensor = a[i].contiguous();
  TORCH_CHECK(tensor.numel() > 0 && tensor.element_size() == 8, "seeds and offsets have 64 bits");
  return static_cast<const uint64_t*>(tensor.const_data_ptr())[tensor.numel() - 1];
}

at::Generator generator(uint64_t seed, uint64_t offset) {
  return at::make_generator<at::CPUGeneratorImpl>(seed * 0x9E3779B97F4A7C15u + offset);
}

/// Inputs: shape, seed, offset, algorithm.
at::Tensor numbers(const Arguments& a, at::Tensor& (*fill)(at::Tensor&, const at::Generator&)) {
  auto values = at::empty(a.sizes(0), at::kFloat);
  return fill(values, generator(last(a, 1), last(a, 2)));
}

at::Tensor& fill_uniform(at::Tensor& values, const at::Generator& g) { return values.uniform_(0, 1, g); }
at::Tensor& fill_normal(at::Tensor& values, const at::Generator& g) { return values.normal_(0, 1, g); }

/// Inputs: how many, probability to keep. The bytes are 0 or 1.
void byte_mask(const Arguments& a) {
  const auto seed = static_cast<uint64_t>(a.attribute<int64_t>("seed", 0)),
             offset = static_cast<uint64_t>(a.attribute<int64_t>("seed2", 0));
  const double keep = a.number(1).toDouble();
  a.set(0, at::empty(a.sizes(0), at::kFloat).uniform_(0, 1, generator(seed, offset)) < keep);
}

}  // namespace

Table random_operators() {
  return {
      {"StatelessRandomUniformV2", [](const Arguments& a) { a.set(0, numbers(a, fill_uniform)); }},
      {"StatelessRandomNormalV2", [](const Arguments& a) { a.set(0, numbers(a, fill_normal)); }},
      {"DropOutGenMaskV3", byte_mask},
      {"RandomChoiceWithMask",
       [](const Arguments& a) {
         const auto found = a[0].nonzero().to(at::kInt);
         const auto count = a.sizes(0)[0];
         const auto order =
             at::randperm(found.size(0), generator(static_cast<uint64_t>(a.attribute<int64_t>("seed", 0)),
                                                   static_cast<uint64_t>(a.attribute<int64_t>("seed2", 0))));
         const auto taken = std::get<0>(order.narrow(0, 0, std::min(count, found.size(0))).sort());
         const int64_t missing = count - taken.size(0);
         a.set(0, at::constant_pad_nd(found.index_select(0, taken), {0, 0, 0, missing}));
         a.set(1, at::constant_pad_nd(at::ones({taken.size(0)}, at::kBool), {0, missing}));
       }},
  };
}

}  // namespace cann_host::legacy
