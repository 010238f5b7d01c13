#pragma once

#include <cstdint>

namespace cann_host::kernels {

/// Element types. The values are those of aclDataType, so a cast converts between the two.
enum class DataType : int {
  float32 = 0,
  float16 = 1,
  int8 = 2,
  int32 = 3,
  uint8 = 4,
  int16 = 6,
  int64 = 9,
  float64 = 11,
  boolean = 12,
  bfloat16 = 27,
};

/// Length of a table that is indexed with static_cast<int>(DataType).
constexpr int data_type_count = 28;

/// 16-bit floats as they lie in memory. Arithmetic happens in float (see simd.h).
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class T>
constexpr DataType data_type_of = DataType{-1};
template <>
inline constexpr DataType data_type_of<float> = DataType::float32;
template <>
inline constexpr DataType data_type_of<Half> = DataType::float16;
template <>
inline constexpr DataType data_type_of<BFloat16> = DataType::bfloat16;
template <>
inline constexpr DataType data_type_of<double> = DataType::float64;
template <>
inline constexpr DataType data_type_of<bool> = DataType::boolean;
template <>
inline constexpr DataType data_type_of<int8_t> = DataType::int8;
template <>
inline constexpr DataType data_type_of<uint8_t> = DataType::uint8;
template <>
inline constexpr DataType data_type_of<int16_t> = DataType::int16;
template <>
inline constexpr DataType data_type_of<int32_t> = DataType::int32;
template <>
inline constexpr DataType data_type_of<int64_t> = DataType::int64;

/// Bytes of one element; 0 for a type that no kernel knows.
constexpr int64_t size_of(DataType type) {
  switch (type) {
    case DataType::int8:
    case DataType::uint8:
    case DataType::boolean:
      return 1;
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::int16:
      return 2;
    case DataType::float32:
    case DataType::int32:
      return 4;
    case DataType::int64:
    case DataType::float64:
      return 8;
  }
  return 0;
}

template <class... Ts>
struct TypeList {};
using RealTypes = TypeList<float, Half, BFloat16, double>;
using AllTypes = TypeList<float, Half, BFloat16, double, bool, int8_t, uint8_t, int16_t, int32_t, int64_t>;

/// A table with one entry per element type; types that are not in the list get nullptr.
template <class Function>
struct ByType {
  Function entries[data_type_count] = {};

  constexpr Function operator[](DataType type) const {
    const int index = static_cast<int>(type);
    return index >= 0 && index < data_type_count ? entries[index] : nullptr;
  }
};

/// by_type<Function>(TypeList<float, double>{}, []<class T> { return &kernel<T>; })
template <class Function, class... Ts, class Choose>
constexpr ByType<Function> by_type(TypeList<Ts...>, Choose choose) {
  ByType<Function> table;
  ((table.entries[static_cast<int>(data_type_of<Ts>)] = choose.template operator()<Ts>()), ...);
  return table;
}

}  // namespace cann_host::kernels
