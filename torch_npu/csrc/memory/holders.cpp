#include "torch_npu/csrc/memory/holders.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>

namespace torch_npu::memory {
namespace {

constexpr size_t kShown = 6;      // lines of text
constexpr size_t kLookedUp = 64;  // call stacks: looking one up takes long

LineOfContext line_of_context = nullptr;

struct Holder {
  std::string name;
  size_t nbytes = 0;
  size_t count = 0;
};

/// Sums up by Python line, or by size where none is known.
std::vector<Holder> by_name(const std::vector<Holding>& holdings, bool& line_is_missing) {
  using c10::CachingAllocator::format_size;
  std::map<c10::GatheredContext*, std::string> lines;  // one stack may have made many allocations
  std::map<std::string, Holder> holders;
  for (const Holding& holding : holdings) {
    std::string line;
    if (holding.context && line_of_context) {
      const auto known = lines.find(holding.context.get());
      if (known != lines.end()) {
        line = known->second;
      } else if (lines.size() < kLookedUp) {
        line = lines[holding.context.get()] = line_of_context(holding.context);
      }
    }
    line_is_missing |= line.empty();
    const std::string name = line.empty() ? format_size(holding.nbytes) + " each" : line;
    Holder& holder = holders.try_emplace(name, Holder{name}).first->second;
    holder.nbytes += holding.nbytes;
    ++holder.count;
  }
  std::vector<Holder> result;
  for (auto& [name, holder] : holders) result.push_back(std::move(holder));
  std::stable_sort(result.begin(), result.end(),
                   [](const Holder& a, const Holder& b) { return a.nbytes > b.nbytes; });
  return result;
}

}  // namespace

void set_line_of_context(LineOfContext function) { line_of_context = function; }

std::string largest_holders(std::vector<Holding> holdings) {
  using c10::CachingAllocator::format_size;
  std::stable_sort(holdings.begin(), holdings.end(),
                   [](const Holding& a, const Holding& b) { return a.nbytes > b.nbytes; });
  bool line_is_missing = false;
  const std::vector<Holder> holders = by_name(holdings, line_is_missing);
  std::string text;
  for (size_t i = 0; i < std::min(holders.size(), kShown); ++i) {
    const Holder& holder = holders[i];
    text += c10::str("\n  ", format_size(holder.nbytes), " in ", holder.count,
                     holder.count == 1 ? " allocation: " : " allocations: ", holder.name);
  }
  if (holders.size() > kShown) text += c10::str("\n  and ", holders.size() - kShown, " more");
  if (line_is_missing) {
    text +=
        "\n  (Python lines are known of what is allocated after "
        "torch.npu.memory._record_memory_history('state', context='state', stacks='python'))";
  }
  return text;
}

}  // namespace torch_npu::memory
