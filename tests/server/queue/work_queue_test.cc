#include "server/queue/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/base/error.h"
#include "tests/server/queue/test_work.h"
#include "tests/server/support/error_details.h"

namespace oscarkv {
namespace {

using ::testing::ElementsAre;
using testing::ReasonOf;
using testing::TestWork;
using ::testing::UnorderedElementsAre;
using testing::WaitUntilRan;

void NothingTogether(std::span<Work* const> /*works*/) { ADD_FAILURE(); }

TEST(WorkQueueTest, RunsAllWork) {
  std::atomic<int> done = 0;
  std::deque<TestWork> works;
  {
    WorkQueue queue(3, 1000, NothingTogether);
    for (int i = 0; i < 1000; ++i) {
      EXPECT_TRUE(works.emplace_back([&] { ++done; }).SubmitTo(queue).ok());
    }
  }
  EXPECT_EQ(done, 1000);
}

TEST(WorkQueueTest, RefusesOnceDraining) {
  WorkQueue queue(1, 2, NothingTogether);
  queue.Refuse();
  const absl::Status refused = queue.Admit().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
}

TEST(WorkQueueTest, WaitsForWhatIsUnderWay) {
  std::promise<void> release;
  auto ticket = std::make_unique<WorkQueue::Ticket>();
  TestWork work([&] {
    release.get_future().wait();
    ticket.reset();
  });
  WorkQueue queue(1, 2, NothingTogether);
  *ticket = queue.Admit().value();
  ASSERT_TRUE(ticket->Submit(&work).ok());
  std::future<bool> idle = std::async(
      std::launch::async, [&] { return queue.WaitUntilIdle(absl::Now() + absl::Seconds(60)); });
  EXPECT_FALSE(queue.WaitUntilIdle(absl::Now() + absl::Milliseconds(5)));
  release.set_value();
  EXPECT_TRUE(idle.get());
}

TEST(WorkQueueTest, OneThatWaitsDoesNotKeepOthersWaiting) {
  std::promise<void> release;
  std::promise<void> other_done;
  TestWork waits([&] { release.get_future().wait(); });
  TestWork other([&] { other_done.set_value(); });
  WorkQueue queue(2, 4, NothingTogether);
  ASSERT_TRUE(waits.SubmitTo(queue).ok());
  ASSERT_TRUE(other.SubmitTo(queue).ok());
  other_done.get_future().wait();
  release.set_value();
}

// Batches that wait to be let through, in the order in which they began, in a queue with ample
// threads.
class BatchingTest : public ::testing::Test {
 protected:
  using Names = std::vector<std::string>;

  struct Asked {
    WorkKind kind = WorkKind::kAttend;
    std::string tenant{};
    std::int64_t cost = 1;
    std::vector<std::uint64_t> sessions{};  // each with one layer
    std::uint64_t layer = 0;
    std::int64_t items = 1;
    std::vector<std::uint64_t> whole_sessions{};
    std::function<void()> run{};
  };

  ~BatchingTest() override {
    LetAllThrough();
    queue_.reset();
  }

  // Works that go together have a session of their own, if they are told none.
  TestWork& Submit(const std::string& name, Asked asked) {
    tenants_.push_back(asked.tenant);
    if (asked.kind != WorkKind::kOther && asked.sessions.empty()) {
      asked.sessions = {1000 + works_.size()};
    }
    WorkFacts facts = {.kind = asked.kind,
                       .tenant = tenants_.back(),
                       .cost = asked.cost,
                       .items = asked.items,
                       .whole_sessions = asked.whole_sessions};
    for (const std::uint64_t session : asked.sessions) {
      facts.layers.push_back({.session = session, .layer = session * 100 + asked.layer});
    }
    TestWork& work = works_.emplace_back(name, std::move(facts), std::move(asked.run));
    EXPECT_TRUE(work.SubmitTo(*queue_).ok());
    return work;
  }

