// Memory of short life, that each thread keeps for its next use: nothing is cleared, and after the
// first pages nothing is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/api/page_layout.h"

namespace oscarkv::cpu {

// Blocks that no Scratch of this thread holds. Not thread-safe: each thread has its own.
class ScratchPool {
 public:
  struct alignas(kPageAlignment) Line {
    std::byte bytes[kPageAlignment];
  };
  struct Block {
    std::unique_ptr<Line[]> lines;
    std::size_t bytes = 0;
  };

  static ScratchPool& OfThread() {
    thread_local ScratchPool pool;
    return pool;
  }

  // A block of at least `bytes`: the last that was put back, grown if it is too small.
  Block Take(std::size_t bytes) {
    Block block;
    if (count_ > 0) block = std::move(free_[--count_]);
    if (block.bytes < bytes) {
      const std::size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line);
      block.lines = std::make_unique_for_overwrite<Line[]>(lines);
      block.bytes = lines * sizeof(Line);
    }
    return block;
  }
  // Keeps it, or frees it if there are many already: it must not fail, as destructors call it.
  void PutBack(Block block) noexcept {
    if (block.lines != nullptr && count_ < free_.size()) free_[count_++] = std::move(block);
  }

 private:
  // More than the encoder of a page holds at a time.
  std::array<Block, 32> free_;
  std::size_t count_ = 0;
};

// An array of T, aligned to kPageAlignment, of no particular content at first. Thread-compatible;
// lives and dies on one thread.
template <class T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Scratch() = default;
  explicit Scratch(std::size_t size)
      : block_(ScratchPool::OfThread().Take(size * sizeof(T))), size_(size) {}
  Scratch(Scratch&& other) noexcept
      : block_(std::exchange(other.block_, {})), size_(std::exchange(other.size_, 0)) {}
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Scratch() { ScratchPool::OfThread().PutBack(std::move(block_)); }

  T* data() { return reinterpret_cast<T*>(block_.lines.get()); }
  const T* data() const { return reinterpret_cast<const T*>(block_.lines.get()); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }

 private:
  ScratchPool::Block block_;
  std::size_t size_ = 0;
};

}  // namespace oscarkv::cpu
