// Who is admitted to a WorkQueue, and who is refused.
#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/base/error.h"
#include "server/queue/work_queue.h"
#include "tests/server/queue/test_work.h"
#include "tests/server/support/error_details.h"

namespace oscarkv {
namespace {

using testing::ReasonOf;
using testing::TestWork;
using testing::WaitUntilRan;

void NothingTogether(std::span<Work* const> /*works*/) { ADD_FAILURE(); }

// Works that are held until they are told to run, in a queue with one thread.
class PlacesTest : public ::testing::Test {
 protected:
  explicit PlacesTest(int max_requests = 8) : queue_(1, max_requests, NothingTogether) {}
  ~PlacesTest() override { GoOn(); }

  void GoOn() {
    if (!go_on_) release_.set_value();
    go_on_ = true;
  }

  absl::Status Submit(const std::string& tenant) {
    WorkFacts facts = {.tenant = tenants_.emplace_back(tenant)};
    return works_.emplace_back("", facts, [held = held_] { held.wait(); }).SubmitTo(queue_);
  }

  // How many of so many requests get a place.
  int SubmitMany(const std::string& tenant, int count = 100) {
    int submitted = 0;
    for (int i = 0; i < count; ++i) {
      if (Submit(tenant).ok()) ++submitted;
    }
    return submitted;
  }

  std::promise<void> release_;
  const std::shared_future<void> held_ = release_.get_future().share();
  bool go_on_ = false;
  std::deque<std::string> tenants_;
  std::deque<TestWork> works_;
  WorkQueue queue_;
};

TEST_F(PlacesTest, ATenantThatIsAloneGetsTheLimit) {
  EXPECT_EQ(SubmitMany("a"), 8);
  const absl::Status refused = Submit("a");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_REQUESTS");
  EXPECT_EQ(DetailsOf(refused)->metadata[0].second, "8");
  EXPECT_GT(DetailsOf(refused)->retry_after, absl::ZeroDuration());
  GoOn();
  while (!Submit("a").ok()) std::this_thread::yield();
}

TEST_F(PlacesTest, ATenantThatHasAllPlacesLeavesOneToAnother) {
  EXPECT_EQ(SubmitMany("many"), 8);
  EXPECT_TRUE(Submit("one").ok());
}

TEST_F(PlacesTest, WithoutAFreePlaceARequestIsRefusedBeforeItIsRead) {
  EXPECT_EQ(SubmitMany("many"), 8);
  EXPECT_TRUE(Submit("one").ok());
  const absl::Status refused = queue_.Admit().status();
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_REQUESTS");
}

class OnePlaceTest : public PlacesTest {
 protected:
  OnePlaceTest() : PlacesTest(1) {}
};

TEST_F(OnePlaceTest, LeavesOneToAnother) {
  EXPECT_EQ(SubmitMany("many"), 1);
  EXPECT_EQ(SubmitMany("other"), 1);
}

class ManyPlacesTest : public PlacesTest {
 protected:
  static constexpr int kPlaces = 256;
  ManyPlacesTest() : PlacesTest(kPlaces) {}