  // Fills both slots with batches that are held: what comes next gathers.
  void HoldAll() {
    Submit("held 1", {.kind = WorkKind::kAppend, .sessions = {1}});
    WaitForBatches(1);
    Submit("held 2", {.kind = WorkKind::kAppend, .sessions = {2}});
    WaitForBatches(2);
  }

  // Lets the next so many batches through: in order, so that none that begins later takes the place
  // of one that has not noticed yet.
  void Release(std::size_t batches) {
    MutexLock lock(&mutex_);
    let_through_ += batches;
    changed_.SignalAll();
  }
  void LetAllThrough() { Release(1 << 20); }

  // Names of the works of batch number `index` in the order in which batches began.
  Names BatchAt(std::size_t index) {
    WaitForBatches(index + 1);
    MutexLock lock(&mutex_);
    return batches_[index];
  }

  std::size_t batches() {
    MutexLock lock(&mutex_);
    return batches_.size();
  }

  void WaitUntilAllRan() {
    for (const TestWork& work : works_) WaitUntilRan(work);
  }

  void WaitForBatches(std::size_t count) {
    MutexLock lock(&mutex_);
    while (batches_.size() < count) changed_.Wait(&mutex_);
  }

  void RunTogether(std::span<Work* const> works) {
    Names names;
    for (Work* work : works) names.push_back(static_cast<TestWork*>(work)->name());
    MutexLock lock(&mutex_);
    const std::size_t index = batches_.size();
    batches_.push_back(names);
    changed_.SignalAll();
    while (index >= let_through_) changed_.Wait(&mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<Names> batches_ ABSL_GUARDED_BY(mutex_);
  std::size_t let_through_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::string> tenants_;
  std::deque<TestWork> works_;
  std::unique_ptr<WorkQueue> queue_ = std::make_unique<WorkQueue>(
      4, 2000, [this](std::span<Work* const> works) { RunTogether(works); },
      BatchLimits{.cost = 100, .items = 10});
};

TEST_F(BatchingTest, AWorkThatMeetsAnIdleQueueRunsAlone) {
  Submit("a", {});
  EXPECT_THAT(BatchAt(0), ElementsAre("a"));
}

TEST_F(BatchingTest, WhatWaitsRunsTogether) {
  HoldAll();
  for (const char* name : {"a", "b", "c", "d"}) Submit(name, {});
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("a", "b", "c", "d"));
  LetAllThrough();
  WaitUntilAllRan();
  EXPECT_EQ(batches(), 3U);
}

TEST_F(BatchingTest, OnlyWorksOfOneKindRunTogether) {
  HoldAll();
  Submit("a", {});
  Submit("append", {.kind = WorkKind::kAppend});
  Submit("b", {});
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("a", "b"));
  Release(1);
  EXPECT_THAT(BatchAt(3), ElementsAre("append"));
}

TEST_F(BatchingTest, ASessionIsOnceInABatchAndItsWorksKeepTheirOrder) {
  HoldAll();
  Submit("a0", {.sessions = {7}, .layer = 0});
  Submit("a1", {.sessions = {7}, .layer = 1});
  Submit("b", {.sessions = {8}});
  Submit("ab",
         {.sessions = {9, 7}});  // behind a1, and c, which shares a session with it, behind it
  Submit("c", {.sessions = {9}});
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("a0", "b"));
  Release(1);  // another layer of a session under way is free
  EXPECT_THAT(BatchAt(3), ElementsAre("a1"));
  Release(2);
  EXPECT_THAT(BatchAt(4), ElementsAre("ab"));
  Release(1);
  EXPECT_THAT(BatchAt(5), ElementsAre("c"));
}

TEST_F(BatchingTest, ALayerIsInOneBatchUnderWay) {
  Submit("a", {.sessions = {7}});
  WaitForBatches(1);
  Submit("again", {.sessions = {7}});
  Submit("b", {.sessions = {8}});
  EXPECT_THAT(BatchAt(1), ElementsAre("b"));
  Release(2);
  EXPECT_THAT(BatchAt(2), ElementsAre("again"));
}

TEST_F(BatchingTest, BatchesAreBoundedByCostAndByItems) {
  HoldAll();
  Submit("40", {.cost = 40});
  Submit("50", {.cost = 50});
  Submit("20", {.cost = 20});
  Submit("10", {.cost = 10});
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("40", "50", "10"));
  Submit("six", {.items = 6});
  Submit("five", {.items = 5});
  Submit("three", {.items = 3});
  Release(1);
  EXPECT_THAT(BatchAt(3), ElementsAre("20", "six", "three"));
}

