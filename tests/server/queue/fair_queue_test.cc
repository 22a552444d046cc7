#include "server/queue/fair_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace oscarkv {
namespace {

using ::testing::ElementsAre;
using Verdict = FairQueue::Verdict;

class NamedWork : public Work {
 public:
  NamedWork(std::string tenant, std::int64_t cost) : tenant_(std::move(tenant)) {
    set_facts({.tenant = tenant_, .cost = cost});
  }
  void Run() override {}
  void Drop(WhyDropped /*why*/) override {}
  const std::string& tenant() const { return tenant_; }

 private:
  const std::string tenant_;
};

class FairQueueTest : public ::testing::Test {
 protected:
  Work* Push(const std::string& tenant, std::int64_t cost = 1) {
    works_.push_back(std::make_unique<NamedWork>(tenant, cost));
    queue_.Push(works_.back().get());
    return works_.back().get();
  }

  // Takes up to `count` works, and tells whose they are.
  std::vector<std::string> Take(std::size_t count) {
    std::vector<std::string> tenants;
    queue_.Offer([&](Work& work) {
      if (tenants.size() == count) return Verdict::kStop;
      tenants.emplace_back(work.facts().tenant);
      return Verdict::kTake;
    });
    return tenants;
  }

  FairQueue queue_;
  std::deque<std::unique_ptr<NamedWork>> works_;
};

TEST_F(FairQueueTest, OneTenantsWorksKeepTheirOrder) {
  std::vector<Work*> pushed;
  for (int i = 0; i < 5; ++i) pushed.push_back(Push("a", 5 - i));
  std::vector<Work*> taken;
  queue_.Offer([&](Work& work) {
    taken.push_back(&work);
    return Verdict::kTake;
  });
  EXPECT_EQ(taken, pushed);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.size(), 0U);
}

TEST_F(FairQueueTest, TenantsTakeTurns) {
  for (int i = 0; i < 1000; ++i) Push("many");
  Push("one");
  EXPECT_THAT(Take(3), ElementsAre("many", "one", "many"));
}

TEST_F(FairQueueTest, WhoComesLaterIsNextAndCannotCatchUp) {
  for (int i = 0; i < 1000; ++i) Push("many");
  EXPECT_EQ(Take(500).size(), 500U);
  for (int i = 0; i < 3; ++i) Push("late");
  EXPECT_THAT(Take(6),
              ::testing::UnorderedElementsAre("many", "late", "many", "late", "many", "late"));
}

TEST_F(FairQueueTest, SharesAreByCostNotByNumber) {
  for (int i = 0; i < 100; ++i) Push("large", 10);
  for (int i = 0; i < 1000; ++i) Push("small", 1);
  std::map<std::string, int> taken;
  for (const std::string& tenant : Take(110)) ++taken[tenant];
  EXPECT_NEAR(taken["large"], 10, 1);
}

// One work at a time does not get a tenant more than its share: what it was served stays charged
// while others wait.
TEST_F(FairQueueTest, GoingIdleBetweenWorksSavesNothing) {
  for (int i = 0; i < 100; ++i) Push("steady", 10);
  int sneaky = 0;
  bool waits = false;
  for (int i = 0; i < 100; ++i) {
    if (!waits) Push("sneaky", 30);
    waits = Take(1).front() != "sneaky";
    if (!waits) ++sneaky;
  }
  EXPECT_NEAR(sneaky, 25, 2);
}

TEST_F(FairQueueTest, ASkippedWorkStaysFirstAndOthersPass) {
  Work* const first = Push("a");
  Work* const second = Push("a");
  Work* const other = Push("b");
  std::vector<Work*> taken;
  queue_.Offer([&](Work& work) {
    if (&work == first) return Verdict::kSkip;
    taken.push_back(&work);
    return Verdict::kTake;
  });
  EXPECT_THAT(taken, ElementsAre(other, second));
  Push("a");
  queue_.Offer([&](Work& work) {
    EXPECT_EQ(&work, first);
    return Verdict::kStop;
  });
  EXPECT_EQ(queue_.size(), 2U);
}

