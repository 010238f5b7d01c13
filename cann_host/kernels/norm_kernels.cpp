// RMS norm and layer norm with what stands before them. Compiled once per instruction set.

#include "cann_host/kernels/fused_kernels.h"
#include "cann_host/kernels/row.h"

namespace cann_host::kernels {
namespace {

template <class T>
const T* row_of(const void* data, int64_t row, int64_t columns) {
  return data == nullptr ? nullptr : static_cast<const T*>(data) + row * columns;
}
template <class T>
T* row_of(void* data, int64_t row, int64_t columns) {
  return data == nullptr ? nullptr : static_cast<T*>(data) + row * columns;
}

/// x * x_scale + added.
template <class T, class Place>
Vec<float> combined(const T* x, const T* added, float x_scale, int64_t i, Place place) {
  const Vec<float> v = load(x + i, place);
  return added == nullptr ? v * x_scale : v * x_scale + load(added + i, place);
}

template <class G, class Place>
Vec<float> gain(const G* gamma, float offset, int64_t i, Place place) {
  return gamma == nullptr ? splat<Vec<float>>(1) : load(gamma + i, place) + offset;
}

/// Two passes: the first leaves the row in float in `row`, which stays in the cache for the others.
template <class T, class G>
void norm_rows(const Norm& a, int64_t begin, int64_t end, float* row) {
  const int64_t n = a.columns;
  const auto* gamma = static_cast<const G*>(a.gamma);
  const auto* beta = static_cast<const G*>(a.beta);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row_of<T>(a.x, r, n);
    const T* added = row_of<T>(a.added, r, n);
    T* sum = row_of<T>(a.sum, r, n);
    T* y = row_of<T>(a.y, r, n);
    const auto widen_row = [&](int64_t i, auto place) {
      Vec<float> v = combined(x, added, a.x_scale, i, place);
      if (sum != nullptr) {
        store(sum + i, v, place);
        v = rounded<T>(v);
      }
      store(row + i, v, place);
      return v;
    };
    float mean = 0, squares;
    if (a.centered) {
      mean = sum_over(n, widen_row) / static_cast<float>(n);
      squares = sum_over(n, [&](int64_t i, auto place) {
        const Vec<float> v = load(row + i, place) - mean;
        return v * v;
      });
    } else {
      squares = sum_over(n, [&](int64_t i, auto place) {
        const Vec<float> v = widen_row(i, place);
        return v * v;
      });
    }
    const float rstd = 1 / __builtin_sqrtf(squares / static_cast<float>(n) + a.epsilon);
    if (a.mean != nullptr) a.mean[r] = mean;
    if (a.rstd != nullptr) a.rstd[r] = rstd;
    each_vector(n, [&](int64_t i, auto place) {
      Vec<float> v = (load(row + i, place) - mean) * rstd * gain(gamma, a.gamma_offset, i, place);
      if (beta != nullptr) v += load(beta + i, place);
      store(y + i, v, place);
    });
  }
}

/// `scratch` holds four rows: normalised values, gradients times gamma, and the sums dgamma and dbeta, which
/// the caller set to zero and adds up.
template <class T, class G>
void norm_backward_rows(const NormBackward& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t n = a.columns;
  float *normal = scratch, *weighted = scratch + n, *dgamma = scratch + 2 * n, *dbeta = scratch + 3 * n;
  const auto* gamma = static_cast<const G*>(a.gamma);
  for (int64_t r = begin; r < end; ++r) {
    const T* dy = row_of<T>(a.dy, r, n);
    const T* x = row_of<T>(a.x, r, n);
    const T* added = row_of<T>(a.added, r, n);
    const T* dsum = row_of<T>(a.dsum, r, n);
    T* dx = row_of<T>(a.dx, r, n);
    T* dadded = row_of<T>(a.dadded, r, n);
    const float mean = a.mean == nullptr ? 0 : a.mean[r], rstd = a.rstd[r];
    const float projection = sum_over(n, [&](int64_t i, auto place) {
      const Vec<float> gradient = load(dy + i, place);
      const Vec<float> v = (combined(x, added, a.x_scale, i, place) - mean) * rstd;
      const Vec<float> g = gradient * gain(gamma, a.gamma_offset, i, place);
      store(normal + i, v, place);
      store(weighted + i, g, place);
      if (a.dgamma != nullptr) store(dgamma + i, load(dgamma + i, place) + gradient * v, place);
      if (a.dbeta != nullptr) store(dbeta + i, load(dbeta + i, place) + gradient, place);
      return g * v;
    });
    const float along = projection / static_cast<float>(n);
    float shift = 0;
    if (a.mean != nullptr) {
      const auto gradients = [&](int64_t i, auto place) { return load(weighted + i, place); };
      shift = sum_over(n, gradients) / static_cast<float>(n);
    }
    each_vector(n, [&](int64_t i, auto place) {
      Vec<float> dv = (load(weighted + i, place) - shift - load(normal + i, place) * along) * rstd;
      if (dsum != nullptr) dv += load(dsum + i, place);
      store(dx + i, dv * a.x_scale, place);
      if (dadded != nullptr) store(dadded + i, dv, place);
    });
  }
}

using Types = TypeList<float, Half, BFloat16>;

}  // namespace

namespace CANN_HOST_ISA {

extern const NormKernels norm_kernels = {
    .same = by_type<RowKernel<Norm>>(Types{}, []<class T> { return &norm_rows<T, T>; }),
    .wide = by_type<RowKernel<Norm>>(Types{}, []<class T> { return &norm_rows<T, float>; }),
    .backward_same =
        by_type<RowKernel<NormBackward>>(Types{}, []<class T> { return &norm_backward_rows<T, T>; }),
    .backward_wide =
        by_type<RowKernel<NormBackward>>(Types{}, []<class T> { return &norm_backward_rows<T, float>; }),
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