  WorkQueue::Ticket Take(const std::string& tenant) {
    WorkFacts facts = {.tenant = tenants_.emplace_back(tenant)};
    WorkQueue::Ticket ticket;
    absl::StatusOr<WorkQueue::Ticket> admitted = queue_.Admit();
    if (!admitted.ok()) return ticket;
    TestWork& work = works_.emplace_back("", facts);
    if (!admitted->Submit(&work).ok()) return ticket;
    return *std::move(admitted);
  }
};

// Whoever came first: places that come free go to those that have less.
TEST_F(ManyPlacesTest, ThoseThatAlwaysAskForMoreComeToTheSame) {
  std::map<std::string, std::deque<WorkQueue::Ticket>> held;
  const std::vector<std::string> tenants = {"first", "second", "third", "fourth"};
  const auto fill = [&] {
    for (const std::string& tenant : tenants) {
      while (true) {
        WorkQueue::Ticket ticket = Take(tenant);
        if (!ticket.has_place()) break;
        held[tenant].push_back(std::move(ticket));
      }
    }
  };
  fill();
  EXPECT_EQ(held["first"].size(), 256U);
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    auto& of_one = held[tenants[random() % tenants.size()]];
    if (!of_one.empty()) of_one.pop_front();
    fill();
    std::size_t all = 0;
    for (const auto& [tenant, tickets] : held) all += tickets.size();
    EXPECT_LE(all, kPlaces + kPlaces / 8U);
  }
  for (const std::string& tenant : tenants) EXPECT_NEAR(held[tenant].size(), 70, 8) << tenant;
  EXPECT_TRUE(Take("another").has_place());
}

TEST(WorkQueueTest, WorkThatHasEndedLeavesItsPlaceButIsWaitedFor) {
  TestWork first({});
  TestWork second({});
  WorkQueue queue(1, 1, NothingTogether);
  {
    WorkQueue::Ticket ticket = queue.Admit().value();
    ASSERT_TRUE(ticket.Submit(&first).ok());
    EXPECT_FALSE(second.SubmitTo(queue).ok());
    ticket.EndWork();
    EXPECT_TRUE(second.SubmitTo(queue).ok());
    EXPECT_FALSE(queue.WaitUntilIdle(absl::Now()));
  }
  EXPECT_TRUE(queue.WaitUntilIdle(absl::Now() + absl::Seconds(60)));
}

// It takes no place from new requests either.
TEST(WorkQueueTest, WorkThatResumesIsNotRefused) {
  std::promise<void> release;
  std::promise<void> resumed;
  TestWork begin({});
  TestWork rest([&] { resumed.set_value(); });
  TestWork other([&] { release.get_future().wait(); });
  TestWork another({});
  WorkQueue queue(1, 1, NothingTogether);
  WorkQueue::Ticket reader = queue.Admit().value();
  ASSERT_TRUE(reader.Submit(&begin).ok());
  reader.EndWork();
  ASSERT_TRUE(other.SubmitTo(queue).ok());
  EXPECT_FALSE(another.SubmitTo(queue).ok());
  reader.Resume(&rest);
  EXPECT_FALSE(another.SubmitTo(queue).ok());
  release.set_value();
  resumed.get_future().wait();
  WaitUntilRan(other);
  EXPECT_TRUE(another.SubmitTo(queue).ok());
  WaitUntilRan(another);
}

// Clients that do not read must not fill the memory with replies, nor keep others from theirs.
TEST(WorkQueueTest, RepliesOnTheirWayAreBoundedToo) {
  std::deque<TestWork> works;
  WorkQueue queue(1, 2, NothingTogether);
  const auto unread = [&](std::string_view tenant) {
    std::vector<WorkQueue::Ticket> tickets;
    for (int i = 0; i < 100; ++i) {
      absl::StatusOr<WorkQueue::Ticket> ticket = queue.Admit();
      if (!ticket.ok()) continue;
      const absl::Status status =
          ticket->Submit(&works.emplace_back("", WorkFacts{.tenant = tenant}));
      if (!status.ok()) {
        EXPECT_EQ(ReasonOf(status), "TOO_MANY_REQUESTS");
        continue;
      }
      ticket->EndWork();
      tickets.push_back(*std::move(ticket));
    }
    return tickets;
  };
  std::vector<WorkQueue::Ticket> many = unread("many");
  EXPECT_EQ(many.size(), 8U);
  const std::vector<WorkQueue::Ticket> one = unread("one");
  EXPECT_EQ(one.size(), 1U);
  const absl::Status refused = queue.Admit().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_REQUESTS");
  many.clear();
  EXPECT_EQ(unread("many").size(), 8U);
}

}  // namespace
}  // namespace oscarkv
