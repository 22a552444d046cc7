// Pages of one layer on their way from window blocks to sealed bytes: they are allocated, then
// sealed in pieces of one kv head each, or all that is left at once. The bytes do not depend on
// which.
//
// Thread-safety: none; belongs to a change of a layer, or to a preparation.
//
// Invariants: pages follow each other from begin() on; heads are sealed in the order of pages, then
// heads. The residual directions that a page finds are there before one of its heads is sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/pages/window.h"
#include "server/session/query_sample.h"

namespace oscarkv {

// What a layer has that pages are made of. Valid until the layer changes.
struct SealSource {
  const LayerSpec* spec = nullptr;
  const Window* window = nullptr;
  const QuerySample* sample = nullptr;  // null: no page to come wants queries
  const float* directions = nullptr;    // residual directions; null: none yet
};

class Sealing {
 public:
  // No pages yet; the first will begin at the window's begin. REQUIRES: the window's blocks stay in
  // place, and unchanged as far as inputs_end(), for as long as heads are sealed; so do directions.
  Sealing(const SealSource& source, BlockPool* pool, MemoryBudget* budget);
  Sealing(const Sealing&) = delete;
  Sealing& operator=(const Sealing&) = delete;

  // Allocates the next `pages` pages. REQUIRES: each is followed by a whole window; the source is
  // that of before. Errors: RESOURCE_EXHAUSTED, whatever else Backend::Allocate returns; then, and
  // after bad_alloc, the sealing is good for nothing but to be destroyed.
  // `promise`: as MemoryBudget::Reserve's.
  absl::Status Add(std::int64_t pages, const SealSource& source, Purpose purpose,
                   MemoryReservation* promise = nullptr);
  // Copies the queries of the pages, so that the layer's sample may change. Errors as Add's.
  absl::Status CopyQueries(const SealSource& source, Purpose purpose);

  std::size_t size() const { return pages_.size(); }
  bool done() const { return sealed_heads_ == heads_.size(); }
  // One past the last position of which a token or a query matters to the pages.
  std::int64_t inputs_end() const;
  std::int64_t page_bytes() const;

  // Does the next piece on this thread: finds the directions, or seals a head. REQUIRES: !done().
  // After an error, or bad_alloc, the same piece is the next.
  absl::Status DoPiece(Backend* backend);
  // What is left to seal, for one call of the backend; the directions are found first. Valid until
  // the next change of the sealing.
  std::vector<SealItem> Remaining();

  const BlockRef& block(std::size_t page) const { return pages_[page].block; }
  // Whether the page wants queries and has none.
  bool blind(std::size_t page) const { return pages_[page].blind; }
  // Where the page begins that finds the layer's directions, if one does; Remaining() or pieces
  // have put them into found_directions().
  std::optional<std::int64_t> finds_directions_at() const;
  std::vector<float>* found_directions() { return &found_directions_; }
  // Of found directions and copied queries.
  MemoryReservation* host_memory() { return &host_memory_; }

 private:
  struct Page {
    BlockRef block;
    bool blind = false;
    QuerySample::Slice queries;
  };

  std::int64_t BeginOf(std::size_t page) const;
  Page MakePage(const SealSource& source, BlockRef block);
  SealItem ItemOf(std::size_t page, std::size_t head_begin, std::size_t head_end);
  void FindDirections();

  const LayerSpec* const spec_;
  const std::int64_t begin_;
  const float* const directions_;  // the layer's own
  BlockPool* const pool_;
  std::vector<BlockId> tokens_;  // blocks of all pages, and of what follows the last
  std::vector<Page> pages_;
  std::vector<SealedHead> heads_;  // [pages][kv_heads]
  std::size_t sealed_heads_ = 0;   // of heads_, the first ones
  std::vector<std::uint16_t> copied_queries_;
  std::optional<std::size_t> finder_;  // the page that finds the directions
  std::vector<float> found_directions_;
  MemoryReservation host_memory_;
};

}  // namespace oscarkv
