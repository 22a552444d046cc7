// Runs requests off gRPC's threads: at most so many at a time, shared between tenants, those that
// can go together in one batch; and drains.
//
// A thread that becomes free takes the work that is next in fair order (fair_queue.h), and with it
// all that wait and can go along: of the same kind, no session twice, up to BatchLimits. So a
// request that meets an idle queue runs at once and alone; while batches run, requests gather, and
// the next batch is as large as the load makes it. No one waits for a batch to fill.
//
// A work waits while what it needs alone, layers or a whole session, is in use by works under way:
// its thread would only wait for the lock, and with it the others of its batch. At most two batches
// run at once, of which one at most is long, so that a decode step never waits for a long prompt;
// nor do works of kOther, for which a thread is always left where there are three.
//
// Plain threads, not oneTBB's: requests wait for locks of sessions, and a worker of oneTBB that
// waits inside a parallel loop may take up another request, which could wait for the lock it holds.
//
// Thread-safety: all functions may be called at once.
// Invariants:
//   1. Each request that is queued or run, until its work ends or pauses, has one of places_, which
//      its tenant may take (shares.h): what is queued or run is bounded, and no tenant locks others
//      out. A request whose work has ended does not count, though its reply may still be on its
//      way: otherwise a client that has its reply could be refused because the server has not
//      noticed yet. Who is refused is told at once: no request waits for a place.
//   2. Work that resumes is queued without a place: it is never refused, waits for its turn alone
//      and keeps no place from new requests. It has a ticket, which bounds it.
//   3. Each request has one of tickets_, a few times as many as places, from Admit until its reply
//      is out: clients that do not read their replies keep no more of them in memory. A tenant has
//      its share of these too, counted from Submit on. Once draining_, none is given out, so they
//      only come back. held_ has the tenants that have any.
//   4. in_use_ has what the works under way need alone; no two batches or works of kOther share any
//      of it.
//   5. While a thread sleeps, nothing that waits may run, or a signal is on its way.
//   6. No work is passed over for ever: works come first in fair order in the end (fair_queue.h),
//      and what a work that comes first needs is not given to those behind it, whether it waits for
//      that or for its batch. Works of kOther for other sessions go ahead of batches while as many
//      run as may.
//   7. A work is run, with others or alone, or dropped: once. Works whose clients have given up are
//      dropped when a batch is looked for, and so is one for which there is no memory then. Threads
//      of the queue take no other memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/queue/fair_queue.h"
#include "server/queue/keys_in_use.h"
#include "server/queue/queue_stats.h"
#include "server/queue/shares.h"
#include "server/queue/work.h"

namespace oscarkv {

// One batch stays within these, but for a work that is beyond them alone: that is a long batch.
struct BatchLimits {
  // As WorkFacts::cost. 4 GiB: 256 decode steps over 4096 tokens with 8 kv heads of 128; about
  // 20 ms at 30 GB/s and 2.5 bits a value.
  std::int64_t cost = std::int64_t{4} << 20;
  std::int64_t items = 1024;
};

class WorkQueue {
 public:
  // The right of one request to be submitted; its place, from Submit to EndWork; and the sign that
  // its reply is not out yet, until it is destroyed.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(queue_, other.queue_);
      std::swap(tenant_, other.tenant_);
      std::swap(working_, other.working_);
      return *this;
    }
    ~Ticket() {
      if (queue_ != nullptr) queue_->GiveBack(tenant_, working_);
    }

    // Takes a place for the work's tenant, and calls work->Run(), if it is of kOther; otherwise
    // RunTogether, and then Run. RESOURCE_EXHAUSTED TOO_MANY_REQUESTS, with a time to try again
    // after, where the tenant has its share already: then nothing is called. May throw
    // std::bad_alloc, as if it had not been called. REQUIRES: Admit gave the ticket, Submit was
    // not OK before; `work` lives until then. It, and the ticket, may be gone on return.
    absl::Status Submit(Work* work) { return queue_->Submit(*this, work); }

    bool has_place() const { return working_; }

    // Leaves the place to others.
    void EndWork() {
      if (working_) queue_->EndWork(*tenant_);
      working_ = false;
    }

    // Submits more work of the request, which needs no place: a request that was admitted is not
    // refused in the middle. May throw as Submit. REQUIRES: Submit was OK, and EndWork was called.
    void Resume(Work* work) { queue_->Resume(work); }

   private:
    friend class WorkQueue;
    explicit Ticket(WorkQueue* queue) : queue_(queue) {}
    WorkQueue* queue_ = nullptr;
    HeldByTenant::value_type* tenant_ = nullptr;  // from Submit on
    bool working_ = false;
  };

  // Runs works of one kind, kOther apart, together. Must not throw.
  using RunTogether = std::function<void(std::span<Work* const>)>;

  // REQUIRES: threads and max_requests > 0.
  WorkQueue(int threads, int max_requests, RunTogether run_together, BatchLimits limits = {});
  // REQUIRES: every ticket has been given back.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // UNAVAILABLE DRAINING; or, where not even a tenant that has none could get a place, as Submit.
  absl::StatusOr<Ticket> Admit();

  // Admits nothing from now on.
  void Refuse();
  bool refuses() const;
  // Waits until no ticket is out; false if `deadline` came first.
  bool WaitUntilIdle(absl::Time deadline);

  QueueStats Stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Batch = std::vector<Work*>;
  enum class Taken : std::uint8_t { kEnd, kReply, kWorks };

  absl::Status Submit(Ticket& ticket, Work* work);
  void EndWork(HeldByTenant::value_type& tenant);
  void Resume(Work* work);
  void GiveBack(HeldByTenant::value_type* tenant, bool working);
  void FreePlace(HeldByTenant::value_type& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Push(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Loop(Batch batch);  // an empty one, with memory for all that one may have
  // Into the empty `batch`. Blocks.
  Taken TakeNext(Batch& batch);
  void Gather(Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FairQueue::Verdict Drop(Work& work, WhyDropped why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayBegin(const WorkFacts& facts) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLong(const WorkFacts& facts) const;
  void NoteTaken(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether another thread may find work, if it looks.
  bool MoreMayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunOther(Work* work);
  void RunBatch(const Batch& batch);
  // Leaves the replies of all but the first to other threads.
  void EndBatch(const Batch& batch, Clock::duration run_time);
  void NoteRunTime(WorkKind kind, Clock::duration run_time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RunTogether run_together_;
  const BatchLimits limits_;

  mutable Mutex mutex_;
  CondVar work_arrived_;
  CondVar idle_;
  FairQueue waiting_ ABSL_GUARDED_BY(mutex_);
  // Left over from batches, and dropped; before all else.
  WorkList replies_ ABSL_GUARDED_BY(mutex_);
  KeysInUse in_use_ ABSL_GUARDED_BY(mutex_);
  std::int64_t waiting_others_ ABSL_GUARDED_BY(mutex_) = 0;  // of kOther
  int batches_ ABSL_GUARDED_BY(mutex_) = 0;                  // under way
  int long_batches_ ABSL_GUARDED_BY(mutex_) = 0;
  int sleeping_ ABSL_GUARDED_BY(mutex_) = 0;  // threads
  Shares places_ ABSL_GUARDED_BY(mutex_);
  Shares tickets_ ABSL_GUARDED_BY(mutex_);
  HeldByTenant held_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  QueueStats stats_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

absl::Status DrainingError();

}  // namespace oscarkv
