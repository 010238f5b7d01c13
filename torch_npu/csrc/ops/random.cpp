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
#include "torch_npu/csrc/graph/recording.h"

namespace torch_npu::ops {
namespace {

namespace templates = at::native::templates;
using OptionalGenerator = std::optional<at::Generator>;

constexpr uint64_t kNumbersPerThread = 10;  // what one CANN operator may use

/// An operator in two forms: one takes seed and offset as numbers, the other, for graphs, reads them from
/// tensors when it runs.
template <class Numbers, class Tensors>
class RandomOperator {
 public:
  RandomOperator(const char* by_number, const char* by_tensor)
      : by_number_(by_number), by_tensor_(by_tensor) {}

  bool available() { return by_number_.available(); }

  /// Calls `call(operator, seed, offset)` or, while the work is recorded, `call(operator, seed tensor, offset
  /// tensor, offset)`.
  template <class Call>
  void draw(const at::Tensor& tensor, const OptionalGenerator& generator, const Call& call) {
    const auto index = tensor.device().index();
    const PhiloxInputs inputs = generator_or_default(generator, index).philox_inputs(kNumbersPerThread);
    const auto offset = static_cast<int64_t>(inputs.offset);
    if (!inputs.recorded()) return call(by_number_, static_cast<int64_t>(inputs.seed), offset);
    if (!by_tensor_.available()) {
      graph::require_no_recording(by_number_.name(),
                                  "this CANN has no form of it that reads its seed from a tensor", index);
    }
    call(by_tensor_, inputs.seed_tensor, inputs.offset_tensor, offset);
  }

