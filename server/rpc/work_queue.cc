#include "server/rpc/work_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/error.h"

namespace oscarkv {
namespace {

// Longer than most requests take, short beside a client's patience.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(100);

}  // namespace

absl::Status DrainingError() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is stopping",
                   {.reason = "DRAINING"});
}

WorkQueue::WorkQueue(int threads, int max_requests) : max_requests_(max_requests) {
  threads_.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_arrived_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<WorkQueue::Ticket> WorkQueue::Admit() {
  MutexLock lock(&mutex_);
  if (draining_) return DrainingError();
  if (working_ >= max_requests_) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("all ", max_requests_, " places for requests are taken"),
                     {.reason = "TOO_MANY_REQUESTS",
                      .metadata = {{"limit", absl::StrCat(max_requests_)}},
                      .retry_after = kRetryAfter});
  }
  ++working_;
  ++tickets_;
  return Ticket(this);
}

void WorkQueue::Run(std::function<void()> work) {
  {
    MutexLock lock(&mutex_);
    work_.push_back(std::move(work));
  }
  work_arrived_.Signal();
}

void WorkQueue::Refuse() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

bool WorkQueue::refuses() const {
  MutexLock lock(&mutex_);
  return draining_;
}

bool WorkQueue::WaitUntilIdle(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (tickets_ > 0) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
  }
  return true;
}

void WorkQueue::EndWork() {
  MutexLock lock(&mutex_);
  FreePlace();
}

void WorkQueue::Resume(std::function<void()> work) {
  {
    MutexLock lock(&mutex_);
    if (working_ >= max_requests_) {
      resumed_.push_back(std::move(work));
      return;
    }
    ++working_;
    work_.push_back(std::move(work));
  }
  work_arrived_.Signal();
}

void WorkQueue::FreePlace() {
  if (resumed_.empty()) {
    --working_;
    return;
  }
  work_.push_back(std::move(resumed_.front()));  // the place changes hands
  resumed_.pop_front();
  work_arrived_.Signal();
}

void WorkQueue::GiveBack(bool working) {
  MutexLock lock(&mutex_);
  if (working) FreePlace();
  if (--tickets_ == 0) idle_.SignalAll();
}

void WorkQueue::Loop() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mutex_);
      while (work_.empty() && !stopping_) work_arrived_.Wait(&mutex_);
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace oscarkv
