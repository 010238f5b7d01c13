// Every fused kernel of cann_host on small odd shapes, its results as text: the same program for two
// processors (or instruction sets) must print the same numbers but for roundings. Run by
// tests/cann_host/test_kernels_aarch64.py.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cann_host/kernels/attention.h"
#include "cann_host/kernels/convolution.h"
#include "cann_host/kernels/fractal_nz.h"
#include "cann_host/kernels/fused.h"
#include "cann_host/kernels/matmul.h"
#include "cann_host/kernels/matvec.h"
#include "cann_host/kernels/pointwise.h"
#include "cann_host/kernels/random.h"
#include "cann_host/kernels/transpose.h"

namespace {

namespace k = cann_host::kernels;
using k::DataType;

/// Numbers in [-2, 2) that are the same everywhere.
std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> values(count);
  uint32_t state = seed * 2654435761u + 1;
  for (auto& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / 4194304.0f - 2.0f;
  }
  return values;
}

/// Elements of one type.
struct Tensor {
  DataType type;
  int64_t count;
  std::vector<unsigned char> memory;

  Tensor(DataType type, int64_t count) : type(type), count(count), memory(count * k::size_of(type)) {}
  void* data() { return memory.data(); }
  float* floats() { return reinterpret_cast<float*>(memory.data()); }
};

Tensor filled(DataType type, int64_t count, uint32_t seed) {
  Tensor tensor(type, count);
  const auto values = numbers(count, seed);
  k::cast(DataType::float32, values.data(), type, tensor.data(), count);
  return tensor;
}

/// "name type n numbers …"
void print(const std::string& name, Tensor& tensor) {
  std::vector<float> values(tensor.count);
  k::cast(tensor.type, tensor.data(), DataType::float32, values.data(), tensor.count);
  std::printf("%s %d", name.c_str(), static_cast<int>(tensor.type));
  for (const float value : values) std::printf(" %.9g", static_cast<double>(value));
  std::printf("\n");
}

void element_wise(DataType type) {
  constexpr int64_t n = 37;
  Tensor a = filled(type, n, 1), b = filled(type, n, 2), out(type, n);
  for (int op = 0; op < k::unary_op_count; ++op) {
    if (k::unary(k::UnaryOp{op}, type, a.data(), out.data(), n)) print("unary" + std::to_string(op), out);
  }
  for (int op = 0; op < k::binary_op_count; ++op) {
    if (k::binary(k::BinaryOp{op}, type, a.data(), b.data(), out.data(), n, 0.5)) {
      print("binary" + std::to_string(op), out);
    }
  }
}

void normalization(DataType type, bool centered) {
  constexpr int64_t rows = 3, columns = 37, n = rows * columns;
  Tensor x = filled(type, n, 1), added = filled(type, n, 2), gamma = filled(type, columns, 3),
         beta = filled(type, columns, 4), dy = filled(type, n, 5), sum(type, n), y(type, n), dx(type, n);
  Tensor mean(DataType::float32, rows), rstd(DataType::float32, rows), dgamma(DataType::float32, columns),
      dbeta(DataType::float32, columns);
  float* means = centered ? mean.floats() : nullptr;
  k::norm({.type = type,
           .parameter_type = type,
           .x = x.data(),
           .added = added.data(),
           .gamma = gamma.data(),
           .beta = centered ? beta.data() : nullptr,
           .sum = sum.data(),
           .y = y.data(),
           .mean = means,
           .rstd = rstd.floats(),
           .rows = rows,
           .columns = columns,
           .epsilon = 1e-5f,
           .centered = centered});
  k::norm_backward({.type = type,
                    .parameter_type = type,
                    .dy = dy.data(),
                    .x = x.data(),
                    .added = added.data(),
                    .gamma = gamma.data(),
                    .dsum = nullptr,
                    .mean = means,
                    .rstd = rstd.floats(),
                    .dx = dx.data(),
                    .dadded = nullptr,
                    .dgamma = dgamma.floats(),
                    .dbeta = centered ? dbeta.floats() : nullptr,
                    .rows = rows,
                    .columns = columns});
  const std::string name = centered ? "layer_norm" : "rms_norm";
  print(name, y);
  print(name + ".rstd", rstd);
  print(name + ".dx", dx);
  print(name + ".dgamma", dgamma);
}

