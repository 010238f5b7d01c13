// Products of an activation and a gate. Compiled once per instruction set.

#include "cann_host/kernels/fused_kernels.h"
#include "cann_host/kernels/math.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

constexpr float sqrt_2_over_pi = 0.797884561f, cubic = 0.044715f;

/// An activation and its derivative at x.
struct Value {
  Vec<float> activation, slope;
};

struct Silu {
  template <class T>
  static Vec<float> at(Vec<float> x) {
    return times_sigmoid<T>(x, x);
  }
  template <class T>
  static Value both(Vec<float> x) {
    const Vec<float> s = sigmoid<T>(x);
    return {x * s, s + x * s * (1 - s)};
  }
};

struct GeluErf {
  template <class T>
  static Vec<float> at(Vec<float> x) {
    return gelu<T>(x);
  }
  template <class T>
  static Value both(Vec<float> x) {
    const Vec<float> cdf = normal_cdf<T>(x);
    return {x * cdf, cdf + x * exp_for<T>(x * x * -0.5f) * 0.398942280f};
  }
};

/// x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2/π) (x + 0.044715 x³).
struct GeluTanh {
  static Vec<float> twice_u(Vec<float> x) { return x * (2 * sqrt_2_over_pi) * (1 + x * x * cubic); }
  template <class T>
  static Vec<float> at(Vec<float> x) {
    return times_sigmoid<T>(x, twice_u(x));
  }
  template <class T>
  static Value both(Vec<float> x) {
    const Vec<float> s = sigmoid<T>(twice_u(x));
    const Vec<float> slope_of_u = (1 + x * x * (3 * cubic)) * (2 * sqrt_2_over_pi);
    return {x * s, s + x * s * (1 - s) * slope_of_u};
  }
};

template <class A, class T>
void gated_rows(const Gated& a, int64_t begin, int64_t end, float*) {
  const int64_t n = a.columns;
  for (int64_t r = begin; r < end; ++r) {
    const T* left = static_cast<const T*>(a.x) + 2 * r * n;
    const T* source = a.activates_left ? left : left + n;
    const T* factor = a.activates_left ? left + n : left;
    T* y = static_cast<T*>(a.y) + r * n;
    T* activated = a.activated == nullptr ? nullptr : static_cast<T*>(a.activated) + r * n;
    each_vector(n, [&](int64_t i, auto place) {
      const Vec<float> value = A::template at<T>(load(source + i, place));
      if (activated != nullptr) store(activated + i, value, place);
      store(y + i, value * load(factor + i, place), place);
    });
  }
}

template <class A, class T>
void gated_backward_rows(const GatedBackward& a, int64_t begin, int64_t end, float*) {
  const int64_t n = a.columns;
  for (int64_t r = begin; r < end; ++r) {
    const T* left = static_cast<const T*>(a.x) + 2 * r * n;
    T* dleft = static_cast<T*>(a.dx) + 2 * r * n;
    const int64_t source = a.activates_left ? 0 : n, factor = n - source;
    const T* dy = static_cast<const T*>(a.dy) + r * n;
    each_vector(n, [&](int64_t i, auto place) {
      const Vec<float> gradient = load(dy + i, place);
      const Value value = A::template both<T>(load(left + source + i, place));
      const Vec<float> other = load(left + factor + i, place);
      store(dleft + factor + i, gradient * value.activation, place);
      store(dleft + source + i, gradient * other * value.slope, place);
    });
  }
}

using Types = TypeList<float, Half, BFloat16>;

template <class A>
constexpr auto forward = by_type<RowKernel<Gated>>(Types{}, []<class T> { return &gated_rows<A, T>; });
template <class A>
constexpr auto backward =
    by_type<RowKernel<GatedBackward>>(Types{}, []<class T> { return &gated_backward_rows<A, T>; });

}  // namespace

namespace CANN_HOST_ISA {

extern const GatedKernels gated_kernels = {
    .forward = {forward<Silu>, forward<GeluErf>, forward<GeluTanh>},
    .backward = {backward<Silu>, backward<GeluErf>, backward<GeluTanh>},
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
