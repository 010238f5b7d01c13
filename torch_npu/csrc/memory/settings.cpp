#include "torch_npu/csrc/memory/settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>
#include <c10/util/llvmMathExtras.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace torch_npu::memory {

constinit std::atomic<const Settings*> detail::current{nullptr};

namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// One `key:value` of the text; `value` is a scalar or `[a:b,c:d]`.
struct Entry {
  std::string key, value;
};

std::string without_spaces(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (!std::isspace(static_cast<unsigned char>(c))) result += c;
  }
  return result;
}

/// The pieces of `text` between commas that stand outside brackets.
std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> pieces(1);
  int depth = 0;
  for (char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth == 0) {
      pieces.emplace_back();
    } else {
      pieces.back() += c;
    }
  }
  return pieces;
}

std::vector<Entry> entries_of(std::string_view text) {
  std::vector<Entry> entries;
  for (const std::string& piece : split_at_commas(without_spaces(text))) {
    if (piece.empty()) continue;
    const size_t colon = piece.find(':');
    TORCH_CHECK_VALUE(colon != std::string::npos && colon > 0 && colon + 1 < piece.size(),
                      "PYTORCH_NPU_ALLOC_CONF: expected key:value, but got '", piece, "'");
    entries.push_back({piece.substr(0, colon), piece.substr(colon + 1)});
  }
  return entries;
}

template <typename T>
T number(const Entry& entry, T lowest, T highest) {
  T value{};
  const char* end = entry.value.data() + entry.value.size();
  const auto [stop, error] = std::from_chars(entry.value.data(), end, value);
  TORCH_CHECK_VALUE(error == std::errc{} && stop == end && value >= lowest && value <= highest,
                    "PYTORCH_NPU_ALLOC_CONF: ", entry.key, " must be a number from ", lowest, " to ", highest,
                    ", but got '", entry.value, "'");
  return value;
}

size_t megabytes(const Entry& entry, size_t lowest) {
  return number<size_t>(entry, lowest, std::numeric_limits<size_t>::max() / kMiB) * kMiB;
}

bool boolean(const Entry& entry) {
  TORCH_CHECK_VALUE(entry.value == "True" || entry.value == "False", "PYTORCH_NPU_ALLOC_CONF: ", entry.key,
                    " must be True or False, but got '", entry.value, "'");
  return entry.value == "True";
}

size_t division_index(size_t megabytes) { return std::min<size_t>(c10::llvm::Log2_64(megabytes), 15); }

/// Either one number for all sizes, or `[256:1,512:2,>:4]`: the key is a size in MiB, `>` all larger ones.
void parse_divisions(const Entry& entry, Settings& settings) {
  auto divisions_of = [&](const std::string& value) {
    const size_t divisions = number<size_t>({entry.key, value}, 0, 1 << 20);
    TORCH_CHECK_VALUE((divisions & (divisions - 1)) == 0, "PYTORCH_NPU_ALLOC_CONF: ", entry.key,
                      " must be powers of 2, but got '", value, "'");
    return divisions;
  };
  auto& table = settings.power2_divisions;
  if (entry.value.front() != '[') {
    table.fill(divisions_of(entry.value));
    return;
  }
  TORCH_CHECK_VALUE(entry.value.back() == ']', "PYTORCH_NPU_ALLOC_CONF: ", entry.key,
                    " lacks a closing bracket: '", entry.value, "'");
  size_t from = 0;  // first index without a value yet
  for (const Entry& item : entries_of(std::string_view(entry.value).substr(1, entry.value.size() - 2))) {
    const size_t divisions = divisions_of(item.value);
    if (item.key == ">") {
      std::fill(table.begin() + from, table.end(), divisions);
      from = table.size();
      continue;
    }
    const size_t size = number<size_t>({entry.key + " size", item.key}, 1, size_t{1} << 40);
    TORCH_CHECK_VALUE((size & (size - 1)) == 0, "PYTORCH_NPU_ALLOC_CONF: ", entry.key,
                      ": sizes must be powers of 2 in MiB, but got '", item.key, "'");
    const size_t index = division_index(size);
    if (from == 0) std::fill(table.begin(), table.begin() + index, divisions);
    table[index] = divisions;
    from = index + 1;
  }
}

using Parser = void (*)(const Entry&, Settings&);

/// Every key that is known here. Those of the pinned memory allocator are only checked: PyTorch holds their
/// values.
const std::map<std::string, Parser>& parsers() {
  static const std::map<std::string, Parser> table = {
      {"max_split_size_mb", [](const Entry& e, Settings& s) { s.max_split_size = megabytes(e, 21); }},
      {"max_non_split_rounding_mb",
       [](const Entry& e, Settings& s) { s.max_non_split_rounding = megabytes(e, 20); }},
      // An older name; the newer one counts where both are given.
      {"segment_size_mb", [](const Entry& e, Settings& s) { s.large_segment_size = megabytes(e, 20); }},
      {"large_segment_size_mb", [](const Entry& e, Settings& s) { s.large_segment_size = megabytes(e, 20); }},
      {"garbage_collection_threshold",
       [](const Entry& e, Settings& s) { s.garbage_collection_threshold = number<double>(e, 0, 1); }},
      {"per_process_memory_fraction",
       [](const Entry& e, Settings& s) { s.memory_fraction = number<double>(e, 0, 1); }},
      {"expandable_segments", [](const Entry& e, Settings& s) { s.expandable_segments = boolean(e); }},
      {"roundup_power2_divisions", parse_divisions},
      {"pinned_use_background_threads", [](const Entry& e, Settings&) { boolean(e); }},
      {"pinned_max_round_threshold_mb", [](const Entry& e, Settings&) { megabytes(e, 1); }},
      {"pinned_max_cached_size_mb", [](const Entry& e, Settings&) { megabytes(e, 1); }},
  };
  return table;
}

