// Random numbers: checks as PyTorch makes them, then one aclnn operator with the generator's seed and offset.
#include <ATen/ATen.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>

#include <cmath>
#include <limits>

#include "cann/aclnn.h"
#include "torch_npu/csrc/device/generator.h"
#include "torch_npu/csrc/dispatch/aclnn.h"
#include "torch_npu/csrc/dispatch/device_switch.h"
#include "torch_npu/csrc/dispatch/fallback.h"
#include "torch_npu/csrc/dispatch/outputs.h"
#include "torch_npu/csrc/dispatch/rules.h"

namespace torch_npu::ops {
namespace {

namespace templates = at::native::templates;
using OptionalGenerator = std::optional<at::Generator>;

Aclnn<decltype(::aclnnInplaceUniformGetWorkspaceSize)> aclnn_uniform("aclnnInplaceUniform");
Aclnn<decltype(::aclnnInplaceNormalGetWorkspaceSize)> aclnn_normal("aclnnInplaceNormal");
Aclnn<decltype(::aclnnNormalTensorFloatGetWorkspaceSize)> aclnn_normal_tensor_float("aclnnNormalTensorFloat");
Aclnn<decltype(::aclnnNormalFloatTensorGetWorkspaceSize)> aclnn_normal_float_tensor("aclnnNormalFloatTensor");
Aclnn<decltype(::aclnnNormalTensorTensorGetWorkspaceSize)> aclnn_normal_tensor_tensor(
    "aclnnNormalTensorTensor");
Aclnn<decltype(::aclnnInplaceRandomGetWorkspaceSize)> aclnn_random("aclnnInplaceRandom");
Aclnn<decltype(::aclnnInplaceRandomWithoutFromToGetWorkspaceSize)> aclnn_random_all(
    "aclnnInplaceRandomWithoutFromTo");
Aclnn<decltype(::aclnnInplaceBernoulliGetWorkspaceSize)> aclnn_bernoulli("aclnnInplaceBernoulli");
Aclnn<decltype(::aclnnInplaceBernoulliTensorGetWorkspaceSize)> aclnn_bernoulli_tensor(
    "aclnnInplaceBernoulliTensor");
Aclnn<decltype(::aclnnSimThreadExponentialGetWorkspaceSize)> aclnn_exponential("aclnnSimThreadExponential");
Aclnn<decltype(::aclnnMultinomialGetWorkspaceSize)> aclnn_multinomial("aclnnMultinomial");
Aclnn<decltype(::aclnnRandpermGetWorkspaceSize)> aclnn_randperm("aclnnRandperm");
Aclnn<decltype(::aclnnMaskedScaleGetWorkspaceSize)> aclnn_masked_scale("aclnnMaskedScale");

/// Seed and offset for one operator, as its int64 arguments.
struct Draw {
  int64_t seed;
  int64_t offset;
};

Draw draw(const at::Tensor& tensor, const OptionalGenerator& generator) {
  constexpr uint64_t kNumbersPerThread = 10;  // what one CANN operator may use
  const auto [seed, offset] =
      generator_or_default(generator, tensor.device().index()).philox_engine_inputs(kNumbersPerThread);
  return {static_cast<int64_t>(seed), static_cast<int64_t>(offset)};
}

bool is_real(const at::Tensor& tensor) { return !tensor.is_complex(); }

// PyTorch's templates check the arguments and call one of these. RNG is a parameter of theirs that we do not
// need.

template <class RNG>
struct UniformKernel {
  void operator()(at::TensorIteratorBase& iter, double from, double to, const OptionalGenerator& generator) {
    const auto [seed, offset] = draw(iter.tensor(0), generator);
    aclnn_uniform(iter.tensor(0), from, to, seed, offset);
  }
};

template <class RNG>
struct NormalKernel {
  void operator()(const at::Tensor& self, double mean, double std, const OptionalGenerator& generator) {
    const auto [seed, offset] = draw(self, generator);
    if (self.scalar_type() != at::kDouble) return aclnn_normal(self, mean, std, seed, offset);
    // aclnnInplaceNormal's mean and deviation are 32-bit numbers.
    aclnn_normal(self, 0.0, 1.0, seed, offset);
    at::Tensor out = self;
    out.mul_(std).add_(mean);
  }
};

template <class RNG>
struct ExponentialKernel {
  void operator()(at::TensorIteratorBase& iter, double lambda, const OptionalGenerator& generator) {
    at::Tensor self = iter.tensor(0);
    if (std::isinf(lambda)) {
      self.zero_();
    } else if (aclnn_exponential.available()) {
      const auto [seed, offset] = draw(self, generator);
      aclnn_exponential(self, self.numel(), lambda, seed, offset);
    } else {
      // Never log(0), and never 0 as result.
      constexpr double kSmallest = std::numeric_limits<float>::epsilon() / 2;
      self.uniform_(kSmallest, 1, generator).log_().mul_(-1 / lambda);
    }
  }
};

/// random_(): everything from 0 that the dtype holds exactly.
template <class RNG>
struct RandomKernel {
  void operator()(at::TensorIteratorBase& iter, const OptionalGenerator& generator) {
    const auto [seed, offset] = draw(iter.tensor(0), generator);
    aclnn_random_all(iter.tensor(0), seed, offset);
  }
};

/// random_(from, to): [base, base + range).
template <class RNG>
struct RandomFromToKernel {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t base,
                  const OptionalGenerator& generator) {
    const auto [seed, offset] = draw(iter.tensor(0), generator);
    // aclnnInplaceRandom excludes `to`, so the largest int64 cannot be drawn.
    const uint64_t room =
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - static_cast<uint64_t>(base);
    const auto to = static_cast<int64_t>(static_cast<uint64_t>(base) + std::min(range, room));
    aclnn_random(iter.tensor(0), base, to, seed, offset);
  }
  // All of int64: random bits, two halves of a number each.
  void operator()(at::TensorIteratorBase& iter, const OptionalGenerator& generator) {
    at::Tensor self = iter.tensor(0);
    const at::Tensor halves = at::empty_like(self).random_(0, int64_t{1} << 32, generator);
    self.random_(0, int64_t{1} << 32, generator).bitwise_left_shift_(32).bitwise_or_(halves);
  }
};

template <class RNG>
struct BernoulliTensorKernel {
  void operator()(const at::Tensor& self, const at::Tensor& p, const OptionalGenerator& generator) {
    const auto [seed, offset] = draw(self, generator);
    aclnn_bernoulli_tensor(self, p, seed, offset);
  }
};

template <class RNG>
struct BernoulliScalarKernel {
  void operator()(const at::Tensor& self, double p, const OptionalGenerator& generator) {
    const auto [seed, offset] = draw(self, generator);
    aclnn_bernoulli(self, at::Scalar(p), seed, offset);
  }
};

bool normal_takes(const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); }

}  // namespace

