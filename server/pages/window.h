// The newest tokens of one layer: blocks of kWindowBlockTokens 16-bit tokens, oldest first.
//
// Thread-safety: none; guarded by its layer's lock.
//
// Invariants: block i holds positions [begin + i * kWindowBlockTokens, ... + kWindowBlockTokens);
// the layer's length says how much of the last one is used. Blocks may be shared: whoever writes
// into a partly filled one that is shared puts a copy in its place first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/backend.h"
#include "server/pages/block_pool.h"

namespace oscarkv {

class Window {
 public:
  explicit Window(std::int64_t begin) : begin_(begin) {}

  std::int64_t begin() const { return begin_; }
  std::size_t size() const { return ids_.size(); }
  // One past the last position that the blocks have room for.
  std::int64_t capacity_end() const {
    return begin_ + static_cast<std::int64_t>(size()) * kWindowBlockTokens;
  }
  std::int64_t bytes() const { return bytes_; }

  // As the backend sees them; valid until the next change.
  std::span<const BlockId> ids() const { return ids_; }
  const BlockRef& block(std::size_t i) const { return blocks_[i]; }

  // Room for `count` more blocks: pushing them, at either end, cannot fail.
  void Reserve(std::size_t count);
  void PushBack(BlockRef block);
  // REQUIRES: size() > 0.
  BlockRef PopBack();
  // Another block in the place of block `i`, which is returned.
  BlockRef Replace(std::size_t i, BlockRef block);

  // Takes the oldest blocks away, as a page is sealed from them, and adds them to `taken`, oldest
  // first. Cannot fail where `taken` has room for them.
  void PopFront(std::size_t count, std::vector<BlockRef>* taken);
  // Puts back what PopFront took; cannot fail if the window has been no smaller before.
  void PushFront(std::vector<BlockRef>* taken);

  // Drops the oldest `count` blocks. REQUIRES: count <= size().
  void DropFront(std::size_t count) noexcept;
  // Drops blocks without a token at a position < length. REQUIRES: length >= begin().
  void Truncate(std::int64_t length);
  // Drops all blocks; the window starts anew at `begin`.
  void Restart(std::int64_t begin);

 private:
  std::int64_t begin_;
  std::vector<BlockId> ids_;
  std::vector<BlockRef> blocks_;  // as ids_
  std::int64_t bytes_ = 0;        // of blocks_
};

}  // namespace oscarkv