void gated(DataType type) {
  constexpr int64_t rows = 3, columns = 19;
  Tensor x = filled(type, 2 * rows * columns, 1), dy = filled(type, rows * columns, 2),
         y(type, rows * columns), dx(type, 2 * rows * columns);
  for (int gate = 0; gate < k::gate_count; ++gate) {
    k::gated({type, k::Gate{gate}, x.data(), y.data(), nullptr, rows, columns, true});
    k::gated_backward({type, k::Gate{gate}, dy.data(), x.data(), dx.data(), rows, columns, true});
    print("gated" + std::to_string(gate), y);
    print("gated.dx" + std::to_string(gate), dx);
  }
}

void rotary(DataType type) {
  constexpr int64_t tokens = 5, columns = 22;
  Tensor x = filled(type, tokens * columns, 1), cos = filled(type, tokens * columns, 2),
         sin = filled(type, tokens * columns, 3), y(type, tokens * columns);
  for (const bool interleaved : {false, true}) {
    k::rotary({type,
               x.data(),
               cos.data(),
               sin.data(),
               y.data(),
               {1, 1, tokens},
               {0, 0, columns},
               {0, 0, columns},
               {0, 0, columns},
               columns,
               interleaved,
               false});
    print(interleaved ? "rotary.interleaved" : "rotary", y);
  }
}

void rows_of_scores(DataType type) {
  constexpr int64_t rows = 4, columns = 37;
  Tensor x = filled(type, rows * columns, 1), y(type, rows * columns), loss(DataType::float32, rows);
  k::masked_softmax({type, x.data(), nullptr, y.data(), {1, 1, rows}, {0, 0, 0}, columns, 0.5f, true});
  print("masked_softmax", y);
  const int64_t target[rows] = {0, 36, -1, 7};
  k::cross_entropy({type, x.data(), target, y.data(), loss.floats(), nullptr, nullptr, rows, columns});
  print("cross_entropy", y);
  print("cross_entropy.loss", loss);
}

void adamw(DataType type) {
  constexpr int64_t n = 37;
  Tensor parameter = filled(type, n, 1), mean = filled(type, n, 2), square = filled(type, n, 3),
         gradient = filled(type, n, 4);
  k::binary(k::BinaryOp::mul, type, square.data(), square.data(), square.data(), n);
  k::adamw({type, type, parameter.data(), mean.data(), square.data(), nullptr, gradient.data(), n, 0.01, 0.9,
            0.99, 1e-8, 0.1, 3, false});
  print("adamw", parameter);
  print("adamw.square", square);
}

/// By a packed matrix and by its transpose, of few rows and of many.
void packed_products(DataType type) {
  constexpr int64_t inner = 70, columns = 37;
  const k::FractalNz layouts[] = {{k::size_of(type), 1, inner, columns},
                                  {k::size_of(type), 1, columns, inner}};
  for (const int64_t rows : {5, 43}) {
    for (const bool transposed : {false, true}) {
      Tensor x = filled(type, rows * inner, 1), weight = filled(type, columns * inner, 2),
             bias = filled(type, columns, 3), y(type, rows * columns),
             packed(type, layouts[transposed].matrix());
      k::pack(layouts[transposed], weight.data(), packed.data());
      if (k::nz_matmul(
              {type, x.data(), packed.data(), bias.data(), y.data(), rows, columns, inner, transposed})) {
        print("nz_matmul", y);
      }
    }
  }
}

void products(DataType type) {
  constexpr int64_t rows = 3, inner = 70, columns = 9;
  Tensor x = filled(type, rows * inner, 1), weight = filled(type, columns * inner, 2),
         bias = filled(type, columns, 3), y(type, rows * columns);
  if (k::matvec({type, type, x.data(), weight.data(), bias.data(), nullptr, nullptr, y.data(), rows, columns,
                 inner, inner})) {
    print("matvec", y);
  }
  Tensor small(DataType::int8, columns * inner), scale = filled(DataType::float32, columns, 4);
  for (int64_t i = 0; i < small.count; ++i) small.memory[i] = static_cast<unsigned char>(i * 37);
  if (k::matvec({type, DataType::int8, x.data(), small.data(), nullptr, scale.floats(), nullptr, y.data(),
                 rows, columns, inner, inner})) {
    print("matvec.int8", y);
  }
  if (k::small_matmul({.type = type,
                       .a = x.data(),
                       .b = weight.data(),
                       .bias = bias.data(),
                       .c = y.data(),
                       .batches = 1,
                       .rows = rows,
                       .inner = inner,
                       .columns = columns,
                       .a_batch = 0,
                       .a_row = inner,
                       .a_inner = 1,
                       .b_batch = 0,
                       .b_inner = 1,
                       .b_column = inner})) {
    print("small_matmul", y);
  }
}

