// The legacy operator interface (aclop): descriptors and attributes. The operators are libopapi's.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include "legacy.h"
#include "memory.h"
#include "stream.h"

struct aclDataBuffer {
  void* data;
  size_t size;
};

struct aclTensorDesc {
  cann_host::LegacyTensor tensor;
  std::string name;
  aclMemType place = ACL_MEMTYPE_DEVICE;
};

struct aclopAttr {
  std::map<std::string, cann_host::LegacyAttribute> values;
};

namespace cann_host {
namespace {

std::atomic<LegacyFactory> legacy_factory{nullptr};

/// libopapi lies beside this library. A client that uses no other operators has not loaded it.
LegacyFactory operators() {
  if (LegacyFactory known = legacy_factory.load()) return known;
  Dl_info here{};
  dladdr(reinterpret_cast<void*>(&operators), &here);
  std::string path(here.dli_fname);
  path = path.substr(0, path.rfind('/') + 1) + "libopapi.so";
  if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    refuse(ACL_ERROR_OP_NOT_FOUND, "legacy operators are those of libopapi, which does not load: %s",
           dlerror());
  }
  return legacy_factory.load();
}

LegacyTensor tensor_of(const std::string& argument, const aclTensorDesc* desc, const aclDataBuffer* buffer,
                       bool is_output) {
  require_pointer(desc, (argument + " (descriptor)").c_str());
  LegacyTensor tensor = desc->tensor;
  if (tensor.dtype == ACL_DT_UNDEFINED) return tensor;
  require_pointer(buffer, (argument + " (buffer)").c_str());
  tensor.data = buffer->data;
  tensor.size = buffer->size;
  if (!tensor.size) return tensor;
  if (is_output || (desc->place == ACL_MEMTYPE_DEVICE && tensor.constant.empty())) {
    require_device_memory(argument.c_str(), tensor.data, tensor.size);
    return tensor;
  }
  // The client's memory lives no longer than the call.
  if (tensor.constant.empty() && tensor.size) {
    require_pointer(tensor.data, argument.c_str());
    auto* bytes = static_cast<const char*>(tensor.data);
    tensor.constant.assign(bytes, bytes + tensor.size);
  }
  tensor.size = tensor.constant.size();
  return tensor;
}

std::vector<LegacyTensor> tensors_of(const char* argument, int count, const aclTensorDesc* const* descs,
                                     const aclDataBuffer* const* buffers, bool are_outputs) {
  if (count < 0) refuse(ACL_ERROR_INVALID_PARAM, "%s: there are %d; expected 0 or more", argument, count);
  if (count) require_pointer(descs, argument), require_pointer(buffers, argument);
  std::vector<LegacyTensor> tensors;
  for (int i = 0; i < count; ++i) {
    const std::string name = std::string(argument) + "[" + std::to_string(i) + "]";
    tensors.push_back(tensor_of(name, descs[i], buffers[i], are_outputs));
  }
  return tensors;
}

LegacyCall call_of(const char* type, int inputs, const aclTensorDesc* const* input_descs,
                   const aclDataBuffer* const* in, int outputs, const aclTensorDesc* const* output_descs,
                   const aclDataBuffer* const* out, const aclopAttr* attributes) {
  require_pointer(type, "opType");
  LegacyCall call{type,
                  tensors_of("inputs", inputs, input_descs, in, false),
                  tensors_of("outputs", outputs, output_descs, out, true),
                  {},
                  std::make_shared<std::vector<std::vector<int64_t>>>()};
  if (attributes) call.attributes = attributes->values;
  for (const auto& tensor : call.outputs) call.found->push_back(tensor.dims);
  return call;
}

aclError submit_call(LegacyCall call, aclrtStream stream) {
  const std::string type = call.type;
  auto task = operators()(std::move(call));
  if (!task) {
    refuse(ACL_ERROR_OP_NOT_FOUND, "cann_host has no legacy operator %s; use the aclnn operator",
           type.c_str());
  }
  return stream_of(stream).submit(std::move(task));
}

aclError set_attribute(const char* function, aclopAttr* attr, const char* name, LegacyAttribute value) {
  return entry(function, [&] {
    require_pointer(attr, "attr");
    require_pointer(name, "attrName");
    attr->values[name] = std::move(value);
  });
}

template <class T>
aclError set_list(const char* function, aclopAttr* attr, const char* name, int count, const T* values) {
  return entry(function, [&] {
    if (count < 0) refuse(ACL_ERROR_INVALID_PARAM, "numValues=%d: expected 0 or more", count);
    if (count) require_pointer(values, "values");
    return set_attribute(function, attr, name, std::vector<T>(values, values + count));
  });
}

struct CompileOptions {
  std::mutex mutex;
  std::map<aclCompileOpt, std::string> values{{ACL_OP_JIT_COMPILE, "disable"}};
};

CompileOptions& compile_options() {
  static auto* options = new CompileOptions;
  return *options;
}

}  // namespace

