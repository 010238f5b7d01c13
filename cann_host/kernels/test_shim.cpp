// The kernels' functions with C linkage and plain argument types, for the tests (ctypes). Not part of the
// product.

#include "cann_host/kernels/attention.h"
#include "cann_host/kernels/convolution.h"
#include "cann_host/kernels/fractal_nz.h"
#include "cann_host/kernels/fused.h"
#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/matvec.h"
#include "cann_host/kernels/pointwise.h"
#include "cann_host/kernels/random.h"
#include "cann_host/kernels/transpose.h"

namespace k = cann_host::kernels;

/// Numbers come as both members of Scalar.
static k::Scalar scalar(double real, int64_t integer) {
  k::Scalar s(real);
  s.integer = integer;
  return s;
}

#pragma GCC visibility push(default)
extern "C" {

int limit_isa(int isa) { return static_cast<int>(k::limit_isa(static_cast<k::Isa>(isa))); }

bool fill_random(int distribution, int type, void* out, int64_t n, uint64_t seed, uint64_t offset, double a,
                 double b) {
  return k::fill_random(k::Distribution{distribution}, k::DataType{type}, out, n, {seed, offset}, a, b);
}

bool bernoulli(int type, void* out, int p_type, const void* p, int64_t n, uint64_t seed, uint64_t offset) {
  return k::bernoulli(k::DataType{type}, out, k::DataType{p_type}, p, n, {seed, offset});
}

bool random_integers(int type, void* out, int64_t n, uint64_t seed, uint64_t offset, int64_t low,
                     uint64_t range) {
  return k::random_integers(k::DataType{type}, out, n, {seed, offset}, low, range);
}

bool random_permutation(int type, void* out, int64_t n, uint64_t seed, uint64_t offset) {
  return k::random_permutation(k::DataType{type}, out, n, {seed, offset});
}

void dropout_mask(uint8_t* mask, int64_t n, uint64_t seed, uint64_t offset, double p) {
  k::dropout_mask(mask, n, {seed, offset}, p);
}

bool dropout_apply(int type, const void* x, const uint8_t* mask, void* out, int64_t n, double p) {
  return k::dropout_apply(k::DataType{type}, x, mask, out, n, p);
}

bool dropout(int type, const void* x, void* out, uint8_t* mask, int64_t n, uint64_t seed, uint64_t offset,
             double p) {
  return k::dropout(k::DataType{type}, x, out, mask, n, {seed, offset}, p);
}

bool binary(int op, int type, const void* a, const void* b, void* out, int64_t n, double alpha,
            int64_t int_alpha) {
  return k::binary(k::BinaryOp{op}, k::DataType{type}, a, b, out, n, scalar(alpha, int_alpha));
}

bool binary_scalar(int op, int type, const void* a, double b, int64_t int_b, void* out, int64_t n,
                   double alpha, int64_t int_alpha) {
  return k::binary_scalar(k::BinaryOp{op}, k::DataType{type}, a, scalar(b, int_b), out, n,
                          scalar(alpha, int_alpha));
}

bool scalar_binary(int op, int type, double a, int64_t int_a, const void* b, void* out, int64_t n,
                   double alpha, int64_t int_alpha) {
  return k::scalar_binary(k::BinaryOp{op}, k::DataType{type}, scalar(a, int_a), b, out, n,
                          scalar(alpha, int_alpha));
}

bool compare(int op, int type, const void* a, const void* b, bool* out, int64_t n) {
  return k::compare(k::CompareOp{op}, k::DataType{type}, a, b, out, n);
}

bool compare_scalar(int op, int type, const void* a, double b, int64_t int_b, bool* out, int64_t n) {
  return k::compare_scalar(k::CompareOp{op}, k::DataType{type}, a, scalar(b, int_b), out, n);
}

bool unary(int op, int type, const void* a, void* out, int64_t n) {
  return k::unary(k::UnaryOp{op}, k::DataType{type}, a, out, n);
}

bool cast(int from, const void* a, int to, void* out, int64_t n) {
  return k::cast(k::DataType{from}, a, k::DataType{to}, out, n);
}

bool fill(int type, double value, int64_t int_value, void* out, int64_t n) {
  return k::fill(k::DataType{type}, scalar(value, int_value), out, n);
}

// Fused kernels take their arguments as the structures that fused.h and its neighbours define.

void norm(const k::Norm* a) { k::norm(*a); }
void norm_backward(const k::NormBackward* a) { k::norm_backward(*a); }
void gated(const k::Gated* a) { k::gated(*a); }
void gated_backward(const k::GatedBackward* a) { k::gated_backward(*a); }
void rotary(const k::Rotary* a) { k::rotary(*a); }
void adamw(const k::AdamW* a) { k::adamw(*a); }
void decode_attention(const k::DecodeAttention* a) { k::decode_attention(*a); }
bool matvec(const k::MatVec* a) { return k::matvec(*a); }
bool nz_matmul(const k::NzMatmul* a) { return k::nz_matmul(*a); }
void pack(int64_t element_bytes, int64_t batches, int64_t rows, int64_t columns, const void* plain,
          void* packed) {
  k::pack({element_bytes, batches, rows, columns}, plain, packed);
}
void unpack(int64_t element_bytes, int64_t batches, int64_t rows, int64_t columns, const void* packed,
            void* plain) {
  k::unpack({element_bytes, batches, rows, columns}, packed, plain);
}

int64_t packed_numbers(int kernel, int64_t filters, int64_t channels) {
  return k::packed_numbers(k::ConvolutionKernel{kernel}, filters, channels);
}
void pack_convolution(int kernel, const float* weight, int64_t filters, int64_t channels, float* packed) {
  k::pack_convolution(k::ConvolutionKernel{kernel}, weight, filters, channels, packed);
}
void transpose(const k::Transpose* a) { k::transpose(*a); }
void convolve(int kernel, const k::Convolution* a) { k::convolve(k::ConvolutionKernel{kernel}, *a); }

}  // extern "C"
#pragma GCC visibility pop
