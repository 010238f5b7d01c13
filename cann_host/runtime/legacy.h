// What crosses from the legacy operator interface (aclop, in this library) to its operators (in libopapi,
// which has ATen).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "task.h"

namespace cann_host {

using LegacyAttribute =
    std::variant<bool, int64_t, float, std::string, aclDataType, std::vector<uint8_t>, std::vector<int64_t>,
                 std::vector<float>, std::vector<std::vector<int64_t>>>;

/// A tensor as a client describes it: `dims` in `format` is what the operator works on, `storage_dims` in
/// `storage_format` how it lies in memory.
struct LegacyTensor {
  aclDataType dtype = ACL_DT_UNDEFINED;  // undefined: an optional tensor that was not given
  std::vector<int64_t> dims, storage_dims;
  aclFormat format = ACL_FORMAT_UNDEFINED, storage_format = ACL_FORMAT_UNDEFINED;
  void* data = nullptr;
  size_t size = 0;
  std::vector<char> constant;  // contents of a tensor in host memory, where `data` then points
};

struct LegacyCall {
  std::string type;
  std::vector<LegacyTensor> inputs, outputs;
  std::map<std::string, LegacyAttribute> attributes;
  /// Shapes of the outputs, where the operator may put those that it found.
  std::shared_ptr<std::vector<std::vector<int64_t>>> found;
};

/// Work that does the call; null if there is no such operator.
using LegacyFactory = std::unique_ptr<Task> (*)(LegacyCall call);

#pragma GCC visibility push(default)
/// Called by libopapi when it is loaded.
void provide_legacy_operators(LegacyFactory factory);
#pragma GCC visibility pop

}  // namespace cann_host