at::Tensor& uniform_(at::Tensor& self, double from, double to, OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_uniform.available()) return fallback<at::_ops::uniform_>(self, from, to, generator);
  return templates::uniform_impl_<UniformKernel, NPUGeneratorImpl>(self, from, to, generator);
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_normal.available() || at::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
    return fallback<at::_ops::normal_>(self, mean, std, generator);
  }
  return templates::normal_impl_<NormalKernel, NPUGeneratorImpl>(self, mean, std, generator);
}

at::Tensor& exponential_(at::Tensor& self, double lambd, OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!at::isFloatingType(self.scalar_type()))
    return fallback<at::_ops::exponential_>(self, lambd, generator);
  return templates::exponential_impl_<ExponentialKernel, NPUGeneratorImpl>(self, lambd, generator);
}

at::Tensor& random_(at::Tensor& self, OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_random_all.available() || !is_real(self)) return fallback<at::_ops::random_>(self, generator);
  return templates::random_impl<RandomKernel, NPUGeneratorImpl>(self, generator);
}

at::Tensor& random_from_(at::Tensor& self, int64_t from, std::optional<int64_t> to,
                         OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_random.available() || !is_real(self)) {
    return fallback<at::_ops::random__from>(self, from, to, generator);
  }
  return templates::random_from_to_impl<RandomFromToKernel, NPUGeneratorImpl>(self, from, to, generator);
}

