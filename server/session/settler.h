// Seals in the background what idle sessions still keep in 16 bits, and ends the steps of workers
// that do not go on. Appends seal lazily, one step
// behind (server/session/INVARIANTS.md); without new tokens the rest would stay as it is for ever.
//
// Thread-safety: all functions may be called at once.
//
// Invariants: a layer is settled only where no step is under way on its session, under its lease,
// a few pages at a time, so that a request, or the settler's end, waits for those at most. The
// thread ends with the settler and at no other time: what fails, by an error or for want of host
// memory, is counted and tried again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/session/batch.h"
#include "server/session/session.h"

namespace oscarkv {

class Settler {
 public:
  // Starts the thread. `after`: how long a session must have been idle; `step_lease`: as
  // StoreOptions'.
  Settler(const BatchContext& context, absl::Duration after, absl::Duration step_lease);
  ~Settler();
  Settler(const Settler&) = delete;
  Settler& operator=(const Settler&) = delete;

  // Settles every session now, however short it has been idle.
  void SettleAll();

  // Layers, or all that was left of a session, that could not be settled when it was tried, for
  // want of memory or by a backend's error.
  std::int64_t failures() const { return failures_.load(std::memory_order_relaxed); }

 private:
  void Loop();
  bool Stopping();
  void SettleIdle(std::chrono::nanoseconds idle);
  // All sessions; none, and a failure, if there is no memory for the list.
  std::vector<std::shared_ptr<Session>> Sessions() noexcept;
  // Whether nothing was left undone, but for what later requests make due.
  bool SettleSession(const std::shared_ptr<Session>& session) noexcept;
  bool SettleLayer(const std::shared_ptr<Session>& session, std::size_t index);
  // How many pages it sealed; 0 while a step is under way.
  absl::StatusOr<std::int64_t> SealSome(const std::shared_ptr<Session>& session, std::size_t index,
                                        std::int64_t at_once);

  const BatchContext context_;
  const absl::Duration after_;
  const absl::Duration step_lease_;
  std::atomic<std::int64_t> failures_{0};

  Mutex pass_mutex_;  // one pass at a time: who waits for a pass finds its work done
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscarkv
