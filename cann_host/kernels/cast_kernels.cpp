// Conversions between element types, and fills. Compiled once per instruction set.

#include "cann_host/kernels/map.h"
#include "cann_host/kernels/pointwise_kernels.h"

namespace cann_host::kernels {
namespace {

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (std::is_same_v<To, uint8_t> && std::is_floating_point_v<From>) {
    return static_cast<uint8_t>(static_cast<int32_t>(value));  // negative numbers wrap, as in ATen
  } else {
    return static_cast<To>(value);
  }
}

/// A plain loop, which the compiler vectorises.
template <class From, class To>
void convert_each(const From* from, To* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
}

template <class T>
constexpr bool is_float_in_registers = std::is_same_v<Compute<T>, float>;

/// Calls body(first, count) for pieces of [begin, end) small enough for a buffer on the stack.
constexpr int64_t buffer_size = 256;
template <class Body>
void for_each_buffer(int64_t begin, int64_t end, Body body) {
  for (int64_t first = begin; first < end; first += buffer_size) {
    body(first, end - first < buffer_size ? end - first : buffer_size);
  }
}

template <class From, class To>
void map_floats(const From* from, To* to, int64_t n, bool streaming) {
  map<step<To>>(to, n, streaming, [](auto x) { return pack<To>(x); }, TensorOperand<From>{from});
}

/// 16-bit floats go through float.
template <class From, class To>
void cast(const Operands& operands, int64_t begin, int64_t end) {
  const From* from = static_cast<const From*>(operands.a);
  To* to = static_cast<To*>(operands.out);
  if constexpr (is_float_in_registers<From> && is_float_in_registers<To>) {
    map_floats(from + begin, to + begin, end - begin, operands.streaming);
  } else if constexpr (is_half_width_float<From>) {
    for_each_buffer(begin, end, [&](int64_t first, int64_t count) {
      float buffer[buffer_size];
      map_floats(from + first, buffer, count, false);
      convert_each(buffer, to + first, count);
    });
  } else if constexpr (is_half_width_float<To>) {
    for_each_buffer(begin, end, [&](int64_t first, int64_t count) {
      float buffer[buffer_size];
      convert_each(from + first, buffer, count);
      map_floats(buffer, to + first, count, false);
    });
  } else {
    convert_each(from + begin, to + begin, end - begin);
  }
}

using CastTypes = TypeList<float, Half, BFloat16, double, int32_t, int64_t, uint8_t, bool>;

template <class From>
constexpr ByType<PointwiseKernel> cast_from =
    by_type<PointwiseKernel>(CastTypes{}, []<class To> { return &cast<From, To>; });

template <class T>
void fill(const Operands& operands, int64_t begin, int64_t end) {
  constexpr int lanes = register_bytes / static_cast<int>(sizeof(T));
  const T value = scalar_as<T>(operands.scalar);
  T repeated[lanes];
  for (T& element : repeated) element = value;
  const auto vector = load_vector<Vec<uint8_t>>(repeated);
  map<lanes>(static_cast<T*>(operands.out) + begin, end - begin, operands.streaming, [=] { return vector; });
}

}  // namespace

namespace CANN_HOST_ISA {

extern const CastKernels cast_kernels = {
    .cast = by_type<const ByType<PointwiseKernel>*>(CastTypes{}, []<class From> { return &cast_from<From>; }),
    .fill = by_type<PointwiseKernel>(AllTypes{}, []<class T> { return &fill<T>; }),
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
