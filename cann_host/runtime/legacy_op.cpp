// The legacy operator interface (aclop): descriptors in full, and the one operator that clients cannot do
// without.
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "memory.h"
#include "stream.h"

struct aclDataBuffer {
  void* data;
  size_t size;
};

struct aclTensorDesc {
  aclDataType type;
  std::vector<int64_t> dims;
  aclFormat format;
  std::string name;
  aclMemType place = ACL_MEMTYPE_DEVICE;
  std::vector<char> constant;
};

struct aclopAttr {
  using Value = std::variant<bool, int64_t, float, std::string, aclDataType, std::vector<uint8_t>,
                             std::vector<int64_t>, std::vector<float>, std::vector<std::vector<int64_t>>>;
  std::map<std::string, Value> values;
};

namespace cann_host {
namespace {

class CopyBufferTask : public Task {
 public:
  CopyBufferTask(const aclDataBuffer& from, const aclDataBuffer& to) : from_(from), to_(to) {}
  aclError run() noexcept override {
    std::memmove(to_.data, from_.data, from_.size);
    return ACL_SUCCESS;
  }
  std::string describe() const override {
    return "aclop Identity of " + std::to_string(from_.size) + " bytes";
  }

 private:
  aclDataBuffer from_, to_;
};

aclError execute(const char* type, int inputs, const aclDataBuffer* const* in, int outputs,
                 aclDataBuffer* const* out, aclrtStream stream) {
  require_pointer(type, "opType");
  if (std::string(type) != "Identity") {
    refuse(ACL_ERROR_OP_NOT_FOUND,
           "the legacy operator %s is not implemented: cann_host has the aclnn operators and Identity", type);
  }
  if (inputs != 1 || outputs != 1) refuse(ACL_ERROR_INVALID_PARAM, "Identity has one input and one output");
  require_pointer(in, "inputs");
  require_pointer(out, "outputs");
  require_pointer(in[0], "inputs[0]");
  require_pointer(out[0], "outputs[0]");
  if (in[0]->size > out[0]->size) {
    refuse(ACL_ERROR_INVALID_PARAM, "the input has %zu bytes, the output %zu", in[0]->size, out[0]->size);
  }
  require_device_memory("inputs[0]", in[0]->data, in[0]->size);
  require_device_memory("outputs[0]", out[0]->data, in[0]->size);
  return stream_of(stream).submit(std::make_unique<CopyBufferTask>(*in[0], *out[0]));
}

aclError set_attribute(const char* function, aclopAttr* attr, const char* name, aclopAttr::Value value) {
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
  return new aclTensorDesc{type, std::vector<int64_t>(dims, dims + count), format, {}};
}

void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc ? desc->type : ACL_DT_UNDEFINED; }
aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) {
  return desc ? desc->format : ACL_FORMAT_UNDEFINED;
}
size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc ? desc->dims.size() : 0; }
int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index) {
  return desc && index < desc->dims.size() ? desc->dims[index] : -1;
}
const char* aclGetTensorDescName(aclTensorDesc* desc) { return desc ? desc->name.c_str() : ""; }

aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    require_pointer(size, "dimSize");
    if (index >= desc->dims.size()) {
      refuse(ACL_ERROR_INVALID_PARAM, "index=%zu: the tensor has %zu dimensions", index, desc->dims.size());
    }
    *size = desc->dims[index];
  });
}

void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  if (desc && name) desc->name = name;
}

aclError aclSetTensorFormat(aclTensorDesc* desc, aclFormat format) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    desc->format = format;
  });
}

aclError aclSetTensorShape(aclTensorDesc* desc, int count, const int64_t* dims) {
  return entry(__func__, [&] {
    require_pointer(desc, "desc");
    if (count < 0) refuse(ACL_ERROR_INVALID_PARAM, "numDims=%d: expected 0 or more", count);
    if (count) require_pointer(dims, "dims");
    desc->dims.assign(dims, dims + count);
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
    desc->constant.assign(bytes, bytes + length);
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
    for (int i = 0; i < count; ++i) lists.emplace_back(values[i], values[i] + counts[i]);
    return set_attribute("aclopSetAttrListListInt", attr, name, std::move(lists));
  });
}

aclError aclopCompileAndExecute(const char* type, int inputs, const aclTensorDesc* const*,
                                const aclDataBuffer* const in[], int outputs, const aclTensorDesc* const*,
                                aclDataBuffer* const out[], const aclopAttr*, aclopEngineType,
                                aclopCompileType, const char*, aclrtStream stream) {
  return entry(__func__, [&] { return execute(type, inputs, in, outputs, out, stream); });
}

aclError aclopCompileAndExecuteV2(const char* type, int inputs, aclTensorDesc**, aclDataBuffer* in[],
                                  int outputs, aclTensorDesc**, aclDataBuffer* out[], aclopAttr*,
                                  aclopEngineType, aclopCompileType, const char*, aclrtStream stream) {
  return entry(__func__, [&] { return execute(type, inputs, in, outputs, out, stream); });
}
