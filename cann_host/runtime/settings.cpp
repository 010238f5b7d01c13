#include "settings.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "error.h"

namespace cann_host {
namespace {

constexpr int64_t KiB = 1024, MiB = 1024 * KiB;

// Core counts, L2, unified buffer and architecture of the products that clients ask for by name; the first
// prefix counts.
const Soc known_socs[] = {
    {"Ascend910B1", 24, 48, 192 * MiB, 192 * KiB, 2201},  {"Ascend910B2", 24, 48, 192 * MiB, 192 * KiB, 2201},
    {"Ascend910B3", 20, 40, 192 * MiB, 192 * KiB, 2201},  {"Ascend910B4", 20, 40, 96 * MiB, 192 * KiB, 2201},
    {"Ascend910_93", 24, 48, 192 * MiB, 192 * KiB, 2201}, {"Ascend950", 32, 64, 128 * MiB, 248 * KiB, 3510},
    {"Ascend310P", 8, 7, 16 * MiB, 256 * KiB, 2002},      {"Ascend910", 32, 32, 32 * MiB, 256 * KiB, 1001},
};

std::string variable(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value ? value : fallback;
}

template <class T>
std::optional<T> whole_number(std::string_view text) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "8G" -> 8 << 30
std::optional<size_t> byte_count(std::string_view text) {
  int shift = 0;
  if (!text.empty()) {
    switch (text.back()) {
      case 'K':
        shift = 10;
        break;
      case 'M':
        shift = 20;
        break;
      case 'G':
        shift = 30;
        break;
      case 'T':
        shift = 40;
        break;
    }
  }
  if (shift) text.remove_suffix(1);
  auto number = whole_number<size_t>(text);
  if (!number || *number > (SIZE_MAX >> shift)) return std::nullopt;
  return *number << shift;
}

/// RAM that this process may use: the machine's, or less in a container.
size_t usable_ram() {
  size_t ram = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::string limit;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) {
    if (auto bytes = whole_number<size_t>(limit)) ram = std::min(ram, *bytes);
  }
  return ram;
}

class Reader {
 public:
  Settings read() {
    s_.soc = soc(variable("CANN_HOST_SOC", "Ascend910B3"));
    s_.physical_devices = device_count();
    s_.device_memory = memory();
    s_.asynchronous = number("CANN_HOST_ASYNC", 0) != 0;
    s_.delay_us = number("CANN_HOST_DELAY_US", 0);
    s_.trace = number("CANN_HOST_TRACE", 0) != 0;
    s_.winograd = number("CANN_HOST_WINOGRAD", 1) != 0;
    return s_;
  }

 private:
  void complain(const char* name, const std::string& seen, const std::string& expected) {
    s_.problem += std::string(s_.problem.empty() ? "" : "; ") + name + "=" + seen + ": expected " + expected;
  }

  uint32_t number(const char* name, uint32_t fallback) {
    auto text = variable(name, "");
    if (text.empty()) return fallback;
    auto value = whole_number<uint32_t>(text);
    if (!value) complain(name, text, "a whole number");
    return value.value_or(fallback);
  }

  uint32_t device_count() {
    constexpr uint32_t limit = 64;
    // torchrun says how many processes it starts on this machine; each of them selects a device of its own.
    const uint32_t count = number("CANN_HOST_DEVICES", std::min(limit, number("LOCAL_WORLD_SIZE", 1)));
    if (count > limit)
      complain("CANN_HOST_DEVICES", std::to_string(count), "at most " + std::to_string(limit));
    return std::min(count, limit);
  }

  Soc soc(const std::string& name) {
    std::string names;
    for (const Soc& known : known_socs) {
      if (name.starts_with(known.name)) {
        Soc found = known;
        found.name = name;
        return found;
      }
      names += (names.empty() ? "" : ", ") + known.name;
    }
    complain("CANN_HOST_SOC", name, "a name that begins with one of " + names);
    return known_socs[2];
  }

  size_t memory() {
    auto text = variable("CANN_HOST_MEMORY", "");
    size_t share = usable_ram() / 4 * 3 / std::max<size_t>(1, s_.physical_devices);
    if (text.empty()) return share;
    auto bytes = byte_count(text);
    if (!bytes) complain("CANN_HOST_MEMORY", text, "bytes, or a number with K, M, G or T, such as 8G");
    return bytes.value_or(share);
  }

  Settings s_{};
};

struct VisibleDevices {
  std::vector<int32_t> ids;
  std::string problem;
};

/// As CANN reads it: the list ends at the first character that is neither a digit nor a comma, and at the
/// first id that does not exist; the ids ascend.
VisibleDevices read_visible_devices() {
  VisibleDevices devices;
  const auto count = static_cast<int32_t>(settings().physical_devices);
  const char* list = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (!list) {
    for (int32_t i = 0; i < count; ++i) devices.ids.push_back(i);
    return devices;
  }
  const std::string read = std::string(list).substr(0, std::strspn(list, "0123456789,"));
  if (static std::string told; read != list && std::exchange(told, list) != list) {
    std::fprintf(stderr, "[cann_host] of ASCEND_RT_VISIBLE_DEVICES=%s only \"%s\" counts, as in CANN\n", list,
                 read.c_str());
  }
  std::istringstream stream(read);
  for (std::string item; std::getline(stream, item, ',');) {
    const auto id = whole_number<int32_t>(item);
    if (!id || (!devices.ids.empty() && *id <= devices.ids.back())) {
      return {{},
              std::string("ASCEND_RT_VISIBLE_DEVICES=") + list +
                  ": expected ascending device ids with commas between, such as 0,1"};
    }
    if (*id >= count) break;
    devices.ids.push_back(*id);
  }
  return devices;
}

std::atomic<const VisibleDevices*> fixed{nullptr};

const VisibleDevices& visible() {
  if (const VisibleDevices* devices = fixed.load(std::memory_order_acquire)) [[likely]]
    return *devices;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  thread_local VisibleDevices devices;
  devices = read_visible_devices();
  return devices;
}

}  // namespace

const std::vector<int32_t>& visible_devices() { return visible().ids; }

const std::vector<int32_t>& fix_visible_devices() {
  fixed.store(new VisibleDevices(visible()), std::memory_order_release);
  return visible_devices();
}

const Settings& settings() {
  static const Settings* all = new Settings(Reader().read());
  return *all;
}

void require_valid_settings() {
  if (!settings().problem.empty()) refuse(ACL_ERROR_INVALID_PARAM, "%s", settings().problem.c_str());
}

void require_valid_devices() {
  require_valid_settings();
  if (!visible().problem.empty()) refuse(ACL_ERROR_INVALID_PARAM, "%s", visible().problem.c_str());
}

}  // namespace cann_host
