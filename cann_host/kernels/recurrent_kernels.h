#pragma once

#include "cann_host/kernels/recurrent.h"

namespace cann_host::kernels {

/// What recurrent_kernels.cpp provides for each instruction set, by Recurrence: rows [begin, end).
struct RecurrentKernels {
  void (*forward[recurrence_count])(const RecurrentStep&, int64_t begin, int64_t end);
  void (*backward[recurrence_count])(const RecurrentStepBackward&, int64_t begin, int64_t end);
};

namespace baseline {
extern const RecurrentKernels recurrent_kernels;
}
namespace avx2 {
extern const RecurrentKernels recurrent_kernels;
}
namespace avx512 {
extern const RecurrentKernels recurrent_kernels;
}

}  // namespace cann_host::kernels
