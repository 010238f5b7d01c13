// The kernels' functions with C linkage and plain argument types, for the tests (ctypes). Not part of the
// product.

#include "cann_host/kernels/isa.h"
#include "cann_host/kernels/random.h"

namespace k = cann_host::kernels;

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

}  // extern "C"
#pragma GCC visibility pop
