#include "cann_host/opapi/descriptor.h"

#include <array>

#include "cann_host/opapi/number_formats.h"
#include "cann_host/runtime/task.h"

namespace cann_host {
namespace {

struct DtypeFacts {
  aclDataType dtype;
  size_t size;
  const char* name;
};

constexpr DtypeFacts kDtypes[] = {
    {ACL_FLOAT, 4, "float32"},       {ACL_FLOAT16, 2, "float16"},
    {ACL_INT8, 1, "int8"},           {ACL_INT32, 4, "int32"},
    {ACL_UINT8, 1, "uint8"},         {ACL_INT16, 2, "int16"},
    {ACL_UINT16, 2, "uint16"},       {ACL_UINT32, 4, "uint32"},
    {ACL_INT64, 8, "int64"},         {ACL_UINT64, 8, "uint64"},
    {ACL_DOUBLE, 8, "float64"},      {ACL_BOOL, 1, "bool"},
    {ACL_COMPLEX64, 8, "complex64"}, {ACL_COMPLEX128, 16, "complex128"},
    {ACL_BF16, 2, "bfloat16"},       {ACL_COMPLEX32, 4, "complex32"},
};

constexpr size_t kTableSize = 64;

constexpr std::array<DtypeFacts, kTableSize> make_table() {
  std::array<DtypeFacts, kTableSize> table{};
  for (auto& facts : table) facts = {ACL_DT_UNDEFINED, 0, "unknown"};
  for (const auto& facts : kDtypes) table[facts.dtype] = facts;
  return table;
}

constexpr auto kTable = make_table();

const DtypeFacts& facts_of(aclDataType dtype) noexcept {
  static constexpr DtypeFacts kUnknown{ACL_DT_UNDEFINED, 0, "unknown"};
  const auto index = static_cast<size_t>(dtype);
  return index < kTableSize ? kTable[index] : kUnknown;
}

aclError null_given() {
  set_last_error("a descriptor, or where to put what is asked of it, is a null pointer");
  return ACLNN_ERR_PARAM_NULLPTR;
}

/// Destroys the client's reference. Null is an error, as in CANN.
template <class T>
aclError destroy(const T* object) {
  if (object == nullptr) return null_given();
  if (object->release()) delete object;
  return ACL_SUCCESS;
}

template <class Array, class T>
Array* create_array(const T* values, uint64_t count) {
  if (values == nullptr && count != 0) {
    set_last_error("an array of " + std::to_string(count) + " values was created from a null pointer");
    return nullptr;
  }
  auto* array = new Array;
  array->values.assign(values, values + count);
  return array;
}

/// FRACTAL_NZ by itself has blocks of 16 columns, or 32 of one byte; other widths have formats of their own.
aclFormat with_block_columns(aclFormat format, int64_t columns, aclDataType dtype) {
  if (format != ACL_FORMAT_FRACTAL_NZ || columns == (element_size(dtype) == 1 ? 32 : 16)) return format;
  switch (columns) {
    case 2:
      return ACL_FORMAT_FRACTAL_NZ_C0_2;
    case 4:
      return ACL_FORMAT_FRACTAL_NZ_C0_4;
    case 8:
      return ACL_FORMAT_FRACTAL_NZ_C0_8;
    case 16:
      return ACL_FORMAT_FRACTAL_NZ_C0_16;
    default:
      return ACL_FORMAT_FRACTAL_NZ_C0_32;
  }
}

/// A list takes over the client's reference of each element: destroying the list destroys them.
template <class List, class Element>
List* create_list(Element* const* elements, uint64_t count) {
  if (elements == nullptr && count != 0) {
    set_last_error("a list of " + std::to_string(count) + " elements was created from a null pointer");
    return nullptr;
  }
  auto* list = new List;
  list->values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    list->values.emplace_back(elements[i]);
    if (elements[i] != nullptr) elements[i]->release();
  }
  return list;
}

/// The caller frees *values with delete[], as CANN documents.
aclError give_extents(const Extents& extents, int64_t** values, uint64_t* count) {
  *count = extents.size();
  *values = new int64_t[extents.size() + 1];
  std::copy(extents.begin(), extents.end(), *values);
  return ACL_SUCCESS;
}

/// Elements of the storage up to the last one of the view: layouts here are plain, so nothing is kept of what
/// the client said beyond that.
int64_t reach(const aclTensor& tensor) {
  if (tensor.numel() == 0) return tensor.offset;
  int64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) last += (tensor.sizes[i] - 1) * tensor.strides[i];
  return last + 1;
}

template <class Object, class T, class Read>
aclError give(const Object* object, T* result, Read read) {
  if (object == nullptr || result == nullptr) return null_given();
  *result = read(*object);
  return ACL_SUCCESS;
}

template <class Array>
aclError give_size(const Array* array, uint64_t* size) {
  return give(array, size, [](const Array& a) { return a.values.size(); });
}

}  // namespace

size_t element_size(aclDataType dtype) noexcept { return facts_of(dtype).size; }
const char* dtype_name(aclDataType dtype) noexcept { return facts_of(dtype).name; }

}  // namespace cann_host

