#include "server/rpc/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "server/base/error.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::ReasonOf;

TEST(WorkQueueTest, RunsAllWork) {
  std::atomic<int> done = 0;
  {
    WorkQueue queue(3, 100);
    for (int i = 0; i < 1000; ++i) queue.Run([&] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

TEST(WorkQueueTest, AdmitsNoMoreThanItsLimit) {
  WorkQueue queue(1, 2);
  absl::StatusOr<WorkQueue::Ticket> first = queue.Admit();
  const absl::StatusOr<WorkQueue::Ticket> second = queue.Admit();
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status refused = queue.Admit().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_REQUESTS");
  EXPECT_GT(DetailsOf(refused)->retry_after, absl::ZeroDuration());
  *first = WorkQueue::Ticket();
  EXPECT_TRUE(queue.Admit().ok());
}

TEST(WorkQueueTest, WorkThatHasEndedLeavesItsPlaceButIsWaitedFor) {
  WorkQueue queue(1, 1);
  {
    WorkQueue::Ticket first = queue.Admit().value();
    first.EndWork();
    EXPECT_TRUE(queue.Admit().ok());
    EXPECT_FALSE(queue.WaitUntilIdle(absl::Now()));
  }
  EXPECT_TRUE(queue.WaitUntilIdle(absl::Now()));
}

TEST(WorkQueueTest, WorkThatResumesWaitsForAPlaceAndGoesBeforeNewRequests) {
  WorkQueue queue(1, 1);
  WorkQueue::Ticket reader = queue.Admit().value();
  reader.EndWork();
  WorkQueue::Ticket other = queue.Admit().value();
  std::promise<void> resumed;
  std::atomic<bool> other_ended = false;
  std::atomic<bool> in_order = false;
  reader.Resume([&] {
    in_order = other_ended.load();
    resumed.set_value();
  });
  EXPECT_EQ(ReasonOf(queue.Admit().status()), "TOO_MANY_REQUESTS");
  other_ended = true;
  other.EndWork();
  resumed.get_future().wait();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(ReasonOf(queue.Admit().status()), "TOO_MANY_REQUESTS");  // the reader has the place
  reader.EndWork();
  EXPECT_TRUE(queue.Admit().ok());
}

TEST(WorkQueueTest, WorkThatResumesRunsAtOnceWhereThereIsAPlace) {
  WorkQueue queue(1, 1);
  WorkQueue::Ticket ticket = queue.Admit().value();
  ticket.EndWork();
  std::promise<void> resumed;
  ticket.Resume([&] { resumed.set_value(); });
  resumed.get_future().wait();
  EXPECT_FALSE(queue.Admit().ok());
  ticket = WorkQueue::Ticket();
  EXPECT_TRUE(queue.Admit().ok());
}

TEST(WorkQueueTest, RefusesOnceDraining) {
  WorkQueue queue(1, 2);
  queue.Refuse();
  const absl::Status refused = queue.Admit().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
}

TEST(WorkQueueTest, WaitsForWhatIsUnderWay) {
  WorkQueue queue(1, 2);
  auto ticket = std::make_shared<WorkQueue::Ticket>(queue.Admit().value());
  EXPECT_FALSE(queue.WaitUntilIdle(absl::Now() + absl::Milliseconds(5)));
  std::promise<void> release;
  queue.Run([&release, ticket] { release.get_future().wait(); });
  ticket.reset();
  std::future<bool> idle = std::async(
      std::launch::async, [&] { return queue.WaitUntilIdle(absl::Now() + absl::Seconds(60)); });
  EXPECT_FALSE(queue.WaitUntilIdle(absl::Now() + absl::Milliseconds(5)));
  release.set_value();
  EXPECT_TRUE(idle.get());
}

TEST(WorkQueueTest, OneThatWaitsDoesNotKeepOthersWaiting) {
  WorkQueue queue(2, 4);
  std::promise<void> release;
  std::promise<void> other_done;
  queue.Run([&] { release.get_future().wait(); });
  queue.Run([&] { other_done.set_value(); });
  other_done.get_future().wait();
  release.set_value();
}

}  // namespace
}  // namespace oscarkv
