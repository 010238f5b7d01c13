// Element-wise operations. Compiled once per instruction set.

#include "cann_host/kernels/pointwise_kernels.h"

#include "cann_host/kernels/map.h"
#include "cann_host/kernels/math.h"

namespace cann_host::kernels {
namespace {

// ---- Binary: how vectors are combined ----

struct Add {
  template <class V>
  V operator()(V a, V b) const {
    return a + b;
  }
};

struct Sub {
  template <class V>
  V operator()(V a, V b) const {
    return a - b;
  }
};

struct Mul {
  template <class V>
  V operator()(V a, V b) const {
    return a * b;
  }
};

struct Div {
  template <class V>
  V operator()(V a, V b) const {
    return a / b;
  }
};

// A comparison with NaN is false. If b is NaN it is chosen because of that, if a is because of the second
// test.
struct Maximum {
  template <class V>
  V operator()(V a, V b) const {
    return select((a > b) | (a != a), a, b);
  }
};

struct Minimum {
  template <class V>
  V operator()(V a, V b) const {
    return select((a < b) | (a != a), a, b);
  }
};

/// Signed integers wrap, so they are computed as unsigned ones; comparisons keep the sign.
template <class Op, class V>
V combine(Op op, V a, V b) {
  constexpr bool wraps = std::is_same_v<Op, Add> || std::is_same_v<Op, Sub> || std::is_same_v<Op, Mul>;
  if constexpr (wraps && std::is_integral_v<ElementOf<V>>) {
    using Unsigned = Vec<std::make_unsigned_t<ElementOf<V>>>;
    return bit_cast<V>(op(bit_cast<Unsigned>(a), bit_cast<Unsigned>(b)));
  } else {
    return op(a, b);
  }
}

template <class T, class A, class B, class F>
void map_binary(const Operands& operands, int64_t begin, int64_t end, const A& a, const B& b, F f) {
  map<step<T>>(
      static_cast<T*>(operands.out) + begin, end - begin, operands.streaming,
      [=](auto x, auto y) { return pack<T>(f(x, y)); }, a, b);
}

template <class T>
TensorOperand<T> tensor(const void* data, int64_t begin) {
  return {static_cast<const T*>(data) + begin};
}

struct TensorTensor {
  template <class T, class F>
  static void run(const Operands& o, int64_t begin, int64_t end, F f) {
    map_binary<T>(o, begin, end, tensor<T>(o.a, begin), tensor<T>(o.b, begin), f);
  }
};

struct TensorScalar {
  template <class T, class F>
  static void run(const Operands& o, int64_t begin, int64_t end, F f) {
    map_binary<T>(o, begin, end, tensor<T>(o.a, begin), ScalarOperand<T>(o.scalar), f);
  }
};

struct ScalarTensor {
  template <class T, class F>
  static void run(const Operands& o, int64_t begin, int64_t end, F f) {
    map_binary<T>(o, begin, end, ScalarOperand<T>(o.scalar), tensor<T>(o.b, begin), f);
  }
};

template <class Shape, class Op, class T>
void binary(const Operands& operands, int64_t begin, int64_t end) {
  Shape::template run<T>(operands, begin, end, [](auto a, auto b) { return combine(Op{}, a, b); });
}

template <class Shape, class T>
void add_scaled(const Operands& operands, int64_t begin, int64_t end) {
  const auto alpha = ScalarOperand<T>(operands.alpha).value;
  Shape::template run<T>(operands, begin, end,
                         [=](auto a, auto b) { return combine(Add{}, a, combine(Mul{}, b, alpha)); });
}

using NumberTypes = TypeList<float, Half, BFloat16, double, int32_t, int64_t>;

template <class Shape, class Op, class Types = NumberTypes>
constexpr ByType<PointwiseKernel> binary_by_type =
    by_type<PointwiseKernel>(Types{}, []<class T> { return &binary<Shape, Op, T>; });

template <class Shape>
constexpr PointwiseKernels::Binary binary_kernels = {
    .op = {binary_by_type<Shape, Add>, binary_by_type<Shape, Sub>, binary_by_type<Shape, Mul>,
           binary_by_type<Shape, Div, RealTypes>, binary_by_type<Shape, Maximum>,
           binary_by_type<Shape, Minimum>},
    .add_scaled = by_type<PointwiseKernel>(NumberTypes{}, []<class T> { return &add_scaled<Shape, T>; }),
};

// ---- Comparisons ----

struct Equal {
  auto operator()(auto a, auto b) const { return a == b; }
};
struct NotEqual {
  auto operator()(auto a, auto b) const { return a != b; }
};
struct Less {
  auto operator()(auto a, auto b) const { return a < b; }
};
struct LessEqual {
  auto operator()(auto a, auto b) const { return a <= b; }
};
struct Greater {
  auto operator()(auto a, auto b) const { return a > b; }
};
struct GreaterEqual {
  auto operator()(auto a, auto b) const { return a >= b; }
};

template <class T, class Op, class B>
void map_compare(const Operands& operands, int64_t begin, int64_t end, const B& b) {
  constexpr int lanes = step<T>;
  map<lanes>(
      static_cast<bool*>(operands.out) + begin, end - begin, /*streaming=*/false,
      [](auto x, auto y) { return __builtin_convertvector(Op{}(x, y) & 1, Lanes<uint8_t, lanes>); },
      tensor<T>(operands.a, begin), b);
}

template <class Op, class T>
void compare(const Operands& operands, int64_t begin, int64_t end) {
  map_compare<T, Op>(operands, begin, end, tensor<T>(operands.b, begin));
}

template <class Op, class T>
void compare_scalar(const Operands& operands, int64_t begin, int64_t end) {
  ScalarOperand<T> b(operands.scalar);
  if constexpr (is_half_width_float<T>) b.value = splat<Vec<float>>(to_float(scalar_as<T>(operands.scalar)));
  map_compare<T, Op>(operands, begin, end, b);
}

using ComparableTypes = TypeList<float, Half, BFloat16, double, int32_t, int64_t, bool, uint8_t>;

template <class Op>
constexpr auto compare_by_type =
    by_type<PointwiseKernel>(ComparableTypes{}, []<class T> { return &compare<Op, T>; });
template <class Op>
constexpr auto compare_scalar_by_type =
    by_type<PointwiseKernel>(ComparableTypes{}, []<class T> { return &compare_scalar<Op, T>; });

// ---- Unary: op<T>(x) on values, for results of type T ----

struct Neg {
  template <class T, class V>
  static V of(V x) {
    return -x;
  }
};

struct Abs {
  template <class T, class V>
  static V of(V x) {
    if constexpr (std::is_integral_v<T>) {
      return select(x < 0, -x, x);
    } else {
      return absolute(x);
    }
  }
};

struct Relu {
  template <class T, class V>
  static V of(V x) {
    return select(x < 0, V{}, x);
  }
};

struct Sqrt {
  template <class T, class V>
  static V of(V x) {
    return sqrt(x);
  }
};

struct Rsqrt {
  template <class T, class V>
  static V of(V x) {
    return 1 / sqrt(x);
  }
};

struct Reciprocal {
  template <class T, class V>
  static V of(V x) {
    return 1 / x;
  }
};

struct Exp {
  template <class T, class V>
  static V of(V x) {
    return exp_for<T>(x);
  }
};

struct Log {
  template <class T, class V>
  static V of(V x) {
    return log(x);
  }
};

struct Tanh {
  template <class T, class V>
  static V of(V x) {
    return tanh<T>(x);
  }
};

struct Sigmoid {
  template <class T, class V>
  static V of(V x) {
    return sigmoid<T>(x);
  }
};

struct Silu {
  template <class T, class V>
  static V of(V x) {
    return times_sigmoid<T>(x, x);
  }
};

struct Erf {
  template <class T, class V>
  static V of(V x) {
    return erf(x);
  }
};

struct GeluErf {
  template <class T, class V>
  static V of(V x) {
    return gelu<T>(x);
  }
};

struct GeluTanh {
  // x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/π) (x + 0.044715 x³)
  template <class T, class V>
  static V of(V x) {
    return times_sigmoid<T>(x, (x * x * 0.044715f + 1) * x * 1.5957691f);
  }
};

struct FastGelu {
  template <class T, class V>
  static V of(V x) {
    return times_sigmoid<T>(x, x * 1.702f);
  }
};

template <class Op, class T>
void unary(const Operands& operands, int64_t begin, int64_t end) {
  map<step<T>>(
      static_cast<T*>(operands.out) + begin, end - begin, operands.streaming,
      [](auto x) { return pack<T>(Op::template of<T>(x)); }, tensor<T>(operands.a, begin));
}

// neg, abs and relu of 16-bit floats need no arithmetic: they work on the bits.

using SignedBits = Vec<int16_t>;

/// The bits of infinity; those of NaN, without sign, are larger.
template <class T>
constexpr int16_t infinity_bits = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;

template <class T>
struct NegBits {
  SignedBits operator()(SignedBits x) const { return x ^ int16_t{-0x8000}; }
};

template <class T>
struct AbsBits {
  SignedBits operator()(SignedBits x) const { return x & int16_t{0x7fff}; }
};

template <class T>
struct ReluBits {
  SignedBits operator()(SignedBits x) const {
    const SignedBits is_nan = (x & int16_t{0x7fff}) > infinity_bits<T>;
    return x & (is_nan | (x >= 0));
  }
};

template <template <class> class Bits, class Op, class T>
void unary_of_bits(const Operands& operands, int64_t begin, int64_t end) {
  if constexpr (is_half_width_float<T>) {
    map<step<int16_t>>(static_cast<int16_t*>(operands.out) + begin, end - begin, operands.streaming,
                       Bits<T>{}, tensor<int16_t>(operands.a, begin));
  } else {
    unary<Op, T>(operands, begin, end);
  }
}

template <template <class> class Bits, class Op>
constexpr auto sign_op_by_type =
    by_type<PointwiseKernel>(NumberTypes{}, []<class T> { return &unary_of_bits<Bits, Op, T>; });

template <class Op, class Types>
constexpr auto unary_by_type = by_type<PointwiseKernel>(Types{}, []<class T> { return &unary<Op, T>; });

using FloatTypes = TypeList<float, Half, BFloat16>;

}  // namespace

namespace CANN_HOST_ISA {

extern const PointwiseKernels pointwise_kernels = {
    .tensor_tensor = binary_kernels<TensorTensor>,
    .tensor_scalar = binary_kernels<TensorScalar>,
    .scalar_tensor = binary_kernels<ScalarTensor>,
    .compare = {compare_by_type<Equal>, compare_by_type<NotEqual>, compare_by_type<Less>,
                compare_by_type<LessEqual>, compare_by_type<Greater>, compare_by_type<GreaterEqual>},
    .compare_scalar = {compare_scalar_by_type<Equal>, compare_scalar_by_type<NotEqual>,
                       compare_scalar_by_type<Less>, compare_scalar_by_type<LessEqual>,
                       compare_scalar_by_type<Greater>, compare_scalar_by_type<GreaterEqual>},
    .unary = {sign_op_by_type<NegBits, Neg>, sign_op_by_type<AbsBits, Abs>, sign_op_by_type<ReluBits, Relu>,
              unary_by_type<Sqrt, RealTypes>, unary_by_type<Rsqrt, RealTypes>,
              unary_by_type<Reciprocal, RealTypes>, unary_by_type<Exp, FloatTypes>,
              unary_by_type<Log, FloatTypes>, unary_by_type<Tanh, FloatTypes>,
              unary_by_type<Sigmoid, FloatTypes>, unary_by_type<Silu, FloatTypes>,
              unary_by_type<Erf, FloatTypes>, unary_by_type<GeluErf, FloatTypes>,
              unary_by_type<GeluTanh, FloatTypes>, unary_by_type<FastGelu, FloatTypes>},
};

}  // namespace CANN_HOST_ISA
}  // namespace cann_host::kernels
