// The sealed pages of one layer, oldest first, in chunks that the tables of forks have in common.
//
// Thread-safety: none; guarded by its layer's lock. Tables that share chunks may be used at once,
// since chunks that may be shared are only read.
//
// Invariants: pages follow each other without gaps; each has 1 to kPageTokens tokens. Only a page
// into which the layer was truncated has fewer than kPageTokens. A chunk is never empty; a table
// uses all of its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/api/backend.h"
#include "server/pages/block_pool.h"

namespace oscarkv {

class PageTable {
 public:
  PageTable() = default;
  PageTable(PageTable&&) = default;
  PageTable& operator=(PageTable&&) = default;
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Another table of the same pages, which costs a word a chunk. If it throws bad_alloc, nothing
  // has changed.
  PageTable Share();

  // Room for `count` more pages: pushing them cannot fail.
  void Reserve(std::size_t count);
  // Adds a full page after the last. `blind`: it was sealed without the queries that it wanted.
  // REQUIRES: room was made; begin is where the last page ends, if there is one.
  void Push(BlockRef block, std::int64_t begin, bool blind);
  // Takes the newest `count` pages away. REQUIRES: they were pushed since the table was shared.
  void Pop(std::size_t count);
  // What a truncation to `length` may fail at: afterwards it cannot.
  void PrepareTruncate(std::int64_t length);
  // Drops all tokens at positions >= length: a page that begins before keeps its first ones.
  // REQUIRES: PrepareTruncate(length), where the table may have been shared since it was made.
  void Truncate(std::int64_t length);

  // Drops the oldest pages, those that end at or before `position`; of a chunk that may be shared,
  // all or none.
  void DropBefore(std::int64_t position) noexcept;

  struct Page {
    PageRef ref;
    bool blind = false;
  };
  // Those that begin at or after `position`.
  std::vector<Page> PagesFrom(std::int64_t position) const;

  // As the backend sees them; valid until the next change.
  std::span<const std::span<const PageRef>> runs() const { return runs_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Where the first page begins and the last ends; 0 without pages.
  std::int64_t begin() const { return empty() ? 0 : runs_.front().front().begin; }
  std::int64_t end() const { return empty() ? 0 : EndOf(runs_.back().back()); }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t blind_pages() const { return blind_pages_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Chunk {
    std::vector<PageRef> refs;
    std::vector<BlockRef> blocks;  // as refs
    std::vector<bool> blind;       // as refs

    void Reserve(std::size_t count);
  };
  // A session of a few thousand tokens has one; a fork of 128K tokens takes 16 words.
  static constexpr std::size_t kChunkPages = 64;

  struct Part {
    std::shared_ptr<Chunk> chunk;
    bool shared = false;  // it may be in other tables too: read only
  };

  static std::int64_t EndOf(const PageRef& page) { return page.begin + page.tokens; }
  // Puts copies in the place of chunks that are shared, from that one on.
  void OwnFrom(std::size_t part);
  void Count(const Chunk& chunk, std::size_t page, int sign);
  void Uncount(const Chunk& chunk);
  void PopChunk();

  std::vector<Part> parts_;
  std::vector<std::span<const PageRef>> runs_;  // as parts_
  std::vector<std::shared_ptr<Chunk>> spare_;   // empty, with room; taken from the back
  std::size_t size_ = 0;
  std::int64_t tokens_ = 0;  // these are sums over all pages
  std::int64_t blind_pages_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace oscarkv