std::string aclTensor::describe() const {
  std::string text = std::string(cann_host::dtype_name(dtype)) + "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

bool aclScalar::is_integral() const noexcept {
  switch (dtype) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_INT16:
    case ACL_UINT16:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_INT64:
    case ACL_UINT64:
      return true;
    default:
      return false;
  }
}

extern "C" {

aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t rank, aclDataType dtype, const int64_t* strides,
                           int64_t offset, aclFormat format, const int64_t* storage_sizes,
                           uint64_t storage_rank, void* storage) {
  constexpr uint64_t kMaxRank = 64;  // torch's
  if ((sizes == nullptr && rank != 0) || rank > kMaxRank) {
    cann_host::set_last_error("aclCreateTensor: null sizes, or more than " + std::to_string(kMaxRank) +
                              " of them, for a tensor of rank " + std::to_string(rank));
    return nullptr;
  }
  auto* tensor = new aclTensor;
  tensor->sizes.assign(sizes, rank);
  if (strides != nullptr) {
    tensor->strides.assign(strides, rank);
  } else {
    std::vector<int64_t> contiguous(rank);
    int64_t stride = 1;
    for (uint64_t i = rank; i-- > 0; stride *= sizes[i]) contiguous[i] = stride;
    tensor->strides.assign(contiguous.data(), rank);
  }
  tensor->offset = offset;
  tensor->dtype = dtype;
  const int64_t* block_columns = storage_rank == 0 ? nullptr : storage_sizes + storage_rank - 1;
  tensor->format =
      block_columns == nullptr ? format : cann_host::with_block_columns(format, *block_columns, dtype);
  tensor->storage = storage;
  return tensor;
}

aclError aclDestroyTensor(const aclTensor* tensor) { return cann_host::destroy(tensor); }

aclScalar* aclCreateScalar(void* value, aclDataType dtype) {
  using namespace cann_host;
  if (value == nullptr || element_size(dtype) == 0) {
    set_last_error("aclCreateScalar: null value or unknown aclDataType " + std::to_string(dtype));
    return nullptr;
  }
  auto* scalar = new aclScalar;
  scalar->dtype = dtype;
  read_number(value, dtype, scalar->complex, scalar->integer);
  return scalar;
}

aclError aclDestroyScalar(const aclScalar* scalar) { return cann_host::destroy(scalar); }

aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return cann_host::create_array<aclIntArray>(values, count);
}
aclError aclDestroyIntArray(const aclIntArray* array) { return cann_host::destroy(array); }

aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
  return cann_host::create_array<aclFloatArray>(values, count);
}
aclError aclDestroyFloatArray(const aclFloatArray* array) { return cann_host::destroy(array); }

aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
  return cann_host::create_array<aclBoolArray>(values, count);
}
aclError aclDestroyBoolArray(const aclBoolArray* array) { return cann_host::destroy(array); }

aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
  return cann_host::create_list<aclTensorList>(tensors, count);
}
aclError aclDestroyTensorList(const aclTensorList* list) { return cann_host::destroy(list); }

aclScalarList* aclCreateScalarList(const aclScalar* const* scalars, uint64_t count) {
  return cann_host::create_list<aclScalarList>(scalars, count);
}
aclError aclDestroyScalarList(const aclScalarList* list) { return cann_host::destroy(list); }

aclError aclGetViewShape(const aclTensor* tensor, int64_t** sizes, uint64_t* rank) {
  if (tensor == nullptr || sizes == nullptr || rank == nullptr) return cann_host::null_given();
  return cann_host::give_extents(tensor->sizes, sizes, rank);
}
aclError aclGetViewStrides(const aclTensor* tensor, int64_t** strides, uint64_t* rank) {
  if (tensor == nullptr || strides == nullptr || rank == nullptr) return cann_host::null_given();
  return cann_host::give_extents(tensor->strides, strides, rank);
}
aclError aclGetStorageShape(const aclTensor* tensor, int64_t** sizes, uint64_t* rank) {
  if (tensor == nullptr || sizes == nullptr || rank == nullptr) return cann_host::null_given();
  const int64_t elements = cann_host::reach(*tensor);
  return cann_host::give_extents(cann_host::Extents(&elements, 1), sizes, rank);
}
aclError aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return cann_host::give(tensor, offset, [](const aclTensor& t) { return t.offset; });
}
aclError aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return cann_host::give(tensor, format, [](const aclTensor& t) { return t.format; });
}
aclError aclGetDataType(const aclTensor* tensor, aclDataType* dtype) {
  return cann_host::give(tensor, dtype, [](const aclTensor& t) { return t.dtype; });
}
aclError aclGetRawTensorAddr(const aclTensor* tensor, void** address) {
  return cann_host::give(tensor, address, [](const aclTensor& t) { return t.storage; });
}
aclError aclSetRawTensorAddr(aclTensor* tensor, void* address) {
  if (tensor == nullptr) return cann_host::null_given();
  tensor->storage = address;
  return ACL_SUCCESS;
}

aclError aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return cann_host::give_size(array, size);
}
aclError aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return cann_host::give_size(array, size);
}
aclError aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return cann_host::give_size(array, size);
}
aclError aclGetTensorListSize(const aclTensorList* list, uint64_t* size) {
  return cann_host::give_size(list, size);
}
aclError aclGetScalarListSize(const aclScalarList* list, uint64_t* size) {
  return cann_host::give_size(list, size);
}

}  // extern "C"
