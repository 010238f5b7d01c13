// Random numbers: aclnn's arguments to the Philox kernels.
#include "cann_host/kernels/random.h"

#include <limits>

#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using kernels::Distribution;
using kernels::Philox;

kernels::DataType kernel_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernels::DataType::float32;
    case at::kHalf:
      return kernels::DataType::float16;
    case at::kBFloat16:
      return kernels::DataType::bfloat16;
    case at::kDouble:
      return kernels::DataType::float64;
    case at::kByte:
      return kernels::DataType::uint8;
    case at::kChar:
      return kernels::DataType::int8;
    case at::kShort:
      return kernels::DataType::int16;
    case at::kInt:
      return kernels::DataType::int32;
    case at::kLong:
      return kernels::DataType::int64;
    case at::kBool:
      return kernels::DataType::boolean;
    default:
      TORCH_CHECK(false, "the random number kernels do not know ", tensor.scalar_type());
  }
}

Philox philox(int64_t seed, int64_t offset) {
  return {static_cast<uint64_t>(seed), static_cast<uint64_t>(offset)};
}

/// Runs kernel(dense) on a contiguous tensor: `out` itself or one that is copied to it.
template <class Kernel>
void on_contiguous(at::Tensor& out, const Kernel& kernel) {
  if (out.numel() == 0) return;
  at::Tensor dense = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  const bool done = kernel(dense);
  TORCH_CHECK(done, "no random number kernel for ", out.scalar_type());
  if (!dense.is_same(out)) out.copy_(dense);
}

void fill(at::Tensor& out, Distribution distribution, Philox key, double a, double b = 0) {
  on_contiguous(out, [&](at::Tensor& dense) {
    return kernels::fill_random(distribution, kernel_type(dense), dense.data_ptr(), dense.numel(), key, a, b);
  });
}

void fill_integers(at::Tensor& out, Philox key, int64_t low, uint64_t range) {
  on_contiguous(out, [&](at::Tensor& dense) {
    return kernels::random_integers(kernel_type(dense), dense.data_ptr(), dense.numel(), key, low, range);
  });
}

/// How many integers from 0 the dtype holds exactly; for int64 the non-negative ones.
uint64_t exact_integers(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return 2;
    case at::kHalf:
      return (1ULL << 11) + 1;
    case at::kBFloat16:
      return (1ULL << 8) + 1;
    case at::kFloat:
      return (1ULL << 24) + 1;
    case at::kDouble:
      return (1ULL << 53) + 1;
    case at::kByte:
      return 1ULL << 8;
    default:  // signed integers
      return 1ULL << (8 * c10::elementSize(dtype) - 1);
  }
}

/// Rows of probabilities, checked as CPU PyTorch checks them.
at::Tensor probabilities(const at::Tensor& self) {
  const at::Tensor rows = self.to(self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
  TORCH_CHECK(at::isfinite(rows).logical_and_(rows >= 0).all().item<bool>(),
              "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK((rows.sum(-1) > 0).all().item<bool>(),
              "invalid multinomial distribution (sum of probabilities <= 0)");
  return rows;
}

}  // namespace

void InplaceUniform(at::Tensor& selfRef, double from, double to, int64_t seed, int64_t offset) {
  fill(selfRef, Distribution::uniform, philox(seed, offset), from, to);
}

void InplaceNormal(at::Tensor& selfRef, float mean, float std, int64_t seed, int64_t offset) {
  fill(selfRef, Distribution::normal, philox(seed, offset), mean, std);
}

void InplaceRandom(at::Tensor& selfRef, int64_t from, int64_t to, int64_t seed, int64_t offset) {
  fill_integers(selfRef, philox(seed, offset), from, static_cast<uint64_t>(to) - static_cast<uint64_t>(from));
}

void InplaceRandomWithoutFromTo(at::Tensor& selfRef, int64_t seed, int64_t offset) {
  fill_integers(selfRef, philox(seed, offset), 0, exact_integers(selfRef.scalar_type()));
}

void InplaceBernoulli(at::Tensor& selfRef, const at::Scalar& prob, int64_t seed, int64_t offset) {
  fill(selfRef, Distribution::bernoulli, philox(seed, offset), prob.toDouble());
}

void InplaceBernoulliTensor(at::Tensor& selfRef, const at::Tensor& prob, int64_t seed, int64_t offset) {
  TORCH_CHECK(at::logical_and(prob >= 0, prob <= 1).all().item<bool>(),
              "Expected p_in >= 0 && p_in <= 1 to be true");
  const at::Tensor p = prob.expand(selfRef.sizes()).contiguous();
  on_contiguous(selfRef, [&](at::Tensor& dense) {
    return kernels::bernoulli(kernel_type(dense), dense.data_ptr(), kernel_type(p), p.data_ptr(),
                              dense.numel(), philox(seed, offset));
  });
}

