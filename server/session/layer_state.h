// One layer of one session: where its tokens are, and what is known of the last append.
//
// Thread-safety: none; guarded by its layer's lock (server/session/session.h).
//
// Invariants (see server/session/INVARIANTS.md for why):
//   1. Positions [0, min(length, sinks)) are in the sinks block, [sinks, window.begin) in pages,
//      [window.begin, length) in the window, those apart that have been freed (kept_from()).
//      Without a token past the sinks, window.begin is `sinks` and there are neither pages nor
//      window blocks.
//   2. last_append, where known, ends at length.
//   3. The sample holds positions in [window.begin, length) only: those that pages to come need.
//   4. The page that found `directions` is there, or was freed, if they are not empty.
//   5. host_memory is the size of the sample and of the session's own directions.
//   6. What a preparation is made of stays as it is for as long as the layer has the preparation:
//      whoever takes blocks from the window, or changes the directions, takes it first; whoever
//      adds to the queries of its pages, or puts a copy in the place of a block, drops it. Appends
//      write behind what it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "kernels/api/layer_spec.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/pages/page_table.h"
#include "server/pages/window.h"
#include "server/session/preparation.h"
#include "server/session/query_sample.h"
#include "server/session/repeat_records.h"
#include "server/session/sealing.h"
#include "server/session/session_store.h"

namespace oscarkv {

// How many tokens after the first one that allows a page to be sealed it is sealed: steps in which
// it can be sealed ahead. Each keeps one more token in 16 bits.
inline constexpr int kSealSlack = 8;
static_assert(kSealSlack <= kPageTokens);

class LayerState {
 public:
  // `rollback_tokens`: as SessionConfig's. REQUIRES: spec and budget outlive the layer.
  LayerState(const LayerSpec* spec, std::int64_t position_base, MemoryBudget* budget,
             std::int64_t rollback_tokens = kDefaultRollbackTokens);
  ~LayerState() { TakePreparation(); }
  LayerState(const LayerState&) = delete;
  LayerState& operator=(const LayerState&) = delete;

  const LayerSpec& spec() const { return *spec_; }
  std::int64_t length() const { return length_; }
  const std::optional<AppendRecord>& last_append() const { return last_append_; }

  // Valid until the next change.
  LayerView View() const;
  LayerStats Stats() const;

  // Tokens from here on are there, and the sinks; 0: all are. Others have been freed, for no query
  // can see them: of a layer with a sliding window, those that a query at a position of
  // `rollback_tokens` before the end, or at the begin of the last append, would not see.
  std::int64_t kept_from() const;
  // Truncating to less, but not to 0, would miss tokens that have been freed.
  std::int64_t min_truncate_length() const;

  // How many pages could be sealed so that each is followed by a whole window.
  std::int64_t SealablePages() const;
  // Those of them that the next append seals: pages wait for kSealSlack more tokens. Fewer by one
  // at most.
  std::int64_t DuePages() const;

  // What the next pages are made of.
  SealSource Source() const;

  // Pages that are sealed ahead; null: none. They are the next ones, and sealable.
  const Preparation* preparation() const { return preparation_.get(); }
  // REQUIRES: there is none, and this one is of Source().
  void SetPreparation(std::shared_ptr<Preparation> preparation) {
    preparation_ = std::move(preparation);
  }
  // Waits for a piece under way; null if there is none.
  std::unique_ptr<Sealing> TakePreparation() noexcept;

  // What Truncate(length) may fail at, by bad_alloc: afterwards it cannot. What tokens are here
  // stays as it is.
  void PrepareTruncate(std::int64_t length) { pages_.PrepareTruncate(length); }
  // Drops all tokens at positions >= length, exactly: what remains is as it was. Forgets the last
  // append, and what was prepared. Truncating to 0 frees everything. Waits for a piece under way.
  // REQUIRES: PrepareTruncate(length); length is 0 or at least min_truncate_length().
  void Truncate(std::int64_t length);

  // What it is made of, for who writes it to a file.
  const BlockRef& sinks() const { return sinks_; }
  const PageTable& pages() const { return pages_; }
  const Window& window() const { return window_; }
  const QuerySample& sample() const { return sample_; }
  // Directions that its pages have found; empty: none.
  std::span<const float> found_directions() const { return directions_; }
  std::int64_t directions_begin() const { return directions_begin_; }

  struct Parts {
    BlockRef sinks;
    PageTable pages;
    Window window;
    QuerySample::Addition sample;
    std::vector<float> directions;
    std::int64_t directions_begin = 0;
    std::int64_t length = 0;
    std::optional<AppendRecord> last_append;
  };
  // Makes a layer of its parts. RESOURCE_EXHAUSTED for its sampled queries and directions: then
  // nothing has changed. REQUIRES: the layer is empty, and the parts are those of a layer.
  absl::Status Load(Parts parts);

  // Makes of `copy`, which is empty, what this layer is; it shares all that it can. Errors as
  // Fork's. REQUIRES: equal specs.
  absl::Status Share(LayerState* copy);
  // Makes of `fork`, which is empty, what this layer would be after Truncate(length). Pages and
  // blocks are shared; only the sampled queries and the directions are copied. Errors, which leave
  // `fork` empty: RESOURCE_EXHAUSTED for those, FAILED_PRECONDITION for tokens that have been
  // freed. May throw bad_alloc: then `fork` is good for nothing but to be destroyed. REQUIRES:
  // equal specs.
  absl::Status Fork(std::int64_t length, LayerState* fork);

 private:
  friend class LayerChange;

  std::int64_t PagesBefore(std::int64_t position) const;
  std::int64_t PreparedPages() const;
  bool WantsSample() const;
  void FreeUnseen() noexcept;
  // Residual directions to seal and to attend with; null: none (yet).
  const float* Directions() const;
  // Releases what host_memory_ holds beyond the sample and the directions.
  void TrimHostMemory();

  const LayerSpec* const spec_;
  const std::int64_t rollback_tokens_;
  BlockRef sinks_;
  PageTable pages_;
  Window window_;
  std::int64_t length_ = 0;
  std::optional<AppendRecord> last_append_;
  QuerySample sample_;
  std::vector<float> directions_;      // [kv_heads][key_dim], found by the first seal with queries
  std::int64_t directions_begin_ = 0;  // of the page that found them
  MemoryReservation host_memory_;
  std::shared_ptr<Preparation> preparation_;
};

}  // namespace oscarkv