// What is skipped keeps its place, however much of its own tenant passes it and whoever else comes
// with little.
TEST_F(FairQueueTest, ASkippedWorkIsOfferedFirstInTheEnd) {
  Push("b", 1);
  Work* const skipped = Push("a", 70);
  bool was_first = false;
  for (int round = 0; round < 10 && !was_first; ++round) {
    Push("b", 1);
    Push("a", 60);
    bool first = true;
    queue_.Offer([&](Work& work) {
      if (&work == skipped) was_first = first;
      if (&work == skipped && !first) return Verdict::kSkip;
      first = false;
      return Verdict::kTake;
    });
  }
  EXPECT_TRUE(was_first);
}

TEST_F(FairQueueTest, WhatIsDroppedIsNotCharged) {
  Push("a", 1);
  Work* const dropped = Push("a", 100);
  for (int i = 0; i < 30; ++i) Push("b", 1);
  queue_.Offer([&](Work& work) { return &work == dropped ? Verdict::kDrop : Verdict::kSkip; });
  for (int i = 0; i < 8; ++i) Push("a", 1);
  std::map<std::string, int> taken;
  for (const std::string& tenant : Take(16)) ++taken[tenant];
  EXPECT_NEAR(taken["a"], 8, 1);
  EXPECT_EQ(queue_.size(), 23U);
}

TEST_F(FairQueueTest, AfterOneThatIsDroppedATenantsWorksKeepTheirOrder) {
  Work* const dropped = Push("a", 10);
  Work* const second = Push("a", 1);
  queue_.Offer([&](Work& work) { return &work == dropped ? Verdict::kDrop : Verdict::kStop; });
  Work* const third = Push("a", 1);
  std::vector<Work*> taken;
  queue_.Offer([&](Work& work) {
    taken.push_back(&work);
    return Verdict::kTake;
  });
  EXPECT_THAT(taken, ElementsAre(second, third));
}

TEST_F(FairQueueTest, TenantsOfLongAgoAreForgotten) {
  Push("waits", 1000000);
  Push("waits", 1000000);
  EXPECT_EQ(Take(1).size(), 1U);
  for (int i = 0; i < 1000; ++i) {
    Push(std::to_string(i));
    EXPECT_THAT(Take(1), ElementsAre(std::to_string(i)));
    EXPECT_LT(queue_.tenants(), 1003U);
  }
  EXPECT_EQ(Take(1).size(), 1U);  // now_ is at the end
  Push("after");
  EXPECT_EQ(queue_.tenants(), 1U);
}

// However works come, no tenant that always waits gets less than its share by more than the
// costs of about two works.
TEST_F(FairQueueTest, NoOneWhoWaitsFallsBehind) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    FairQueue queue;
    std::map<std::string, std::int64_t> served;
    constexpr int kTenants = 5;
    constexpr std::int64_t kMost = 50;
    for (int i = 0; i < 5000; ++i) {
      const int tenant = static_cast<int>(random() % kTenants);
      const std::int64_t cost = 1 + random() % (tenant % 2 == 0 ? kMost : kMost / 10);
      works_.push_back(std::make_unique<NamedWork>(std::to_string(tenant), cost));
      queue.Push(works_.back().get());
    }
    int taken = 0;
    queue.Offer([&](Work& work) {
      // Half of all: no tenant has run out.
      if (taken++ == 500) return Verdict::kStop;
      served[std::string(work.facts().tenant)] += work.facts().cost;
      return Verdict::kTake;
    });
    const auto [least, most] =
        std::minmax_element(served.begin(), served.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
    EXPECT_EQ(served.size(), static_cast<std::size_t>(kTenants));
    EXPECT_LE(most->second - least->second, kMost);
  }
}

}  // namespace
}  // namespace oscarkv