void provide_legacy_operators(LegacyFactory factory) { legacy_factory.store(factory); }

}  // namespace cann_host

using namespace cann_host;

aclError aclSetCompileopt(aclCompileOpt opt, const char* value) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    std::lock_guard lock(compile_options().mutex);
    compile_options().values[opt] = value;
  });
}

size_t aclGetCompileoptSize(aclCompileOpt opt) {
  std::lock_guard lock(compile_options().mutex);
  auto found = compile_options().values.find(opt);
  return found == compile_options().values.end() ? 1 : found->second.size() + 1;
}

aclError aclGetCompileopt(aclCompileOpt opt, char* value, size_t length) {
  return entry(__func__, [&] {
    require_pointer(value, "value");
    std::lock_guard lock(compile_options().mutex);
    const std::string& text = compile_options().values[opt];
    if (length <= text.size())
      refuse(ACL_ERROR_INVALID_PARAM, "length=%zu: the value needs %zu", length, text.size() + 1);
    std::memcpy(value, text.c_str(), text.size() + 1);
  });
}

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }

aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  return entry(__func__, [&] {
    require_pointer(buffer, "dataBuffer");
    delete buffer;
  });
}

void* aclGetDataBufferAddr(const aclDataBuffer* buffer) { return buffer ? buffer->data : nullptr; }
size_t aclGetDataBufferSizeV2(const aclDataBuffer* buffer) { return buffer ? buffer->size : 0; }

aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* dims, aclFormat format) {
  if (count < 0 || (count && !dims)) return nullptr;
  const std::vector<int64_t> sizes(dims, dims + count);
  return new aclTensorDesc{{type, sizes, sizes, format, format, nullptr, 0, {}}, {}};
}

void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
aclDataType aclGetTensorDescType(const aclTensorDesc* desc) {
  return desc ? desc->tensor.dtype : ACL_DT_UNDEFINED;
}
aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) {
  return desc ? desc->tensor.storage_format : ACL_FORMAT_UNDEFINED;
}
size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc ? desc->tensor.dims.size() : 0; }
int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index) {
  return desc && index < desc->tensor.dims.size() ? desc->tensor.dims[index] : -1;
}
const char* aclGetTensorDescName(aclTensorDesc* desc) { return desc ? desc->name.c_str() : ""; }

aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    require_pointer(size, "dimSize");
    if (index >= desc->tensor.dims.size()) {
      refuse(ACL_ERROR_INVALID_PARAM, "index=%zu: the tensor has %zu dimensions", index,
             desc->tensor.dims.size());
    }
    *size = desc->tensor.dims[index];
  });
}

void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  if (desc && name) desc->name = name;
}

aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    desc->tensor.storage_format = format;
  });
}

aclError aclSetTensorShape(aclTensorDesc* desc, int count, const int64_t* dims) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    if (count < 0) refuse(ACL_ERROR_INVALID_PARAM, "numDims=%d: expected 0 or more", count);
    if (count) require_pointer(dims, "dims");
    desc->tensor.storage_dims.assign(dims, dims + count);
  });
}

aclError aclSetTensorPlaceMent(aclTensorDesc* desc, aclMemType place) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    desc->place = place;
  });
}