void SimThreadExponential(at::Tensor& selfRef, int64_t, double lambd, int64_t seed, int64_t offset) {
  fill(selfRef, Distribution::exponential, philox(seed, offset), lambd);
}

// With replacement: the inverse of the cumulative distribution at uniform numbers. Without: the largest p /
// exponential, which draws in proportion to p again and again.
void Multinomial(const at::Tensor& self, int64_t numsamples, bool replacement, int64_t seed, int64_t offset,
                 at::Tensor& out) {
  if (out.numel() == 0) return;
  const at::Tensor p = probabilities(self);
  if (replacement) {
    at::Tensor cumulative = p.cumsum(-1);
    at::Tensor draws = at::empty(out.sizes(), p.options());
    fill(draws, Distribution::uniform, philox(seed, offset), 0, 1);
    draws.mul_(cumulative.narrow(-1, -1, 1));
    out.copy_(
        at::searchsorted(cumulative, draws, /*out_int32=*/false, /*right=*/true).clamp_max_(p.size(-1) - 1));
  } else {
    TORCH_CHECK(((p > 0).sum(-1) >= numsamples).all().item<bool>(),
                "invalid multinomial distribution (with replacement=False, not enough non-negative category "
                "to sample)");
    at::Tensor q = at::empty_like(p);
    fill(q, Distribution::exponential, philox(seed, offset), 1);
    out.copy_(std::get<1>((p / q).topk(numsamples, -1)));
  }
}

void Randperm(int64_t n, int64_t seed, int64_t offset, at::Tensor& out) {
  at::Tensor order = out.scalar_type() == at::kLong && out.is_contiguous()
                         ? out
                         : at::empty({n}, out.options().dtype(at::kLong));
  kernels::random_permutation(kernels::DataType::int64, order.data_ptr(), n, philox(seed, offset));
  if (!order.is_same(out)) out.copy_(order);
}

void DropoutGenMask(at::IntArrayRef shape, double prob, int64_t seed, int64_t offset, at::Tensor& out) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    const bool counts = size >= 0 && !__builtin_mul_overflow(count, size, &count) && count < INT64_MAX / 2;
    TORCH_CHECK(counts, "aclnnDropoutGenMask: no tensor has the shape ", shape);
  }
  const int64_t bytes = (count + 7) / 8;
  TORCH_CHECK(out.is_contiguous() && out.numel() >= bytes, "the mask of ", shape, " needs ", bytes,
              " contiguous bytes, the output has ", out.numel());
  auto* mask = out.data_ptr<uint8_t>();
  kernels::dropout_mask(mask, count, philox(seed, offset), prob);
  std::fill(mask + bytes, mask + out.numel(), 0);
}

void DropoutDoMask(const at::Tensor& self, const at::Tensor& mask, double prob, at::Tensor& out) {
  const at::Tensor x = self.contiguous();
  const at::Tensor bits = mask.contiguous();
  on_contiguous(out, [&](at::Tensor& dense) {
    return kernels::dropout_apply(kernel_type(dense), x.data_ptr(), bits.data_ptr<uint8_t>(),
                                  dense.data_ptr(), dense.numel(), prob);
  });
}

void DropoutV3(const at::Tensor& input, const std::optional<at::Tensor>& optionalNoiseShape, double p,
               int64_t seed, int64_t offset, at::Tensor& out, at::Tensor& maskOut) {
  TORCH_CHECK(!optionalNoiseShape.has_value(),
              "aclnnDropoutV3: a noise shape is not supported; pass a null pointer");
  DropoutGenMask(input.sizes(), p, seed, offset, maskOut);
  DropoutDoMask(input, maskOut, p, out);
}

void RReluWithNoise(const at::Tensor& self, at::Tensor& noise, const at::Scalar& lower,
                    const at::Scalar& upper, bool training, int64_t seed, int64_t offset, at::Tensor& out) {
  if (!training) {
    at::leaky_relu_out(out, self, (lower.toDouble() + upper.toDouble()) / 2);
    return;
  }
  fill(noise, Distribution::uniform, philox(seed, offset), lower.toDouble(), upper.toDouble());
  noise.masked_fill_(self > 0, 1);
  at::mul_out(out, self, noise);
}

}  // namespace cann_host::host
