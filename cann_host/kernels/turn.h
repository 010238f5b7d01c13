#pragma once

#include "cann_host/kernels/simd.h"

namespace cann_host::kernels {
namespace {

/// Vectors of 32 bits a lane: bits of a vector's index change places with the lower ones of a lane's.
template <class V, int count>
void turn(V (&v)[count]) {
  constexpr int n = sizeof(V) / sizeof(int32_t);
  using Bits = Lanes<int32_t, n>;
  Bits lane;
  for (int i = 0; i < n; ++i) lane[i] = i;
#pragma GCC unroll 4
  for (int step = 1; step < count; step *= 2) {
    const Bits odd = (lane & step) != 0;
    const Bits upper = select(odd, lane - step + n, lane), lower = select(odd, lane + n, lane + step);
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
      if ((i & step) != 0) continue;
      const Bits a = (Bits)v[i], b = (Bits)v[i + step];
      v[i] = (V)__builtin_shuffle(a, b, upper);
      v[i + step] = (V)__builtin_shuffle(a, b, lower);
    }
  }
}

}  // namespace
}  // namespace cann_host::kernels
