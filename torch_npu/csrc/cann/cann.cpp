#include "torch_npu/csrc/cann/cann.h"

#include <c10/util/Exception.h>
#include <c10/util/env.h>
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

namespace torch_npu::cann {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  fs::path root;
  std::string chosen_by;
};

/// A root whose libraries are open. Refused ones are closed again, as their symbols must not serve the next
/// root.
struct Loaded {
  std::vector<void*> operators;  // searched in this order by find_aclnn
  void* runtime = nullptr;
  std::vector<std::string> paths;
  Api api;

  Loaded() = default;
  Loaded(const Loaded&) = delete;

  void close() {
    for (void* handle : operators) dlclose(handle);
    if (runtime) dlclose(runtime);
  }
};

struct Discovery {
  Info info;
  std::unique_ptr<Loaded> loaded;
};

/// The software CANN lies beside this library: <site-packages>/torch_npu/_C.so and <site-packages>/cann_host.
fs::path bundled_root() {
  Dl_info here;
  if (!dladdr(reinterpret_cast<const void*>(&bundled_root), &here)) return "cann_host";
  return fs::absolute(here.dli_fname).parent_path().parent_path() / "cann_host";
}

std::vector<Candidate> candidates() {
  const std::string choice = c10::utils::get_env("TORCH_NPU_CANN").value_or("auto");
  if (choice == "host") return {{bundled_root(), "TORCH_NPU_CANN"}};
  if (choice != "auto" && !choice.empty()) return {{choice, "TORCH_NPU_CANN"}};
  std::vector<Candidate> result;
  for (const char* name : {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}) {
    const auto root = c10::utils::get_env(name);
    const bool seen =
        std::any_of(result.begin(), result.end(), [&](auto& c) { return c.root == root.value_or(""); });
    if (root && !root->empty() && !seen) result.push_back({*root, name});
  }
  result.push_back({bundled_root(), "bundled"});
  return result;
}

void* open_library(const fs::path& path, std::string& why_not) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) why_not = dlerror();
  return handle;
}

/// libopapi.so holds the operators; newer CANNs split them over libopapi_math.so, libopapi_nn.so, ….
std::vector<fs::path> operator_libraries(const fs::path& folder) {
  std::vector<fs::path> result;
  std::error_code ignored;  // a folder that cannot be listed is reported when libopapi.so does not load
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("libopapi_") && name.ends_with(".so")) result.push_back(entry.path());
  }
  std::sort(result.begin(), result.end());
  result.insert(result.begin(), folder / "libopapi.so");
  return result;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Opens the root's libraries and counts its devices. Returns why it cannot be used, or an empty string.
std::string try_root(const fs::path& root, Loaded& loaded, Info& info) {
  const fs::path folder = root / "lib64";
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) return "there is no such folder";
  if (!fs::is_directory(folder, ignored)) return "it has no folder lib64";

  std::string why_not;
  loaded.runtime = open_library(folder / "libascendcl.so", why_not);
  if (!loaded.runtime) return why_not;
  loaded.paths.push_back(folder / "libascendcl.so");
  for (const fs::path& path : operator_libraries(folder)) {
    void* handle = open_library(path, why_not);
    if (!handle) return why_not;
    loaded.operators.push_back(handle);
    loaded.paths.push_back(path);
  }

  std::vector<void*> all{loaded.runtime};
  all.insert(all.end(), loaded.operators.begin(), loaded.operators.end());
  if (const auto missing = loaded.api.resolve(all); !missing.empty()) {
    return "its libraries lack " + join(missing) + ", so this is not a CANN that can be used here";
  }

  uint32_t count = 0;
  if (const aclError code = loaded.api.aclrtGetDeviceCount(&count); code != ACL_SUCCESS) {
    const char* message = loaded.api.aclGetRecentErrMsg();
    return "aclrtGetDeviceCount failed with " + std::to_string(code) +
           (message && *message ? std::string(": ") + message : "");
  }
  if (count == 0) return "it sees no device";
  const char* soc = loaded.api.aclrtGetSocName();
  info.soc = soc ? soc : "";
  info.device_count = static_cast<int>(count);
  return {};
}

std::string explain(const std::vector<Refusal>& refused) {
  std::string text = "no CANN can be used:";
  for (const auto& r : refused) text += "\n  " + r.root + ": " + r.reason;
  return text +
         "\nTORCH_NPU_CANN selects a CANN: auto, host (the software CANN bundled with torch_npu) or the path "
         "of a CANN "
         "toolkit, which has lib64/libascendcl.so.";
}

Discovery discover() {
  Discovery result;
  Info& info = result.info;
  for (const Candidate& candidate : candidates()) {
    auto loaded = std::make_unique<Loaded>();
    const std::string why_not = try_root(candidate.root, *loaded, info);
    if (!why_not.empty()) {
      loaded->close();
      info.refused.push_back({candidate.root.string() + " (" + candidate.chosen_by + ")", why_not});
      continue;
    }
    info.root = candidate.root;
    info.chosen_by = candidate.chosen_by;
    info.is_host = static_cast<bool>(loaded->api.cannHostDeviceMemoryIsHostAccessible);
    info.libraries = loaded->paths;
    result.loaded = std::move(loaded);
    return result;
  }
  info.error = explain(info.refused);
  return result;
}

/// A CANN was asked for and something else is used: that must not pass in silence.
void warn_of_refused(const Info& info) {
  for (const auto& r : info.refused) {
    TORCH_WARN("the CANN at ", r.root, " cannot be used: ", r.reason, ". Using ", info.root,
               info.is_host ? " (software CANN on the CPU)" : "",
               "; TORCH_NPU_CANN=host or a path says which one to use.");
  }
}

const Discovery& discovery() {
  // Never destroyed: tensors may be freed after static destructors have begun.
  static const Discovery* result = [] {
    auto* found = new Discovery(discover());
    if (found->loaded) {
      detail::loaded.store(&found->loaded->api, std::memory_order_release);
      warn_of_refused(found->info);
    }
    return found;
  }();
  return *result;
}

}  // namespace

namespace detail {

std::atomic<const Api*> loaded{nullptr};

const Api& load() {
  const Discovery& found = discovery();
  TORCH_CHECK(found.loaded, found.info.error);
  return found.loaded->api;
}

}  // namespace detail

std::vector<std::string> Api::resolve(const std::vector<void*>& libraries) {
  const auto find = [&](Symbol* symbol) {
    for (void* library : libraries) {
      if ((symbol->address = dlsym(library, symbol->name))) return true;
    }
    return false;
  };
  std::vector<std::string> missing;
  for (Symbol* symbol : required_) {
    if (!find(symbol)) missing.emplace_back(symbol->name);
  }
  for (Symbol* symbol : optional_) find(symbol);
  return missing;
}

const Info& info() { return discovery().info; }

void* find_aclnn(const char* name) {
  detail::load();
  for (void* library : discovery().loaded->operators) {
    if (void* address = dlsym(library, name)) return address;
  }
  return nullptr;
}

}  // namespace torch_npu::cann