at::Tensor& random_to_(at::Tensor& self, int64_t to, OptionalGenerator generator) {
  return ops::random_from_(self, 0, to, std::move(generator));
}

at::Tensor& bernoulli_(at::Tensor& self, double p, OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_bernoulli.available() || !is_real(self))
    return fallback<at::_ops::bernoulli__float>(self, p, generator);
  return templates::bernoulli_impl_<BernoulliScalarKernel, NPUGeneratorImpl>(self, p, generator);
}

at::Tensor& bernoulli_tensor_(at::Tensor& self, const at::Tensor& p, OptionalGenerator generator) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (is_host_scalar(p)) return ops::bernoulli_(self, p.item<double>(), std::move(generator));
  same_device("bernoulli_", self, "self", p, "p");
  if (!aclnn_bernoulli_tensor.available() || !is_real(self) || !at::isFloatingType(p.scalar_type())) {
    return fallback<at::_ops::bernoulli__Tensor>(self, p, generator);
  }
  return templates::bernoulli_impl_<BernoulliTensorKernel, NPUGeneratorImpl>(self, p, generator);
}

at::Tensor& bernoulli_out(const at::Tensor& self, OptionalGenerator generator, at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(self));
  resize_output(out, self.sizes(), out.scalar_type(), self);
  return ops::bernoulli_tensor_(out, self, std::move(generator));
}

// ---- normal with means and deviations from tensors ----

namespace {

void check_deviation(double std) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}

void check_deviation(const at::Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(std.numel() == 0 || std.min().ge(0).item<bool>(), "normal expects all elements of std >= 0.0");
}

}  // namespace

at::Tensor& normal_tensor_float_out(const at::Tensor& mean, double std, OptionalGenerator generator,
                                    at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(mean));
  check_deviation(std);
  if (!aclnn_normal_tensor_float.available() || !normal_takes(mean) || !normal_takes(out)) {
    return fallback<at::_ops::normal_Tensor_float_out>(mean, std, generator, out);
  }
  resize_output(out, mean.sizes(), out.scalar_type(), mean);
  const auto [seed, offset] = draw(out, generator);
  aclnn_normal_tensor_float(mean, std, seed, offset, out);
  return out;
}

at::Tensor normal_tensor_float(const at::Tensor& mean, double std, OptionalGenerator generator) {
  at::Tensor out = new_output(mean.sizes(), mean.scalar_type(), mean);
  return ops::normal_tensor_float_out(mean, std, std::move(generator), out);
}

at::Tensor& normal_float_tensor_out(double mean, const at::Tensor& std, OptionalGenerator generator,
                                    at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(std));
  check_deviation(std);
  if (!aclnn_normal_float_tensor.available() || !normal_takes(std) || !normal_takes(out)) {
    return fallback<at::_ops::normal_float_Tensor_out>(mean, std, generator, out);
  }
  resize_output(out, std.sizes(), out.scalar_type(), std);
  const auto [seed, offset] = draw(out, generator);
  aclnn_normal_float_tensor(mean, std, seed, offset, out);
  return out;
}

at::Tensor normal_float_tensor(double mean, const at::Tensor& std, OptionalGenerator generator) {
  at::Tensor out = new_output(std.sizes(), std.scalar_type(), std);
  return ops::normal_float_tensor_out(mean, std, std::move(generator), out);
}

