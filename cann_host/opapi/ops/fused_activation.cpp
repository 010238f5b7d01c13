// Gated activations, masked softmax and rotary embedding on the kernels of cann_host/kernels/fused.h.
#include <ATen/WrapDimUtils.h>

#include "cann_host/opapi/fused.h"
#include "opapi/host_functions.h"

namespace cann_host::host {
namespace {

using kernels::Gate;

/// [outer, 2 * inner]: how dim splits a contiguous tensor in two halves.
struct Halves {
  int64_t rows, columns;

  Halves(const at::Tensor& self, int64_t dim) {
    const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
    TORCH_CHECK(self.size(axis) % 2 == 0, "dimension ", dim, " has ", self.size(axis),
                " elements; expected an even number");
    rows = c10::multiply_integers(self.sizes().slice(0, axis));
    columns = c10::multiply_integers(self.sizes().slice(axis)) / 2;
  }
};

void gate(const at::Tensor& self, int64_t dim, Gate gate, bool activates_left, const at::Tensor& out,
          const at::Tensor& activated) {
  const at::Tensor x = dense(self);
  const Result y(out);
  const std::optional<Result> second =
      activated.defined() ? std::optional<Result>(std::in_place, activated) : std::nullopt;
  const Halves halves(x, dim);
  kernels::gated({kernel_type(x), gate, x.const_data_ptr(), y.data(), second ? second->data() : nullptr,
                  halves.rows, halves.columns, activates_left});
}

void gate_backward(const at::Tensor& gradient, const at::Tensor& self, int64_t dim, Gate gate,
                   bool activates_left, const at::Tensor& out) {
  const at::Tensor x = dense(self), dy = dense(gradient, self.scalar_type());
  const Result dx(out);
  const Halves halves(x, dim);
  kernels::gated_backward({kernel_type(x), gate, dy.const_data_ptr(), x.const_data_ptr(), dx.data(),
                           halves.rows, halves.columns, activates_left});
}

Gate gelu_of(int64_t approximate) { return approximate == 0 ? Gate::gelu_erf : Gate::gelu_tanh; }

/// The dimensions before the last, right-aligned in three, those of size 1 in front.
struct RowGrid {
  int64_t sizes[3] = {1, 1, 1};

