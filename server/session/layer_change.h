// One change of a layer, all or nothing: seal pages, append tokens, take queries into the sample.
//
// The steps are the caller's, because one backend call serves the changes of a whole batch:
//
//   Prepare       allocates everything, all that the other steps need included, and changes
//                 nothing; may fail
//   [Seal]        of seal_items(): reads the window, writes new pages
//   Apply         the layer looks as it will; cannot fail
//   [Copy]        of copy_items(), then
//   [Append]      of append_items(): writes where no reader of the old state looks
//   [Attend]      reads the layer's View()
//   Commit        makes it final; cannot fail
//
// A change that ends without Commit leaves the layer as it was before Apply. Items point into the
// layer and into the change, and hold until the next step.
//
// Thread-safety: none; guarded by its layer's lock, held from construction to destruction.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/layer_state.h"
#include "server/session/query_sample.h"
#include "server/session/sealing.h"

namespace oscarkv {

// Tokens to append. The storage dtype or fp32.
struct TokenRows {
  std::int32_t count = 0;
  DType dtype = DType::kBF16;
  const void* keys = nullptr;    // [count][kv_heads][key_dim], packed, any alignment, finite
  const void* values = nullptr;  // [count][kv_heads][value_dim]
  std::uint32_t crc = 0;         // as AppendRecord::crc
};

class LayerChange {
 public:
  // `promise`: memory that it takes first, see MemoryBudget::Reserve; null: none. REQUIRES: all
  // outlive the change; it is the only one of its layer.
  LayerChange(LayerState* layer, BlockPool* pool, MemoryBudget* budget,
              MemoryReservation* promise = nullptr);
  ~LayerChange();
  LayerChange(const LayerChange&) = delete;
  LayerChange& operator=(const LayerChange&) = delete;

  // Any of the three may be nothing: 0 pages, tokens.count == 0, queries.count == 0.
  // If there are pages, all that the layer has prepared are sealed, even if `pages` is less; if
  // not, it keeps them prepared. REQUIRES: pages <= layer.SealablePages(); data lives as long as
  // the change. Errors: RESOURCE_EXHAUSTED; whatever else Backend::Allocate returns. If it throws
  // bad_alloc, nothing has changed either.
  absl::Status Prepare(std::int64_t pages, const TokenRows& tokens, const QueryRows& queries);

  // How many pages it seals; some may be sealed already, so that there are fewer items.
  std::int64_t pages() const { return sealing_ ? static_cast<std::int64_t>(sealing_->size()) : 0; }
  std::span<const SealItem> seal_items() const { return seal_items_; }
  void Apply() noexcept;
  std::span<const CopyItem> copy_items() const { return copy_items_; }
  std::span<const AppendItem> append_items() const { return append_items_; }
  void Commit() noexcept;

 private:
  // Another block in the place of a partly filled one that is shared, or of none.
  struct Tail {
    bool replaced = false;
    BlockRef block;  // before Apply the new one, after it the old one
  };

  absl::Status PrepareSeals(std::int64_t pages);
  absl::Status PrepareAppend();
  absl::Status PrepareTail(const BlockRef& old, std::int64_t bytes, Tail* tail);
  absl::Status PrepareSample(std::int64_t pages, const QueryRows& queries);
  void InstallPages() noexcept;
  void BuildAppendItems() noexcept;
  void AddAppendItem(BlockId block, std::int32_t capacity, std::int64_t slot, std::int64_t begin,
                     std::int64_t end) noexcept;
  void Undo() noexcept;

  LayerState* const layer_;
  BlockPool* const pool_;
  MemoryBudget* const budget_;
  MemoryReservation* const promise_;
  const std::int64_t old_length_;
  TokenRows tokens_;
  MemoryReservation host_memory_;

  std::unique_ptr<Sealing> sealing_;  // prepared or not; null: no pages
  std::vector<SealItem> seal_items_;
  std::vector<BlockRef> sealed_window_;  // after Apply: the blocks that became pages

  Tail sinks_;
  Tail window_tail_;
  std::vector<BlockRef> window_blocks_;  // new; handed to the window by Apply
  std::size_t new_window_blocks_ = 0;
  std::vector<CopyItem> copy_items_;
  std::vector<AppendItem> append_items_;

  QuerySample::Addition sample_addition_;
  bool drops_preparation_ = false;  // it would lack queries, or a block that it reads

  bool applied_ = false;
};

}  // namespace oscarkv