aclError aclSetTensorConst(aclTensorDesc* desc, void* data, size_t length) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    require_pointer(data, "dataBuffer");
    auto* bytes = static_cast<const char*>(data);
    desc->tensor.constant.assign(bytes, bytes + length);
  });
}

aclopAttr* aclopCreateAttr(void) { return new aclopAttr; }
void aclopDestroyAttr(const aclopAttr* attr) { delete attr; }

aclError aclopSetAttrBool(aclopAttr* attr, const char* name, uint8_t value) {
  return set_attribute(__func__, attr, name, value != 0);
}
aclError aclopSetAttrInt(aclopAttr* attr, const char* name, int64_t value) {
  return set_attribute(__func__, attr, name, value);
}
aclError aclopSetAttrFloat(aclopAttr* attr, const char* name, float value) {
  return set_attribute(__func__, attr, name, value);
}
aclError aclopSetAttrDataType(aclopAttr* attr, const char* name, aclDataType value) {
  return set_attribute(__func__, attr, name, value);
}
aclError aclopSetAttrString(aclopAttr* attr, const char* name, const char* value) {
  return entry(__func__, [&] {
    require_pointer(value, "attrValue");
    return set_attribute("aclopSetAttrString", attr, name, std::string(value));
  });
}
aclError aclopSetAttrListBool(aclopAttr* attr, const char* name, int count, const uint8_t* values) {
  return set_list(__func__, attr, name, count, values);
}
aclError aclopSetAttrListInt(aclopAttr* attr, const char* name, int count, const int64_t* values) {
  return set_list(__func__, attr, name, count, values);
}
aclError aclopSetAttrListFloat(aclopAttr* attr, const char* name, int count, const float* values) {
  return set_list(__func__, attr, name, count, values);
}
aclError aclopSetAttrListListInt(aclopAttr* attr, const char* name, int count, const int* counts,
                                 const int64_t* const values[]) {
  return entry(__func__, [&] {
    if (count < 0) refuse(ACL_ERROR_INVALID_PARAM, "numLists=%d: expected 0 or more", count);
    if (count) require_pointer(counts, "numValues"), require_pointer(values, "values");
    std::vector<std::vector<int64_t>> lists;
    for (int i = 0; i < count; ++i) {
      if (counts[i] < 0)
        refuse(ACL_ERROR_INVALID_PARAM, "numValues[%d]=%d: expected 0 or more", i, counts[i]);
      if (counts[i]) require_pointer(values[i], "values[i]");
      lists.emplace_back(values[i], values[i] + counts[i]);
    }
    return set_attribute("aclopSetAttrListListInt", attr, name, std::move(lists));
  });
}

aclError aclopCompileAndExecute(const char* type, int inputs, const aclTensorDesc* const input_descs[],
                                const aclDataBuffer* const in[], int outputs,
                                const aclTensorDesc* const output_descs[], aclDataBuffer* const out[],
                                const aclopAttr* attr, aclopEngineType, aclopCompileType, const char*,
                                aclrtStream stream) {
  return entry(__func__, [&] {
    return submit_call(call_of(type, inputs, input_descs, in, outputs, output_descs, out, attr), stream);
  });
}

// This one waits, and tells the shapes that the operator found.
aclError aclopCompileAndExecuteV2(const char* type, int inputs, aclTensorDesc* input_descs[],
                                  aclDataBuffer* in[], int outputs, aclTensorDesc* output_descs[],
                                  aclDataBuffer* out[], aclopAttr* attr, aclopEngineType, aclopCompileType,
                                  const char*, aclrtStream stream) {
  return entry(__func__, [&]() -> aclError {
    LegacyCall call = call_of(type, inputs, input_descs, in, outputs, output_descs, out, attr);
    const auto found = call.found;
    if (aclError code = submit_call(std::move(call), stream)) return code;
    stream_of(stream).synchronize({});
    for (size_t i = 0; i < found->size(); ++i) output_descs[i]->tensor.dims = (*found)[i];
    return ACL_SUCCESS;
  });
}