void attention(DataType type) {
  constexpr int64_t batch = 2, heads = 4, key_heads = 2, queries = 2, keys = 21, size = 24;
  Tensor query = filled(type, batch * heads * queries * size, 1),
         key = filled(type, batch * key_heads * keys * size, 2),
         value = filled(type, batch * key_heads * keys * size, 3), out(type, batch * heads * queries * size),
         lse(DataType::float32, batch * heads * queries);
  const int64_t lengths[batch] = {21, 13};
  k::DecodeAttention call{};
  call.type = type;
  call.query = query.data();
  call.key = key.data();
  call.value = value.data();
  call.out = out.data();
  call.log_sum_exp = lse.floats();
  const auto set = [](int64_t (&strides)[3], int64_t heads, int64_t length) {
    strides[0] = heads * length * size;
    strides[1] = length * size;
    strides[2] = size;
  };
  set(call.query_strides, heads, queries);
  set(call.out_strides, heads, queries);
  set(call.key_strides, key_heads, keys);
  set(call.value_strides, key_heads, keys);
  call.batch = batch;
  call.heads = heads;
  call.key_heads = key_heads;
  call.queries = queries;
  call.keys = keys;
  call.head_size = call.value_size = size;
  call.scale = 0.3f;
  call.key_lengths = lengths;
  call.causal = true;
  k::decode_attention(call);
  print("decode_attention", out);
  print("decode_attention.lse", lse);
}

void random(DataType type) {
  Tensor out(type, 37);
  if (k::fill_random(k::Distribution::uniform, type, out.data(), out.count, {7, 3}, 0.0, 1.0)) {
    print("uniform", out);
  }
}

void transposes(DataType type) {
  constexpr int64_t rows = 41, columns = 23;
  Tensor from = filled(type, rows * columns, 1), to(type, rows * columns);
  k::transpose({k::size_of(type), from.data(), columns, to.data(), rows, rows, columns});
  print("transpose", to);
}

/// Which know float32 only.
void convolutions() {
  constexpr int64_t height = 7, width = 9, channels = 21, filters = 37;
  for (const auto kernel : {k::ConvolutionKernel::one_by_one, k::ConvolutionKernel::three_by_three}) {
    const int64_t size = static_cast<int64_t>(kernel), padding = size / 2;
    Tensor x = filled(DataType::float32, height * width * channels, 1),
           weight = filled(DataType::float32, filters * channels * size * size, 2),
           bias = filled(DataType::float32, filters, 3), y(DataType::float32, height * width * filters),
           packed(DataType::float32, k::packed_numbers(kernel, filters, channels));
    for (float* w = weight.floats(); w < weight.floats() + weight.count; ++w) *w /= 16;
    k::pack_convolution(kernel, weight.floats(), filters, channels, packed.floats());
    k::convolve(kernel, {.x = x.floats(),
                         .weight = packed.floats(),
                         .bias = bias.floats(),
                         .residual = nullptr,
                         .y = y.floats(),
                         .batch = 1,
                         .height = height,
                         .width = width,
                         .channels = channels,
                         .filters = filters,
                         .result_height = height,
                         .result_width = width,
                         .padding = {padding, padding},
                         .stride = {1, 1},
                         .relu = true});
    print("convolution." + std::to_string(size), y);
  }
}

}  // namespace

int main() {
  for (const auto type : {DataType::float32, DataType::float16, DataType::bfloat16}) {
    element_wise(type);
    normalization(type, false);
    normalization(type, true);
    gated(type);
    rotary(type);
    rows_of_scores(type);
    adamw(type);
    products(type);
    packed_products(type);
    attention(type);
    random(type);
    transposes(type);
  }
  convolutions();
  return 0;
}