TEST_F(BatchingTest, OneLongBatchAtATimeLeavesRoomForShortOnes) {
  Submit("long 1", {.cost = 1000});
  WaitForBatches(1);
  Submit("long 2", {.cost = 1000});
  Submit("short 1", {});
  EXPECT_THAT(BatchAt(1), ElementsAre("short 1"));
  Submit("short 2", {});
  Release(2);
  WaitForBatches(4);
  EXPECT_THAT((std::vector<Names>{BatchAt(2), BatchAt(3)}),
              UnorderedElementsAre(Names{"long 2"}, Names{"short 2"}));
}

TEST_F(BatchingTest, OtherWorkPassesBatches) {
  HoldAll();
  Submit("a", {});
  WaitUntilRan(Submit("other", {.kind = WorkKind::kOther}));
  EXPECT_EQ(batches(), 2U);
}

// Otherwise two that read a layer by turns could keep those that decode from it for ever.
TEST_F(BatchingTest, OtherWorkDoesNotPassABatchThatNeedsTheSame) {
  HoldAll();
  Submit("a", {.sessions = {7}});
  const TestWork& reads = Submit("reads", {.kind = WorkKind::kOther, .sessions = {7}});
  const TestWork& ends = Submit("ends", {.kind = WorkKind::kOther, .whole_sessions = {7}});
  WaitUntilRan(Submit("other", {.kind = WorkKind::kOther, .sessions = {8}}));
  EXPECT_FALSE(reads.ran() || ends.ran());
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("a"));
  EXPECT_FALSE(reads.ran() || ends.ran());
  LetAllThrough();
  WaitUntilRan(ends);
  EXPECT_TRUE(reads.ran());
}

// However much other work waits for a layer or a session, it takes no thread from the rest.
TEST_F(BatchingTest, OtherWorkWaitsInTheQueueForItsLayers) {
  Submit("a", {.sessions = {7}});
  WaitForBatches(1);
  std::vector<const TestWork*> waiting;
  for (int i = 0; i < 10; ++i) {
    waiting.push_back(&Submit("reads", {.kind = WorkKind::kOther, .sessions = {7}}));
    waiting.push_back(&Submit("ends", {.kind = WorkKind::kOther, .whole_sessions = {7}}));
  }
  Submit("b", {.sessions = {8}});
  EXPECT_THAT(BatchAt(1), ElementsAre("b"));
  WaitUntilRan(Submit("other", {.kind = WorkKind::kOther}));
  for (const TestWork* work : waiting) EXPECT_FALSE(work->ran());
  Release(1);
  WaitUntilRan(*waiting.back());
}

TEST_F(BatchingTest, OtherWorkOnAnotherLayerDoesNotWait) {
  Submit("a", {.sessions = {7}, .layer = 0});
  WaitForBatches(1);
  WaitUntilRan(Submit("reads", {.kind = WorkKind::kOther, .sessions = {7}, .layer = 1}));
}

TEST_F(BatchingTest, WorksOfASessionWaitForOneThatNeedsItWhole) {
  std::promise<void> go_on;
  Submit("ends", {.kind = WorkKind::kOther, .whole_sessions = {7}, .run = [&] {
                    go_on.get_future().wait();
                  }});
  while (queue_->Stats().waiting > 0) std::this_thread::yield();
  Submit("a", {.sessions = {7}});
  const TestWork& reads = Submit("reads", {.kind = WorkKind::kOther, .sessions = {7}});
  const TestWork& again = Submit("again", {.kind = WorkKind::kOther, .whole_sessions = {7}});
  Submit("b", {.sessions = {8}});
  EXPECT_THAT(BatchAt(0), ElementsAre("b"));
  EXPECT_FALSE(reads.ran() || again.ran());
  go_on.set_value();
  EXPECT_THAT(BatchAt(1), ElementsAre("a"));
  LetAllThrough();
  WaitUntilAllRan();
}

