#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace torch_npu::memory {

/// What `PYTORCH_NPU_ALLOC_CONF` (or PyTorch's `PYTORCH_ALLOC_CONF`) sets, e.g.
/// `max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]`.
struct Settings {
  /// Blocks of this size and above are neither split nor given to smaller requests.
  size_t max_split_size = std::numeric_limits<size_t>::max();
  /// How much larger than the request an unsplittable block may be.
  size_t max_non_split_rounding = size_t{20} << 20;
  /// Segments from which allocations between 1 and 10 MiB are cut.
  size_t large_segment_size = size_t{20} << 20;
  /// Cut blocks from segments that grow and shrink, instead of fixed ones.
  bool expandable_segments = false;
  /// Fraction of the memory limit above which old cached segments are released; 0 releases none.
  double garbage_collection_threshold = 0;
  /// Initial memory fraction of each device.
  double memory_fraction = 1;
  /// Steps into which a power-of-two interval is divided when sizes are rounded up; index i serves sizes of
  /// [2^(20+i), 2^(21+i)) bytes, the first and last index also what is smaller or larger. 0 and 1 mean 512 B
  /// steps.
  std::array<size_t, 16> power2_divisions{};
  /// The text that was parsed.
  std::string text;

  size_t divisions_for(size_t nbytes) const;
};

/// Throws c10::ValueError that names the first unknown key, bad value or contradiction.
Settings parse_settings(std::string_view text);

namespace detail {
extern std::atomic<const Settings*> current;
const Settings& load_settings();
}  // namespace detail

/// The settings in force; read from the environment at first use.
inline const Settings& settings() {
  const Settings* loaded = detail::current.load(std::memory_order_acquire);
  return loaded ? *loaded : detail::load_settings();
}

/// Replaces the settings in force, and PyTorch's settings of the pinned memory allocator, for later
/// allocations.
void set_settings(const std::string& text);

}  // namespace torch_npu::memory