  explicit RowGrid(const at::Tensor& x) {
    TORCH_CHECK(x.dim() >= 1 && x.dim() <= 4, "expected 1 to 4 dimensions, got ", x.dim());
    for (int64_t d = 0; d < x.dim() - 1; ++d) sizes[3 - (x.dim() - 1) + d] = x.size(d);
  }
  /// Strides of a tensor that is broadcast to the grid.
  void strides(const at::Tensor& t, int64_t (&result)[3]) const {
    for (int64_t d = 0; d < 3; ++d) {
      const int64_t axis = d - 3 + t.dim() - 1;
      result[d] = axis < 0 || t.size(axis) == 1 ? 0 : t.stride(axis);
      TORCH_CHECK(axis < 0 || t.size(axis) == 1 || t.size(axis) == sizes[d], "a tensor of shape ", t.sizes(),
                  " cannot be broadcast over rows of [", sizes[0], ", ", sizes[1], ", ", sizes[2], "]");
    }
  }
};

at::Tensor last_contiguous(const at::Tensor& t) {
  return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous();
}

/// `out` may be `x`.
void rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved,
            bool transposed, const at::Tensor& out) {
  TORCH_CHECK(x.size(-1) % 2 == 0 && cos.size(-1) == x.size(-1) && sin.sizes() == cos.sizes(),
              "rotary embedding: x is ", x.sizes(), ", cos ", cos.sizes(), ", sin ", sin.sizes(),
              "; expected an even last dimension that all share, and cos and sin of one shape");
  const at::Tensor source = last_contiguous(x);
  const at::Tensor cosines = dense(cos, x.scalar_type()), sines = dense(sin, x.scalar_type());
  const at::Tensor target = out.stride(-1) == 1 ? out : at::empty(out.sizes(), out.options());
  const RowGrid grid(x);
  kernels::Rotary call{};
  call.type = kernel_type(x);
  call.x = source.const_data_ptr();
  call.cos = cosines.const_data_ptr();
  call.sin = sines.const_data_ptr();
  call.y = target.mutable_data_ptr();
  std::copy_n(grid.sizes, 3, call.sizes);
  grid.strides(source, call.x_strides);
  grid.strides(cosines, call.table_strides);
  grid.strides(target, call.y_strides);
  call.columns = x.size(-1);
  call.interleaved = interleaved;
  call.transposed = transposed;
  kernels::rotary(call);
  if (!target.is_same(out)) out.copy_(target);
}

/// (-second half, first half), or the same of pairs.
at::Tensor rotated(const at::Tensor& x, bool interleaved) {
  if (interleaved) {
    const auto pairs = x.unflatten(-1, {-1, 2});
    return at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
  }
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

}  // namespace

void SwiGlu(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  gate(self, dim, Gate::silu, /*activates_left=*/true, out, {});
}

void SwiGluGrad(const at::Tensor& gradOut, const at::Tensor& self, int64_t dim, at::Tensor& out) {
  gate_backward(gradOut, self, dim, Gate::silu, /*activates_left=*/true, out);
}

void GeGluV3(const at::Tensor& self, int64_t dim, int64_t approximate, bool activateLeft, at::Tensor& out,
             at::Tensor& outGelu) {
  gate(self, dim, gelu_of(approximate), activateLeft, out, outGelu);
}

void GeGluV3Backward(const at::Tensor& gradOutput, const at::Tensor& self, const at::Tensor&, int64_t dim,
                     int64_t approximate, bool activateLeft, at::Tensor& gradInput) {
  gate_backward(gradOutput, self, dim, gelu_of(approximate), activateLeft, gradInput);
}

void GeluMul(const at::Tensor& input, std::string_view approximate, at::Tensor& out) {
  gate(input, -1, approximate == "tanh" ? Gate::gelu_tanh : Gate::gelu_erf, /*activates_left=*/true, out, {});
}

void FastGeluBackward(const at::Tensor& gradOutput, const at::Tensor& self, at::Tensor& gradInput) {
  const auto x = self.to(at::kFloat);
  const auto s = at::sigmoid(x * 1.702);
  gradInput.copy_(gradOutput * (s + x * 1.702 * s * (1 - s)));
}

void ScaledMaskedSoftmax(const at::Tensor& x, const at::Tensor& mask, double scale, bool fixedTriuMask,
                         at::Tensor& y) {
  const at::Tensor source = dense(x), hidden = dense(mask);
  const Result result(y);
  const RowGrid grid(x);
  TORCH_CHECK(hidden.size(-1) == x.size(-1), "mask has ", hidden.size(-1), " columns and x ", x.size(-1));
  kernels::MaskedSoftmax call{};
  call.type = kernel_type(x);
  call.x = source.const_data_ptr();
  call.mask = fixedTriuMask ? nullptr : hidden.const_data_ptr<bool>();
  call.y = result.data();
  std::copy_n(grid.sizes, 3, call.sizes);
  if (!fixedTriuMask) grid.strides(hidden, call.mask_strides);
  call.columns = x.size(-1);
  call.scale = static_cast<float>(scale);
  call.causal = fixedTriuMask;
  if (call.columns > 0) kernels::masked_softmax(call);
}

void ScaledMaskedSoftmaxBackward(const at::Tensor& yGrad, const at::Tensor& y, const at::Tensor& mask,
                                 double scale, bool fixedTriuMask, at::Tensor& xGrad) {
  auto gradient = at::_softmax_backward_data(yGrad, y, -1, y.scalar_type()).mul_(scale);
  const auto hidden = fixedTriuMask ? at::ones({y.size(-2), y.size(-1)}, at::kBool).triu_(1) : mask;
  xGrad.copy_(gradient.masked_fill_(hidden, 0));
}

void RotaryPositionEmbedding(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t mode,
                             at::Tensor& out) {
  rotate(x, cos, sin, mode == 1, /*transposed=*/false, out);
}

void RotaryPositionEmbeddingGrad(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin,
                                 const std::optional<at::Tensor>& x, int64_t mode, at::Tensor& dx,
                                 const std::optional<at::Tensor>& dcos,
                                 const std::optional<at::Tensor>& dsin) {
  rotate(dy, cos, sin, mode == 1, /*transposed=*/true, dx);
  if (!x.has_value()) return;
  const auto gradient = dy.to(at::kFloat), value = x->to(at::kFloat);
  if (dcos.has_value()) dcos->copy_((gradient * value).sum_to_size(cos.sizes()));
  if (dsin.has_value()) dsin->copy_((gradient * rotated(value, mode == 1)).sum_to_size(sin.sizes()));
}

void ApplyRotaryPosEmbV2(at::Tensor& query, at::Tensor& key, const at::Tensor& cos, const at::Tensor& sin,
                         int64_t, std::string_view rotaryMode) {
  TORCH_CHECK(rotaryMode == "half" || rotaryMode == "interleave", "rotaryMode is '", rotaryMode,
              "'; cann_host has half and interleave");
  for (const auto* t : {&query, &key}) {
    rotate(*t, cos, sin, rotaryMode == "interleave", /*transposed=*/false, *t);
  }
}

void InterleaveRope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, at::Tensor& out) {
  const auto halves = x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2);
  rotate(halves, cos, sin, /*interleaved=*/false, /*transposed=*/false, out);
}

void MaskedSoftmaxWithRelPosBias(const at::Tensor& x, const std::optional<at::Tensor>& attenMaskOptional,
                                 const at::Tensor& relativePosBias, double scaleValue, int64_t,
                                 at::Tensor& out) {
  const int64_t heads = x.size(-3), rows = x.size(-2), columns = x.size(-1);
  const int64_t windows = attenMaskOptional.has_value() ? attenMaskOptional->numel() / (rows * columns) : 1;
  auto scores = x.to(at::kFloat).reshape({-1, windows, heads, rows, columns}) * scaleValue;
  if (attenMaskOptional.has_value()) {
    scores = scores + attenMaskOptional->to(at::kFloat).reshape({1, windows, 1, rows, columns});
  }
  scores = scores + relativePosBias.to(at::kFloat).reshape({1, 1, heads, rows, columns});
  out.copy_(scores.softmax(-1).view(out.sizes()));
}

}  // namespace cann_host::host
