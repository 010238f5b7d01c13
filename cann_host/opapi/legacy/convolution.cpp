// Convolutions. Their lists go over all dimensions of the image, N and C included; pads has a beginning and
// an end for each dimension in space.
#include "cann_host/opapi/legacy/operators.h"

namespace cann_host::legacy {
namespace {

using Sizes = std::vector<int64_t>;

struct Geometry {
  Sizes stride, padding, dilation;
  int64_t groups;

  Geometry(const Arguments& a, size_t space) : groups(a.attribute<int64_t>("groups", 1)) {
    const auto in_space = [&](const char* name) {
      const auto all = a.attribute<Sizes>(name);
      TORCH_CHECK(all.size() == space + 2, name, " has ", all.size(), " numbers, ", space + 2,
                  " were expected");
      return Sizes(all.begin() + 2, all.end());
    };
    stride = in_space("strides");
    dilation = in_space("dilations");
    const auto pads = a.attribute<Sizes>("pads");
    TORCH_CHECK(pads.size() == 2 * space, "pads has ", pads.size(), " numbers, ", 2 * space,
                " were expected");
    for (size_t i = 0; i < space; ++i) {
      TORCH_CHECK(pads[2 * i] == pads[2 * i + 1], "cann_host pads both sides alike; pads = ", pads);
      padding.push_back(pads[2 * i]);
    }
  }
};

void forward(const Arguments& a, size_t space) {
  const Geometry g(a, space);
  a.set(0, at::convolution(a.wide(0), a.wide(1), a.optional(2), g.stride, g.padding, g.dilation, false,
                           Sizes(space, 0), g.groups));
}

/// Inputs: sizes of the input, filter, gradient.
void input_gradient(const Arguments& a, size_t space) {
  const Geometry g(a, space);
  const auto input = at::empty(a.list(0), a.wide(2).options());
  a.set(0, std::get<0>(at::convolution_backward(a.wide(2), input, a.wide(1), at::OptionalIntArrayRef(),
                                                g.stride, g.padding, g.dilation, false, Sizes(space, 0),
                                                g.groups, {true, false, false})));
}

/// Inputs: input, sizes of the filter, gradient.
void filter_gradient(const Arguments& a, size_t space) {
  const Geometry g(a, space);
  const auto filter = at::empty(a.list(1), a.wide(2).options());
  a.set(0, std::get<1>(at::convolution_backward(a.wide(2), a.wide(0), filter, at::OptionalIntArrayRef(),
                                                g.stride, g.padding, g.dilation, false, Sizes(space, 0),
                                                g.groups, {false, true, false})));
}

/// Inputs: sizes of the output, input, filter, bias.
void transposed(const Arguments& a, size_t space) {
  const Geometry g(a, space);
  const auto all = a.attribute<Sizes>("output_padding", Sizes(space + 2, 0));
  const Sizes output_padding(all.end() - static_cast<std::ptrdiff_t>(space), all.end());
  a.set(0, at::convolution(a.wide(1), a.wide(2), a.optional(3), g.stride, g.padding, g.dilation, true,
                           output_padding, g.groups));
}

}  // namespace

Table convolution_operators() {
  return {
      {"Conv2D", [](const Arguments& a) { forward(a, 2); }},
      {"Conv3D", [](const Arguments& a) { forward(a, 3); }},
      {"Conv2DBackpropInput", [](const Arguments& a) { input_gradient(a, 2); }},
      {"Conv3DBackpropInput", [](const Arguments& a) { input_gradient(a, 3); }},
      {"Conv2DBackpropFilter", [](const Arguments& a) { filter_gradient(a, 2); }},
      {"Conv3DBackpropFilter", [](const Arguments& a) { filter_gradient(a, 3); }},
      {"Conv2DTranspose", [](const Arguments& a) { transposed(a, 2); }},
      {"Conv3DTranspose", [](const Arguments& a) { transposed(a, 3); }},
  };
}

}  // namespace cann_host::legacy