// Nor is it kept waiting for ever by others that come for the same session.
TEST_F(BatchingTest, WorkThatNeedsASessionWholeIsNotOvertakenByBatches) {
  Submit("a", {.sessions = {7}, .layer = 0});
  WaitForBatches(1);
  const TestWork& ends = Submit("ends", {.kind = WorkKind::kOther, .whole_sessions = {7}});
  Submit("b", {.sessions = {7}, .layer = 1});
  Submit("c", {.sessions = {8}});
  EXPECT_THAT(BatchAt(1), ElementsAre("c"));
  EXPECT_FALSE(ends.ran());
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("b"));
  EXPECT_TRUE(ends.ran());
}

// A thousand requests of one tenant keep one of another waiting for a batch, not for all of them.
TEST_F(BatchingTest, TenantsTakeTurns) {
  HoldAll();
  for (int i = 0; i < 1000; ++i) Submit("many", {.tenant = "many", .cost = 30});
  Submit("one", {.tenant = "one", .cost = 30});
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("many", "one", "many"));
}

// Neither their cost nor what they need counts.
TEST_F(BatchingTest, WorksThatAreGivenUpAreDropped) {
  HoldAll();
  TestWork& large = Submit("large", {.cost = 100, .sessions = {7}});
  TestWork& other = Submit("other", {.kind = WorkKind::kOther, .sessions = {1}});
  Submit("a", {.cost = 60, .sessions = {7}});
  Submit("b", {.cost = 40});
  large.GiveUp();
  other.GiveUp();
  Release(1);
  EXPECT_THAT(BatchAt(2), ElementsAre("a", "b"));
  while (!large.dropped() || !other.dropped()) std::this_thread::yield();
  EXPECT_FALSE(large.ran() || other.ran());
  EXPECT_EQ(queue_->Stats().waiting, 0);
}

TEST_F(BatchingTest, StatsTellOfWaitingAndOfBatches) {
  HoldAll();
  for (const char* name : {"a", "b", "c"}) Submit(name, {.items = 2});
  EXPECT_EQ(queue_->Stats().waiting, 3);
  EXPECT_EQ(queue_->Stats().tenants, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  LetAllThrough();
  WaitUntilAllRan();
  const QueueStats stats = queue_->Stats();
  EXPECT_EQ(stats.waiting, 0);
  const KindStats& attend = stats.of(WorkKind::kAttend);
  EXPECT_EQ(attend.batch_works.count, 1);
  EXPECT_EQ(attend.batch_works.max, 3);
  EXPECT_EQ(attend.batch_items.sum, 6);
  EXPECT_EQ(attend.queue_microseconds.count, 3);
  EXPECT_GE(attend.queue_microseconds.max, 2000);
  EXPECT_EQ(stats.of(WorkKind::kAppend).batch_works.sum, 2);
  EXPECT_GE(stats.of(WorkKind::kAppend).run_microseconds.sum, 2000);
}

TEST(HistogramTest, CountsByPowersOfTwo) {
  Histogram histogram;
  for (const std::int64_t value : {0, 1, 2, 3, 4, 1000}) histogram.Add(value);
  EXPECT_EQ(histogram.buckets[0], 1);   // < 1
  EXPECT_EQ(histogram.buckets[1], 1);   // < 2
  EXPECT_EQ(histogram.buckets[2], 2);   // < 4
  EXPECT_EQ(histogram.buckets[3], 1);   // < 8
  EXPECT_EQ(histogram.buckets[10], 1);  // < 1024
  histogram.Add(std::int64_t{1} << 40);
  EXPECT_EQ(histogram.buckets.back(), 1);
  EXPECT_EQ(histogram.count, 7);
  EXPECT_EQ(histogram.max, std::int64_t{1} << 40);
}

}  // namespace
}  // namespace oscarkv
