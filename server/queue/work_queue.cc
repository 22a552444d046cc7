#include "server/queue/work_queue.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/error.h"

namespace oscarkv {
namespace {

// Longer than most requests take, short beside a client's patience.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(100);

// Enough that checks, locks and small writes of one overlap with the attention of the other.
constexpr int kBatchesAtOnce = 2;
constexpr int kLongBatchesAtOnce = 1;

// Requests that are worked on or whose replies are on their way, for each place.
constexpr std::int64_t kTicketsPerPlace = 4;

std::int64_t Microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

absl::Status TooManyRequests(std::string_view message, std::int64_t limit) {
  return MakeError(absl::StatusCode::kResourceExhausted, message,
                   {.reason = "TOO_MANY_REQUESTS",
                    .metadata = {{"limit", absl::StrCat(limit)}},
                    .retry_after = kRetryAfter});
}

absl::Status NoPlace(std::int64_t limit) {
  return TooManyRequests("the tenant's share of the places for requests is taken", limit);
}

absl::Status NoTicket(std::int64_t limit) {
  return TooManyRequests("the tenant's share of replies has yet to be read", limit);
}

}  // namespace

absl::Status DrainingError() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is stopping",
                   {.reason = "DRAINING"});
}

WorkQueue::WorkQueue(int threads, int max_requests, RunTogether run_together, BatchLimits limits)
    : run_together_(std::move(run_together)),
      limits_(limits),
      places_(max_requests),
      tickets_(kTicketsPerPlace * max_requests) {
  threads_.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    Batch batch;
    batch.reserve(static_cast<std::size_t>(limits_.items));
    threads_.emplace_back([this, batch = std::move(batch)]() mutable { Loop(std::move(batch)); });
  }
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
  if (places_.free() <= 0) return NoPlace(places_.limit());
  if (tickets_.free() <= 0) return NoTicket(tickets_.limit());
  tickets_.Take();
  return Ticket(this);
}

absl::Status WorkQueue::Submit(Ticket& ticket, Work* work) {
  MutexLock lock(&mutex_);
  auto tenant = held_.find(work->facts().tenant);
  const Held held = tenant == held_.end() ? Held() : tenant->second;
  if (!places_.Allows(held.places, places_.free())) return NoPlace(places_.limit());
  // One is this request's already.
  if (!tickets_.Allows(held.tickets, tickets_.free() + 1)) return NoTicket(tickets_.limit());
  if (tenant == held_.end()) tenant = held_.emplace(work->facts().tenant, held).first;
  ++tenant->second.tickets;
  ticket.tenant_ = &*tenant;
  Push(work);  // where this throws, the ticket gives back what it has
  ++tenant->second.places;
  places_.Take();
  ticket.working_ = true;
  return absl::OkStatus();
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
  while (!tickets_.none_taken()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
  }
  return true;
}

QueueStats WorkQueue::Stats() const {
  MutexLock lock(&mutex_);
  QueueStats stats = stats_;
  stats.waiting = static_cast<std::int64_t>(waiting_.size());
  stats.tenants = static_cast<std::int64_t>(waiting_.tenants());
  return stats;
}

void WorkQueue::EndWork(HeldByTenant::value_type& tenant) {
  MutexLock lock(&mutex_);
  FreePlace(tenant);
}

void WorkQueue::Resume(Work* work) {
  MutexLock lock(&mutex_);
  Push(work);
}

void WorkQueue::FreePlace(HeldByTenant::value_type& tenant) {
  --tenant.second.places;
  places_.Give();
}

void WorkQueue::GiveBack(HeldByTenant::value_type* tenant, bool working) {
  MutexLock lock(&mutex_);
  if (working) FreePlace(*tenant);
  if (tenant != nullptr && --tenant->second.tickets == 0) held_.erase(held_.find(tenant->first));
  tickets_.Give();
  if (tickets_.none_taken()) idle_.SignalAll();
}

void WorkQueue::Push(Work* work) {
  work->queued_ = Clock::now();
  waiting_.Push(work);
  const bool other = work->facts().kind == WorkKind::kOther;
  if (other) ++waiting_others_;
  // Of batches, if as many run as may, the end of one will tell.
  if (sleeping_ > 0 && (other || batches_ < kBatchesAtOnce)) work_arrived_.Signal();
}

void WorkQueue::Loop(Batch batch) {
  for (Taken taken = TakeNext(batch); taken != Taken::kEnd; taken = TakeNext(batch)) {
    Work* const first = batch.front();
    if (first->dropped_.has_value()) {
      first->Drop(*first->dropped_);
    } else if (taken == Taken::kReply) {
      first->Run();
    } else if (first->facts().kind == WorkKind::kOther) {
      RunOther(first);
    } else {
      RunBatch(batch);
    }
    batch.clear();
  }
}

WorkQueue::Taken WorkQueue::TakeNext(Batch& batch) {
  MutexLock lock(&mutex_);
  while (true) {
    if (replies_.empty()) Gather(batch);
    if (!batch.empty()) {
      NoteTaken(batch);
      // What woke this thread may be good for another one too.
      if (sleeping_ > 0 && MoreMayBegin()) work_arrived_.Signal();
      return Taken::kWorks;
    }
    if (!replies_.empty()) {
      batch.push_back(replies_.Pop());
      if (sleeping_ > 0 && !replies_.empty()) work_arrived_.Signal();
      return Taken::kReply;
    }
    if (stopping_ && waiting_.empty()) {
      work_arrived_.SignalAll();  // others may have slept through the end
      return Taken::kEnd;
    }
    ++sleeping_;
    work_arrived_.Wait(&mutex_);
    --sleeping_;
  }
}

