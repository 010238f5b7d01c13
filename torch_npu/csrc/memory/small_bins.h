#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "torch_npu/csrc/memory/block.h"

namespace torch_npu::memory {

/// The free small blocks of one stream: a list for each multiple of 512 B up to 2 MiB (the last one also for
/// larger blocks, which expandable segments have), and a two-level bitmap of the lists that are not empty.
/// All operations take constant time, and best fit is exact for the sizes that are allocated from here.
class SmallBins {
 public:
  static constexpr size_t kStep = 512;
  static constexpr size_t kMaxSize = size_t{2} << 20;

  void insert(Block* block) {
    const size_t bin = bin_of(block->size);
    Block*& head = heads_[bin];
    block->bin_prev = nullptr;
    block->bin_next = head;
    if (head) {
      head->bin_prev = block;
    } else {
      words_[bin / 64] |= bit(bin % 64);
      summary_ |= bit(bin / 64);
    }
    head = block;
  }

  void remove(Block* block) {
    const size_t bin = bin_of(block->size);
    if (block->bin_next) block->bin_next->bin_prev = block->bin_prev;
    if (block->bin_prev) {
      block->bin_prev->bin_next = block->bin_next;
    } else if (!(heads_[bin] = block->bin_next)) {
      words_[bin / 64] &= ~bit(bin % 64);
      if (!words_[bin / 64]) summary_ &= ~bit(bin / 64);
    }
    block->bin_prev = block->bin_next = nullptr;
  }

  /// The smallest free block of at least `size` bytes (the one freed last among equals), or null.
  Block* best_fit(size_t size) const {
    const size_t bin = bin_of(size);
    size_t word = bin / 64;
    uint64_t candidates = words_[word] & (~uint64_t{0} << (bin % 64));
    if (!candidates) {
      const uint64_t larger = summary_ & (~uint64_t{1} << word);  // words after this one
      if (!larger) return nullptr;
      word = std::countr_zero(larger);
      candidates = words_[word];
    }
    return heads_[word * 64 + std::countr_zero(candidates)];
  }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (Block* head : heads_) {
      for (Block *block = head, *next; block; block = next) {
        next = block->bin_next;  // `visit` may remove the block
        visit(block);
      }
    }
  }

 private:
  static constexpr size_t kBins = kMaxSize / kStep;

  static size_t bin_of(size_t size) { return std::min(size / kStep, kBins) - 1; }
  static uint64_t bit(size_t i) { return uint64_t{1} << i; }

  uint64_t summary_ = 0;
  std::array<uint64_t, kBins / 64> words_{};
  std::array<Block*, kBins> heads_{};
};

}  // namespace torch_npu::memory
