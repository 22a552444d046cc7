// Runs requests off gRPC's threads, at most so many at a time, and drains.
//
// Plain threads, not oneTBB's: requests wait for locks of sessions, and a worker of oneTBB that
// waits inside a parallel loop may take up another request, which could wait for the lock it holds.
//
// Thread-safety: all functions may be called at once.
// Invariants:
//   1. working_ <= max_requests: what is queued or run is bounded. A request whose work has ended
//      does not count against others, though its reply may still be on its way: otherwise a client
//      that has its reply could be refused because the server has not noticed yet.
//   2. Work that resumes waits in resumed_ while working_ == max_requests, ahead of new requests.
//   3. working_ <= tickets_. Once draining_, no ticket is given out, so tickets_ only falls.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"

namespace oscarkv {

class WorkQueue {
 public:
  // The right of one request to be queued and run, until EndWork; and the sign that its reply is
  // not out yet, until it is destroyed.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(queue_, other.queue_);
      std::swap(working_, other.working_);
      return *this;
    }
    ~Ticket() {
      if (queue_ != nullptr) queue_->GiveBack(working_);
    }

    void EndWork() {
      if (working_) queue_->EndWork();
      working_ = false;
    }

    // Takes a place again, and runs `work` as WorkQueue::Run does once there is one: a request that
    // was admitted is not refused in the middle. REQUIRES: EndWork was called.
    void Resume(std::function<void()> work) {
      working_ = true;
      queue_->Resume(std::move(work));
    }

   private:
    friend class WorkQueue;
    explicit Ticket(WorkQueue* queue) : queue_(queue), working_(true) {}
    WorkQueue* queue_ = nullptr;
    bool working_ = false;
  };

  // REQUIRES: both > 0.
  WorkQueue(int threads, int max_requests);
  // REQUIRES: every ticket has been given back.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // UNAVAILABLE DRAINING, or RESOURCE_EXHAUSTED TOO_MANY_REQUESTS with a time to try again after.
  absl::StatusOr<Ticket> Admit();

  // Runs `work`, which must not throw, on one of the threads, in the order of calls.
  // REQUIRES: the caller holds a ticket.
  void Run(std::function<void()> work);

  // Admits nothing from now on.
  void Refuse();
  bool refuses() const;
  // Waits until no ticket is out; false if `deadline` came first.
  bool WaitUntilIdle(absl::Time deadline);

 private:
  void EndWork();
  void Resume(std::function<void()> work);
  void GiveBack(bool working);
  void FreePlace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();

  const int max_requests_;
  mutable Mutex mutex_;
  CondVar work_arrived_;
  CondVar idle_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> resumed_ ABSL_GUARDED_BY(mutex_);  // without a place yet
  int working_ ABSL_GUARDED_BY(mutex_) = 0;
  int tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

absl::Status DrainingError();

}  // namespace oscarkv
