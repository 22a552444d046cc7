// The sealed pages of one layer, oldest first.
//
// Thread-safety: none; guarded by its layer's lock.
//
// Invariants: pages follow each other without gaps; each has 1 to kPageTokens tokens. Only a page
// into which the layer was truncated has fewer than kPageTokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/backend.h"
#include "server/pages/block_pool.h"

namespace oscarkv {

class PageTable {
 public:
  // Room for `count` more pages: pushing them cannot fail.
  void Reserve(std::size_t count);
  // Adds a full page after the last. `blind`: it was sealed without the queries that it wanted.
  // REQUIRES: begin is where the last page ends, if there is one.
  void Push(BlockRef block, std::int64_t begin, bool blind);
  // Takes the newest `count` pages away.
  void Pop(std::size_t count);
  // Drops all tokens at positions >= length: a page that begins before keeps its first ones.
  void Truncate(std::int64_t length);

  // As the backend sees them; valid until the next change.
  std::span<const PageRef> refs() const { return refs_; }
  std::size_t size() const { return refs_.size(); }
  bool empty() const { return refs_.empty(); }
  // Where the last page ends; 0 without pages.
  std::int64_t end() const { return refs_.empty() ? 0 : refs_.back().begin + refs_.back().tokens; }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t blind_pages() const { return blind_pages_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<PageRef> refs_;
  std::vector<BlockRef> blocks_;  // as refs_
  std::vector<bool> blind_;       // as refs_
  std::int64_t tokens_ = 0;       // sums over refs_, blind_ and blocks_
  std::int64_t blind_pages_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace oscarkv