void WorkQueue::Gather(Batch& batch) {
  if (batches_ >= kBatchesAtOnce && waiting_others_ == 0) return;
  std::int64_t cost = 0;
  std::int64_t items = 0;
  // Sessions of the batch; and those of works that cannot go along, which later ones of the same
  // sessions must not overtake.
  SessionsSeen sessions;
  const auto fits = [&](const WorkFacts& facts) {
    if (batch.empty()) return true;
    return facts.kind == batch.front()->facts().kind && cost + facts.cost <= limits_.cost &&
           items + facts.items <= limits_.items;
  };
  waiting_.Offer([&](Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const WorkFacts& facts = work.facts();
    if (!batch.empty() &&
        (batch.front()->facts().kind == WorkKind::kOther || batch.size() == batch.capacity() ||
         cost >= limits_.cost || items >= limits_.items)) {
      return FairQueue::Verdict::kStop;
    }
    if (work.IsGivenUp()) return Drop(work, WhyDropped::kGivenUp);
    const bool taken = MayBegin(facts) && fits(facts) && !sessions.HasAnyOf(facts);
    try {
      sessions.Add(facts);
      if (taken) in_use_.Add(facts);
    } catch (const std::bad_alloc&) {
      return Drop(work, WhyDropped::kNoMemory);
    }
    if (!taken) return FairQueue::Verdict::kSkip;
    batch.push_back(&work);
    cost += facts.cost;
    items += facts.items;
    return FairQueue::Verdict::kTake;
  });
}

FairQueue::Verdict WorkQueue::Drop(Work& work, WhyDropped why) {
  work.dropped_ = why;
  replies_.Push(&work);
  if (work.facts().kind == WorkKind::kOther) --waiting_others_;
  return FairQueue::Verdict::kDrop;
}

bool WorkQueue::IsLong(const WorkFacts& facts) const {
  return facts.cost > limits_.cost || facts.items > limits_.items;
}

bool WorkQueue::MayBegin(const WorkFacts& facts) const {
  if (facts.kind != WorkKind::kOther) {
    if (batches_ >= kBatchesAtOnce) return false;
    if (IsLong(facts) && long_batches_ >= kLongBatchesAtOnce) return false;
  }
  return !in_use_.HasAnyOf(facts);
}

bool WorkQueue::MoreMayBegin() const {
  return !replies_.empty() || waiting_others_ > 0 ||
         (!waiting_.empty() && batches_ < kBatchesAtOnce);
}

void WorkQueue::NoteTaken(const Batch& batch) {
  const WorkKind kind = batch.front()->facts().kind;
  KindStats& stats = stats_.kinds[static_cast<std::size_t>(kind)];
  const Clock::time_point now = Clock::now();
  std::int64_t items = 0;
  for (const Work* work : batch) {
    stats.queue_microseconds.Add(Microseconds(now - work->queued_));
    items += work->facts().items;
  }
  stats.batch_works.Add(static_cast<std::int64_t>(batch.size()));
  stats.batch_items.Add(items);
  if (kind == WorkKind::kOther) {
    --waiting_others_;
    return;
  }
  ++batches_;
  if (IsLong(batch.front()->facts())) ++long_batches_;
}

void WorkQueue::RunOther(Work* work) {
  const std::shared_ptr<const WorkFacts> facts = work->facts_;  // the work may delete itself
  const Clock::time_point begin = Clock::now();
  work->Run();
  const Clock::duration run_time = Clock::now() - begin;
  MutexLock lock(&mutex_);
  NoteRunTime(WorkKind::kOther, run_time);
  if (facts != nullptr) in_use_.Remove(*facts);
  if (sleeping_ > 0 && MoreMayBegin()) work_arrived_.Signal();
}

void WorkQueue::RunBatch(const Batch& batch) {
  Work* const first = batch.front();
  const Clock::time_point begin = Clock::now();
  run_together_(batch);
  EndBatch(batch, Clock::now() - begin);
  first->Run();
}

void WorkQueue::EndBatch(const Batch& batch, Clock::duration run_time) {
  MutexLock lock(&mutex_);
  NoteRunTime(batch.front()->facts().kind, run_time);
  --batches_;
  if (IsLong(batch.front()->facts())) --long_batches_;
  for (const Work* work : batch) in_use_.Remove(work->facts());
  std::for_each(batch.begin() + 1, batch.end(),
                [this](Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { replies_.Push(work); });
  // For the replies, and one for the next batch: this thread has a reply to write first.
  const auto useful = static_cast<std::int64_t>(batch.size() - 1) + (waiting_.empty() ? 0 : 1);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(useful, sleeping_); ++i) {
    work_arrived_.Signal();
  }
}

void WorkQueue::NoteRunTime(WorkKind kind, Clock::duration run_time) {
  stats_.kinds[static_cast<std::size_t>(kind)].run_microseconds.Add(Microseconds(run_time));
}

}  // namespace oscarkv
