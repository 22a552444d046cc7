// Seals pages ahead, in the background: between the request that makes it possible and the append
// that needs them sealed (server/session/INVARIANTS.md), so that no reply waits for a whole page.
//
// Thread-safety: all functions may be called at once, but for DoPiece.
//
// Invariants: the thread takes no lock of a session or a layer; it works on preparations, and these
// in the order in which they came, since layers come round in the order in which they were left.
// It ends with the preparer and at no other time: what fails is counted and left to the append.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "kernels/api/backend.h"
#include "server/base/mutex.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/layer_state.h"
#include "server/session/preparation.h"

namespace oscarkv {

class Preparer {
 public:
  // `most_pages`: of a layer at once. Without a thread until Start. REQUIRES: all outlive it.
  Preparer(Backend* backend, BlockPool* pool, MemoryBudget* budget, int most_pages);
  ~Preparer();
  Preparer(const Preparer&) = delete;
  Preparer& operator=(const Preparer&) = delete;

  // REQUIRES: not called before.
  void Start();

  // Has the layer's due pages prepared, or else the one that will be due next, if it can be sealed
  // and memory allows, unless the layer has a preparation. Quick. REQUIRES: the layer's lock is
  // held; the preparer's thread is the only one that is.
  void Prepare(LayerState* layer) noexcept;

  // Does the next piece there is; false if there was none. REQUIRES: not started.
  bool DoPiece() noexcept { return DoNext(); }

  // Pieces that could not be done, and layers for whose preparation there was no host memory.
  std::int64_t failures() const { return failures_.load(std::memory_order_relaxed); }
  // Pages that were sealed ahead, whole, with all that came with them.
  std::int64_t pages() const { return pages_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  bool DoNext() noexcept;
  // Null if memory does not allow for it.
  std::shared_ptr<Preparation> Make(const LayerState& layer);
  bool Enqueue(const std::shared_ptr<Preparation>& preparation);

  Backend* const backend_;
  BlockPool* const pool_;
  MemoryBudget* const budget_;
  const std::int64_t most_pages_;
  std::atomic<std::int64_t> failures_{0};
  std::atomic<std::int64_t> pages_{0};

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Preparation>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscarkv
