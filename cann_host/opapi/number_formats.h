// Reads one number of any aclDataType.
#pragma once

#include <bit>
#include <complex>
#include <cstdint>
#include <cstring>

#include "cann/acl.h"

namespace cann_host {

inline float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float float16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

template <class T>
T load(const void* value) {
  T result;
  std::memcpy(&result, value, sizeof result);
  return result;
}

/// Sets `number` to the value and, for integral types and bool, `integer` to it exactly.
inline void read_number(const void* value, aclDataType dtype, std::complex<double>& number,
                        int64_t& integer) {
  const auto integral = [&](auto exact) {
    integer = static_cast<int64_t>(exact);
    number = static_cast<double>(exact);
  };
  switch (dtype) {
    case ACL_BOOL:
      return integral(load<uint8_t>(value) != 0);
    case ACL_INT8:
      return integral(load<int8_t>(value));
    case ACL_UINT8:
      return integral(load<uint8_t>(value));
    case ACL_INT16:
      return integral(load<int16_t>(value));
    case ACL_UINT16:
      return integral(load<uint16_t>(value));
    case ACL_INT32:
      return integral(load<int32_t>(value));
    case ACL_UINT32:
      return integral(load<uint32_t>(value));
    case ACL_INT64:
      return integral(load<int64_t>(value));
    case ACL_UINT64:
      return integral(load<uint64_t>(value));
    case ACL_FLOAT:
      number = load<float>(value);
      return;
    case ACL_DOUBLE:
      number = load<double>(value);
      return;
    case ACL_FLOAT16:
      number = float16_to_float(load<uint16_t>(value));
      return;
    case ACL_BF16:
      number = bfloat16_to_float(load<uint16_t>(value));
      return;
    case ACL_COMPLEX64:
      number = load<std::complex<float>>(value);
      return;
    case ACL_COMPLEX128:
      number = load<std::complex<double>>(value);
      return;
    case ACL_COMPLEX32: {
      const auto* parts = static_cast<const uint16_t*>(value);
      number = {float16_to_float(parts[0]), float16_to_float(parts[1])};
      return;
    }
    default:
      return;
  }
}

}  // namespace cann_host