/// Keys of torch_npu that ask for what this allocator has no need of: why each makes no difference.
const std::map<std::string, const char*>& keys_without_effect() {
  static const std::map<std::string, const char*> table = {
      {"release_lock_on_npumalloc",
       "other threads' cached blocks wait while one thread asks CANN for memory"},
      {"multi_stream_lazy_reclaim", "finished work on other streams is looked for at every allocation"},
      {"pinned_mem_register", "pinned memory is CANN's own (aclrtMallocHost)"},
      {"pin_memory_expandable_segments",
       "pinned memory is CANN's own (aclrtMallocHost), which does not support this feature"},
  };
  return table;
}

std::string known_keys() {
  std::string keys;
  for (const auto& [key, parser] : parsers()) keys += (keys.empty() ? "" : ", ") + key;
  return keys;
}

std::string environment() {
  const auto npu = c10::utils::get_env("PYTORCH_NPU_ALLOC_CONF");
  const auto any = c10::utils::get_env("PYTORCH_ALLOC_CONF");
  TORCH_CHECK_VALUE(!npu || !any || *npu == *any, "PYTORCH_NPU_ALLOC_CONF ('", *npu,
                    "') and PYTORCH_ALLOC_CONF ('", *any, "') are both set and differ: set only one of them");
  return npu ? *npu : any.value_or("");
}

std::mutex mutex;

/// Settings that were in force stay alive, because a concurrent allocation may still read them.
const Settings& publish(Settings settings) {
  static std::vector<std::unique_ptr<const Settings>> history;
  history.push_back(std::make_unique<const Settings>(std::move(settings)));
  detail::current.store(history.back().get(), std::memory_order_release);
  return *history.back();
}

/// torch.accelerator's settings reach this allocator too; PyTorch rejects keys that neither of the two knows.
const c10::CachingAllocator::DeviceConfigParserHookRegistry hook(
    [](const std::string& text) {
      Settings settings = parse_settings(text);
      std::lock_guard lock(mutex);
      publish(std::move(settings));
    },
    {"per_process_memory_fraction", "segment_size_mb", "release_lock_on_npumalloc",
     "multi_stream_lazy_reclaim", "pinned_mem_register", "pin_memory_expandable_segments"});

}  // namespace

size_t Settings::divisions_for(size_t nbytes) const {
  return nbytes < kMiB ? power2_divisions[0] : power2_divisions[division_index(nbytes / kMiB)];
}

Settings parse_settings(std::string_view text) {
  Settings settings;
  std::set<std::string> seen;
  const std::vector<Entry> entries = entries_of(text);
  const auto given = [&](const char* key) {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.key == key; });
  };
  for (const Entry& entry : entries) {
    if (const auto without = keys_without_effect().find(entry.key); without != keys_without_effect().end()) {
      if (boolean(entry)) {
        TORCH_WARN("PYTORCH_NPU_ALLOC_CONF: ", entry.key, " makes no difference here: ", without->second);
      }
      continue;
    }
    const auto parser = parsers().find(entry.key);
    TORCH_CHECK_VALUE(parser != parsers().end(), "PYTORCH_NPU_ALLOC_CONF: unknown key '", entry.key,
                      "'. Known keys: ", known_keys());
    TORCH_CHECK_VALUE(seen.insert(entry.key).second, "PYTORCH_NPU_ALLOC_CONF: key '", entry.key,
                      "' is given more than once");
    Settings unused;
    const bool is_overruled = entry.key == "segment_size_mb" && given("large_segment_size_mb");
    parser->second(entry, is_overruled ? unused : settings);
  }
  TORCH_CHECK_VALUE(
      !settings.expandable_segments ||
          (!seen.count("max_split_size_mb") && !seen.count("garbage_collection_threshold")),
      "PYTORCH_NPU_ALLOC_CONF: expandable_segments:True gives unused memory back in pieces, so it excludes "
      "max_split_size_mb and garbage_collection_threshold: leave them out, or expandable_segments");
  settings.text = text;
  return settings;
}

const Settings& detail::load_settings() {
  const std::string text = environment();
  Settings parsed = parse_settings(text);
  // The pinned memory allocator of ATen reads its settings from PyTorch's own table; this calls the hook
  // above.
  if (!text.empty()) c10::CachingAllocator::setAllocatorSettings(text);
  std::lock_guard lock(mutex);
  const Settings* loaded = current.load(std::memory_order_acquire);
  return loaded ? *loaded : publish(std::move(parsed));
}

void set_settings(const std::string& text) {
  parse_settings(text);  // before PyTorch changes anything
  c10::CachingAllocator::setAllocatorSettings(text);
}

}  // namespace torch_npu::memory
