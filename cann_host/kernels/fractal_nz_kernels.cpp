// Products of few rows with a matrix in FRACTAL_NZ, multiplied in float. Compiled once per instruction set.

#include "cann_host/kernels/fractal_nz_panels.h"

namespace cann_host::kernels {
namespace {

template <class T>
struct InFloat {
  using Number = T;
  using X = float;
  using Factor = Vec<float>;
  static constexpr int elements = lanes, deep = 1, parts = block / lanes, turned = lanes;

  static Vec<float> load(const T* weight) { return kernels::load(weight, Full{}); }
  static Vec<float> load_deep(const T* weight) { return load(weight); }
  static Vec<float> load_to_turn(const T* weight, int i) { return load(weight + i * block); }
  static Factor along_inner(const float* x, int part) { return load_vector<Factor>(x + part * lanes); }
  static Factor spread(const float* x) { return splat<Factor>(*x); }
  static Vec<float> multiply_add(Vec<float> sum, Vec<float> weight, Factor factor) {
    return sum + weight * factor;
  }
};

}  // namespace

namespace CANN_HOST_ISA {

extern const NzProducts nz_products = by_type<const NzProduct*>(TypeList<float, Half, BFloat16>{},
                                                                []<class T> { return &product<InFloat<T>>; });

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
