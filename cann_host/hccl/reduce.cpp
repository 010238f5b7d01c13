#include "reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "cann_host/opapi/number_formats.h"
#include "error.h"

namespace cann_host::hccl {
namespace {

struct Half {
  using Wide = float;
  uint16_t bits;
  float widen() const { return float16_to_float(bits); }
  static Half narrow(float value) {
    const uint32_t b = std::bit_cast<uint32_t>(value);
    const uint32_t sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
    if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
    if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to 65536 or more
    if (magnitude < 0x38800000) {  // denormal: a multiple of 2^-24, rounded by the addition
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000))};
    }
    const uint32_t even = magnitude >> 13 & 1;
    return {static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + even) >> 13)};
  }
};

struct BFloat16 {
  using Wide = float;
  uint16_t bits;
  float widen() const { return bfloat16_to_float(bits); }
  static BFloat16 narrow(float value) {
    const uint32_t b = std::bit_cast<uint32_t>(value);
    if (value != value) return {static_cast<uint16_t>(b >> 16 | 0x40)};
    return {static_cast<uint16_t>((b + 0x7fff + (b >> 16 & 1)) >> 16)};
  }
};

template <class T>
struct Plain {
  using Wide = T;
  T value;
  T widen() const { return value; }
  static Plain narrow(T value) { return {value}; }
};

template <HcclReduceOp op, class T>
T combine(T a, T b) {
  if constexpr (op == HCCL_REDUCE_SUM) return static_cast<T>(a + b);
  if constexpr (op == HCCL_REDUCE_PROD) return static_cast<T>(a * b);
  // A NaN stays.
  if constexpr (op == HCCL_REDUCE_MAX) return a != a || a > b ? a : b;
  if constexpr (op == HCCL_REDUCE_MIN) return a != a || a < b ? a : b;
}

template <class T, HcclReduceOp op>
void reduce(void* out, const std::function<const std::byte*(uint32_t)>& source, uint32_t ranks,
            size_t count) {
  using Wide = typename T::Wide;
  constexpr size_t block = 512;
  Wide sum[block];
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t n = std::min(block, count - begin);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const T* values = reinterpret_cast<const T*>(source(rank)) + begin;
      for (size_t i = 0; i < n; ++i) {
        sum[i] = rank == 0 ? values[i].widen() : combine<op>(sum[i], values[i].widen());
      }
    }
    for (size_t i = 0; i < n; ++i) static_cast<T*>(out)[begin + i] = T::narrow(sum[i]);
  }
}

template <class T>
Reduce for_type(HcclReduceOp op) {
  switch (op) {
    case HCCL_REDUCE_SUM:
      return reduce<T, HCCL_REDUCE_SUM>;
    case HCCL_REDUCE_PROD:
      return reduce<T, HCCL_REDUCE_PROD>;
    case HCCL_REDUCE_MAX:
      return reduce<T, HCCL_REDUCE_MAX>;
    case HCCL_REDUCE_MIN:
      return reduce<T, HCCL_REDUCE_MIN>;
  }
  refuse(HCCL_E_PARA, "op=" + std::to_string(op) + " is not a reduction");
}

}  // namespace

size_t size_of(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
    case HCCL_DATA_TYPE_HIF8:
    case HCCL_DATA_TYPE_FP8E4M3:
    case HCCL_DATA_TYPE_FP8E5M2:
    case HCCL_DATA_TYPE_FP8E8M0:
      return 1;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16:
      return 2;
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_UINT32:
    case HCCL_DATA_TYPE_FP32:
      return 4;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64:
      return 8;
    case HCCL_DATA_TYPE_INT128:
      return 16;
  }
  refuse(HCCL_E_PARA, "dataType=" + std::to_string(type) + " is not a type of HCCL");
}

Reduce reduction(HcclDataType type, HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
      return for_type<Plain<int8_t>>(op);
    case HCCL_DATA_TYPE_UINT8:
      return for_type<Plain<uint8_t>>(op);
    case HCCL_DATA_TYPE_INT16:
      return for_type<Plain<int16_t>>(op);
    case HCCL_DATA_TYPE_INT32:
      return for_type<Plain<int32_t>>(op);
    case HCCL_DATA_TYPE_INT64:
      return for_type<Plain<int64_t>>(op);
    case HCCL_DATA_TYPE_UINT64:
      return for_type<Plain<uint64_t>>(op);
    case HCCL_DATA_TYPE_FP32:
      return for_type<Plain<float>>(op);
    case HCCL_DATA_TYPE_FP64:
      return for_type<Plain<double>>(op);
    case HCCL_DATA_TYPE_FP16:
      return for_type<Half>(op);
    case HCCL_DATA_TYPE_BFP16:
      return for_type<BFloat16>(op);
    default:
      size_of(type);
      refuse(HCCL_E_NOT_SUPPORT, "dataType=" + std::to_string(type) + " cannot be reduced");
  }
}

}  // namespace cann_host::hccl
