// Memory for the step that is under way on a session. A model appends a token, or a chunk of a
// prompt, to one layer after the other; a step that is refused memory in its middle would leave the
// layers uneven. So the layer that first comes to a position takes memory for all layers to come
// there, and those that follow take what they have been promised.
//
// A layer is promised what it needs if it goes there in appends no longer than the longest one of
// the step so far, whether or not blocks are shared by then.
//
// Thread-safety: all functions may be called at once, those that name a layer under its lock. Under
// the mutex only what the session publishes is read, and the budget locked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/pages/memory_budget.h"
#include "server/session/layer_state.h"
#include "server/session/session_store.h"

namespace oscarkv {

// Bytes that appends take of the budget, by the purpose for which they may.
struct StepNeed {
  std::int64_t keep = 0;
  std::int64_t seal = 0;

  std::int64_t all() const { return keep + seal; }
};

// What a layer needs at most to get from where it is to a length of `to`, by appends of at most
// `chunk` tokens, its sampled queries included. Nothing if it is that long.
StepNeed NeedOf(const LayerSpec& spec, std::int64_t rollback_tokens, const LayerStats& at,
                std::int64_t to, std::int64_t chunk);

class StepMemory {
 public:
  using PublishedLayers = absl::FunctionRef<absl::StatusOr<std::vector<LayerStats>>()>;

  // REQUIRES: both outlive it.
  StepMemory(const SessionConfig* config, MemoryBudget* budget);
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  // Gives `promise`, which is empty and of kPromised, what has been promised to a layer that is
  // about to append `tokens`. If it is the first one that comes so far, takes memory for all layers
  // first; RESOURCE_EXHAUSTED if there is not enough: then nothing has changed. `published`: asked
  // in that case how the session's layers are now; with its error the step is refused.
  absl::Status Take(std::size_t index, const LayerState& layer, std::int32_t tokens,
                    PublishedLayers published, MemoryReservation* promise);
  // The same for a layer that only takes queries into its sample.
  void TakeForQueries(std::size_t index, MemoryReservation* promise);
  // Takes back what the layer has left of it, and releases what it will not need for this step.
  // `queries_came`: those of its tokens, which may also follow on their own.
  void Return(std::size_t index, const LayerState& layer, bool queries_came,
              MemoryReservation* promise);
  // No step is under way any more, or it has taken too long: what is promised is released.
  void End();

 private:
  void Give(std::size_t index, MemoryReservation* promise) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Promises each layer what it lacks of `needs`, or none.
  absl::Status Promise(std::span<const StepNeed> needs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionConfig* const config_;
  MemoryBudget* const budget_;

  Mutex mutex_;
  std::int64_t promised_to_ ABSL_GUARDED_BY(mutex_) = 0;  // all layers; 0: no step is under way
  std::int64_t chunk_ ABSL_GUARDED_BY(mutex_) = 0;        // the longest append of the step
  std::vector<std::int64_t> promises_ ABSL_GUARDED_BY(mutex_);  // by layer, not given out
  MemoryReservation memory_ ABSL_GUARDED_BY(mutex_);            // their sum
};

}  // namespace oscarkv
