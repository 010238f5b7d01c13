// What a deformable convolution reads: the input at points between pixels, as an image in which the taps of
// one output are neighbours. Images are [N, H, W, C]; offsets [N, H, W, (x, y, mask) * groups * taps].
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Sizes = std::vector<int64_t>;

constexpr int64_t bilinear = 0, zeros = 0;

struct Sampling {
  int64_t n, h, w, c, rows, columns, groups, kh, kw, planes;
  at::Tensor image;    // [n * groups, channels of a group, h, w]
  at::Tensor offsets;  // [n, planes, groups, kh, kw, rows, columns]
  at::Tensor grid;     // [n * groups, kh * kw * rows, columns, 2], pixels in -1 ... 1

  Sampling(const Arguments& a, const at::Tensor& x, const at::Tensor& off) {
    TORCH_CHECK(x.dim() == 4 && off.dim() == 4, "X and offsets are [N, H, W, C]");
    const auto kernel = list(a, "ksize", 2), stride = list(a, "strides", 4), pads = list(a, "pads", 4),
               dilation = list(a, "dilations", 4);
    groups = a.attribute<int64_t>("deformable_groups", 1);
    planes = a.attribute<bool>("modulated", true) ? 3 : 2;
    n = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3);
    kh = kernel[0], kw = kernel[1], rows = off.size(1), columns = off.size(2);
    TORCH_CHECK(groups > 0 && c % groups == 0 && off.size(3) == planes * groups * kh * kw, "offsets have ",
                off.size(3), " channels, ", planes, " * ", groups, " groups * ", kh * kw,
                " taps were expected");
    image = x.permute({0, 3, 1, 2}).reshape({n * groups, c / groups, h, w});
    offsets = off.permute({0, 3, 1, 2}).reshape({n, planes, groups, kh, kw, rows, columns});
    const auto across = points(columns, stride[2], pads[2]) + points(kw, dilation[2], 0).view({kw, 1, 1});
    const auto down =
        points(rows, stride[1], pads[0]).view({rows, 1}) + points(kh, dilation[1], 0).view({kh, 1, 1, 1});
    grid = at::stack({scaled(offsets.select(1, 0) + across, w), scaled(offsets.select(1, 1) + down, h)}, -1)
               .reshape({n * groups, kh * kw * rows, columns, 2});
  }

  at::Tensor read() const { return at::grid_sampler_2d(image, grid, bilinear, zeros, false); }

  /// 1 where offsets have no mask; [n * groups, 1, kh * kw * rows, columns].
  at::Tensor mask() const {
    if (planes == 2) return at::ones({1}, offsets.options());
    return offsets.select(1, 2).reshape({n * groups, 1, kh * kw * rows, columns});
  }

  /// From [n * groups, channels, kh * kw * rows, columns] to [n, rows * kh, columns * kw, c], and back.
  at::Tensor to_image(const at::Tensor& values) const {
    return values.reshape({n, c, kh, kw, rows, columns})
        .permute({0, 4, 2, 5, 3, 1})
        .reshape({n, rows * kh, columns * kw, c});
  }
  at::Tensor from_image(const at::Tensor& values) const {
    return values.reshape({n, rows, kh, columns, kw, c})
        .permute({0, 5, 2, 4, 1, 3})
        .reshape({n * groups, c / groups, kh * kw * rows, columns});
  }

 private:
  static Sizes list(const Arguments& a, const char* name, size_t count) {
    auto values = a.attribute<Sizes>(name);
    TORCH_CHECK(values.size() == count, name, " has ", values.size(), " numbers, ", count, " were expected");
    return values;
  }
  static at::Tensor points(int64_t count, int64_t step, int64_t before) {
    return at::arange(count, at::kFloat) * step - before;
  }
  static at::Tensor scaled(const at::Tensor& pixel, int64_t size) { return (2 * pixel + 1) / size - 1; }
};

void forward(const Arguments& a) {
  const Sampling s(a, a.wide(0), a.wide(1));
  a.set(0, s.to_image(s.read() * s.mask()));
}

/// Inputs: gradient, input, offsets.
void backward(const Arguments& a) {
  const Sampling s(a, a.wide(1), a.wide(2));
  const auto grad = s.from_image(a.wide(0));
  const auto [image, grid] =
      at::grid_sampler_2d_backward(grad * s.mask(), s.image, s.grid, bilinear, zeros, false, {true, true});
  const auto of_point = grid.reshape({s.n, s.groups, s.kh, s.kw, s.rows, s.columns, 2});
  std::vector<at::Tensor> parts{of_point.select(-1, 0) * (2.0 / s.w), of_point.select(-1, 1) * (2.0 / s.h)};
  if (s.planes == 3) parts.push_back((grad * s.read()).sum(1).reshape(parts[0].sizes()));
  a.set(0, image.reshape({s.n, s.c, s.h, s.w}).permute({0, 2, 3, 1}));
  a.set(1, at::stack(parts, 1).reshape({s.n, -1, s.rows, s.columns}).permute({0, 2, 3, 1}));
}

}  // namespace

Table deformable_operators() { return {{"DeformableOffsets", forward}, {"DeformableOffsetsGrad", backward}}; }

}  // namespace cann_host::legacy