at::Tensor& normal_tensor_tensor_out(const at::Tensor& mean, const at::Tensor& std,
                                     OptionalGenerator generator, at::Tensor& out) {
  same_device("normal", mean, "mean", std, "std");
  const DeviceSwitch on(DeviceSwitch::of(mean, std));
  check_deviation(std);
  if (!aclnn_normal_tensor_tensor.available() || !normal_takes(mean) || !normal_takes(std) ||
      !normal_takes(out)) {
    return fallback<at::_ops::normal_Tensor_Tensor_out>(mean, std, generator, out);
  }
  resize_output(out, at::infer_size_dimvector(mean.sizes(), std.sizes()), out.scalar_type(), mean);
  const auto [seed, offset] = draw(out, generator);
  aclnn_normal_tensor_tensor(mean, std, seed, offset, out);
  return out;
}

at::Tensor normal_tensor_tensor(const at::Tensor& mean, const at::Tensor& std, OptionalGenerator generator) {
  at::Tensor out = new_output(at::infer_size_dimvector(mean.sizes(), std.sizes()), mean.scalar_type(), mean);
  return ops::normal_tensor_tensor_out(mean, std, std::move(generator), out);
}

// ---- choices ----

at::Tensor& multinomial_out(const at::Tensor& self, int64_t num_samples, bool replacement,
                            OptionalGenerator generator, at::Tensor& out) {
  same_device("multinomial", self, "self", out, "out");
  const DeviceSwitch on(DeviceSwitch::of(self));
  if (!aclnn_multinomial.available()) {
    return fallback<at::_ops::multinomial_out>(self, num_samples, replacement, generator, out);
  }
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "multinomial expects Long tensor out, got: ", out.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || num_samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  constexpr int64_t kMaxCategories = int64_t{1} << 24;
  TORCH_CHECK(self.size(-1) <= kMaxCategories, "number of categories cannot exceed 2^24");
  const auto sizes = self.dim() == 1 ? at::DimVector{num_samples} : at::DimVector{self.size(0), num_samples};
  resize_output(out, sizes, at::kLong, self);
  if (out.numel() == 0) return out;
  const auto [seed, offset] = draw(self, generator);
  aclnn_multinomial(self, num_samples, replacement, seed, offset, out);
  return out;
}

at::Tensor multinomial(const at::Tensor& self, int64_t num_samples, bool replacement,
                       OptionalGenerator generator) {
  at::Tensor out = new_output({0}, at::kLong, self);
  return ops::multinomial_out(self, num_samples, replacement, std::move(generator), out);
}

at::Tensor& randperm_out(int64_t n, OptionalGenerator generator, at::Tensor& out) {
  const DeviceSwitch on(DeviceSwitch::of(out));
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  if (!aclnn_randperm.available() || !is_real(out) || out.scalar_type() == at::kBool) {
    return fallback<at::_ops::randperm_generator_out>(n, generator, out);
  }
  at::native::check_supported_max_int_with_precision(n, out);
  resize_output(out, {n}, out.scalar_type(), out);
  if (n == 0) return out;
  const auto [seed, offset] = draw(out, generator);
  aclnn_randperm(n, seed, offset, out);
  return out;
}

// ---- dropout ----

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  const DeviceSwitch on(DeviceSwitch::of(input));
  const bool takes_dtype = at::isFloatingType(input.scalar_type()) && input.scalar_type() != at::kDouble;
  if (!takes_dtype || !aclnn_bernoulli.available() || !aclnn_masked_scale.available() || input.numel() == 0) {
    return fallback<at::_ops::native_dropout>(input, p, train);
  }
  at::Tensor mask = new_output_like(input, at::kBool);
  if (!train.value_or(true)) return {input.clone(), mask.fill_(true)};
  const auto [seed, offset] = draw(input, std::nullopt);
  aclnn_bernoulli(mask, at::Scalar(1 - p), seed, offset);
  at::Tensor out = new_output_like(input, input.scalar_type());
  aclnn_masked_scale(input, mask, p == 1 ? 0.0 : 1 / (1 - p), out);
  return {out, mask};
}

}  // namespace torch_npu::ops