 private:
  Aclnn<Numbers> by_number_;
  Aclnn<Tensors> by_tensor_;
};

RandomOperator<decltype(::aclnnInplaceUniformGetWorkspaceSize),
               decltype(::aclnnInplaceUniformTensorGetWorkspaceSize)>
    aclnn_uniform("aclnnInplaceUniform", "aclnnInplaceUniformTensor");
RandomOperator<decltype(::aclnnInplaceNormalGetWorkspaceSize),
               decltype(::aclnnInplaceNormalTensorGetWorkspaceSize)>
    aclnn_normal("aclnnInplaceNormal", "aclnnInplaceNormalTensor");
RandomOperator<decltype(::aclnnInplaceRandomGetWorkspaceSize),
               decltype(::aclnnInplaceRandomTensorGetWorkspaceSize)>
    aclnn_random("aclnnInplaceRandom", "aclnnInplaceRandomTensor");
RandomOperator<decltype(::aclnnInplaceRandomWithoutFromToGetWorkspaceSize),
               decltype(::aclnnInplaceRandomWithoutFromToTensorGetWorkspaceSize)>
    aclnn_random_all("aclnnInplaceRandomWithoutFromTo", "aclnnInplaceRandomWithoutFromToTensor");
RandomOperator<decltype(::aclnnInplaceBernoulliGetWorkspaceSize),
               decltype(::aclnnInplaceBernoulliSeedTensorGetWorkspaceSize)>
    aclnn_bernoulli("aclnnInplaceBernoulli", "aclnnInplaceBernoulliSeedTensor");
RandomOperator<decltype(::aclnnInplaceBernoulliTensorGetWorkspaceSize),
               decltype(::aclnnInplaceBernoulliTensorSeedTensorGetWorkspaceSize)>
    aclnn_bernoulli_tensor("aclnnInplaceBernoulliTensor", "aclnnInplaceBernoulliTensorSeedTensor");
RandomOperator<decltype(::aclnnSimThreadExponentialGetWorkspaceSize),
               decltype(::aclnnSimThreadExponentialSeedTensorGetWorkspaceSize)>
    aclnn_exponential("aclnnSimThreadExponential", "aclnnSimThreadExponentialSeedTensor");
RandomOperator<decltype(::aclnnMultinomialGetWorkspaceSize),
               decltype(::aclnnMultinomialTensorGetWorkspaceSize)>
    aclnn_multinomial("aclnnMultinomial", "aclnnMultinomialTensor");
RandomOperator<decltype(::aclnnRandpermGetWorkspaceSize), decltype(::aclnnRandpermSeedTensorGetWorkspaceSize)>
    aclnn_randperm("aclnnRandperm", "aclnnRandpermSeedTensor");
Aclnn<decltype(::aclnnNormalTensorFloatGetWorkspaceSize)> aclnn_normal_tensor_float("aclnnNormalTensorFloat");
Aclnn<decltype(::aclnnNormalFloatTensorGetWorkspaceSize)> aclnn_normal_float_tensor("aclnnNormalFloatTensor");
Aclnn<decltype(::aclnnNormalTensorTensorGetWorkspaceSize)> aclnn_normal_tensor_tensor(
    "aclnnNormalTensorTensor");
Aclnn<decltype(::aclnnMaskedScaleGetWorkspaceSize)> aclnn_masked_scale("aclnnMaskedScale");

bool is_real(const at::Tensor& tensor) { return !tensor.is_complex(); }

// PyTorch's templates check the arguments and call one of these. RNG is a parameter of theirs that we do not
// need.

template <class RNG>
struct UniformKernel {
  void operator()(at::TensorIteratorBase& iter, double from, double to, const OptionalGenerator& generator) {
    const at::Tensor& self = iter.tensor(0);
    aclnn_uniform.draw(self, generator, [&](auto& op, const auto&... at) { op(self, from, to, at...); });
  }
};

template <class RNG>
struct NormalKernel {
  void operator()(const at::Tensor& self, double mean, double std, const OptionalGenerator& generator) {
    // aclnnInplaceNormal's mean and deviation are 32-bit numbers.
    const bool exact = self.scalar_type() != at::kDouble;
    aclnn_normal.draw(self, generator, [&](auto& op, const auto&... at) {
      op(self, exact ? mean : 0.0, exact ? std : 1.0, at...);
    });
    if (!exact) at::Tensor(self).mul_(std).add_(mean);
  }
};

template <class RNG>
struct ExponentialKernel {
  void operator()(at::TensorIteratorBase& iter, double lambda, const OptionalGenerator& generator) {
    at::Tensor self = iter.tensor(0);
    if (std::isinf(lambda)) {
      self.zero_();
    } else if (aclnn_exponential.available()) {
      aclnn_exponential.draw(self, generator,
                             [&](auto& op, const auto&... at) { op(self, self.numel(), lambda, at...); });
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
    const at::Tensor& self = iter.tensor(0);
    aclnn_random_all.draw(self, generator, [&](auto& op, const auto&... at) { op(self, at...); });
  }
};

/// random_(from, to): [base, base + range).
template <class RNG>
struct RandomFromToKernel {
  void operator()(at::TensorIteratorBase& iter, uint64_t range, int64_t base,
                  const OptionalGenerator& generator) {
    // aclnnInplaceRandom excludes `to`, so the largest int64 cannot be drawn.
    const uint64_t room =
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - static_cast<uint64_t>(base);
    const auto to = static_cast<int64_t>(static_cast<uint64_t>(base) + std::min(range, room));
    const at::Tensor& self = iter.tensor(0);
    aclnn_random.draw(self, generator, [&](auto& op, const auto&... at) { op(self, base, to, at...); });
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
    aclnn_bernoulli_tensor.draw(self, generator, [&](auto& op, const auto&... at) { op(self, p, at...); });
  }
};

template <class RNG>
struct BernoulliScalarKernel {
  void operator()(const at::Tensor& self, double p, const OptionalGenerator& generator) {
    aclnn_bernoulli.draw(self, generator,
                         [&](auto& op, const auto&... at) { op(self, at::Scalar(p), at...); });
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
  // A graph cannot look at values while it is recorded.
  if (graph::current_recording(npu_index(std)) != nullptr) return;
  TORCH_CHECK(std.numel() == 0 || std.min().ge(0).item<bool>(), "normal expects all elements of std >= 0.0");
}

/// One operator, or for a graph the steps that give the same bits: CANN has no form that reads its seed from
/// a tensor.
template <class Op, class Mean, class Std>
at::Tensor& normal_around(Op& op, const Mean& mean, const Std& std, const OptionalGenerator& generator,
                          at::Tensor& out) {
  if (graph::current_recording(npu_index(out)) == nullptr) {
    const PhiloxInputs at = generator_or_default(generator, npu_index(out)).philox_inputs(kNumbersPerThread);
    op(mean, std, static_cast<int64_t>(at.seed), static_cast<int64_t>(at.offset), out);
  } else if constexpr (std::is_same_v<Std, double>) {
    out.normal_(0, std, generator).add_(mean);
  } else {
    out.normal_(0, 1, generator).mul_(std).add_(mean);
  }
  return out;
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
  return normal_around(aclnn_normal_tensor_float, mean, std, generator, out);
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
  return normal_around(aclnn_normal_float_tensor, mean, std, generator, out);
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
  return normal_around(aclnn_normal_tensor_tensor, mean, std, generator, out);
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
  aclnn_multinomial.draw(
      self, generator, [&](auto& op, const auto&... at) { op(self, num_samples, replacement, at..., out); });
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
  aclnn_randperm.draw(out, generator, [&](auto& op, const auto&... at) { op(n, at..., out); });
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
  aclnn_bernoulli.draw(mask, std::nullopt,
                       [&](auto& op, const auto&... at) { op(mask, at::Scalar(1 - p), at...); });
  at::Tensor out = new_output_like(input, input.scalar_type());
  aclnn_masked_scale(input, mask, p == 1 ? 0.0 : 1 / (1 - p), out);
  return {out, mask};
}

}  // namespace torch_npu::ops
