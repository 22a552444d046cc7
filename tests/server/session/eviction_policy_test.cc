#include "server/session/eviction_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace oscarkv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr EvictionAction kSpill = EvictionAction::kSpill;
constexpr EvictionAction kDrop = EvictionAction::kDrop;
constexpr EvictionReason kTtl = EvictionReason::kTtl;
constexpr EvictionReason kQuota = EvictionReason::kQuota;
constexpr EvictionReason kMemory = EvictionReason::kMemory;

absl::Time At(std::int64_t seconds) { return absl::FromUnixSeconds(seconds); }

// Of tenant "t", without group, priority or time to live; it can be spilled.
EvictionCandidate Session(std::string id, std::int64_t bytes, std::int64_t last_use) {
  EvictionCandidate session;
  session.id = std::move(id);
  session.tenant = "t";
  session.resident_bytes = bytes;
  session.last_use = At(last_use);
  session.spillable = true;
  return session;
}

EvictionCandidate Spilled(EvictionCandidate session) {
  session.resident_bytes = 0;
  session.spilled = true;
  session.spillable = false;
  return session;
}

// Sweeps over a budget of 100 bytes, from 80 down to 50, with a lower tier. Ids are in the reverse
// of the order of the last use, so that neither can be taken for the other.
class EvictionPolicyTest : public ::testing::Test {
 protected:
  EvictionPolicyTest() {
    input_.now = At(1000);
    input_.budget_bytes = 100;
    input_.low_watermark = 0.5;
    input_.high_watermark = 0.8;
    input_.can_spill = true;
  }

  EvictionCandidate& Add(const EvictionCandidate& candidate) {
    input_.used_bytes += candidate.resident_bytes;
    return input_.candidates.emplace_back(candidate);
  }
  // Three sessions of 30 bytes: "c", "b", "a", the least recently used first.
  void AddThree() {
    Add(Session("c", 30, 1));
    Add(Session("b", 30, 2));
    Add(Session("a", 30, 3));
  }
  EvictionCandidate& Get(const std::string& id) {
    return *std::find_if(input_.candidates.begin(), input_.candidates.end(),
                         [&](const EvictionCandidate& c) { return c.id == id; });
  }

  std::vector<EvictionDecision> Plan() const { return PlanEvictions(input_); }
  std::vector<std::string> PlannedIds() const {
    std::vector<std::string> ids;
    for (const EvictionDecision& decision : Plan()) ids.push_back(decision.id);
    return ids;
  }

  EvictionInput input_;
};

TEST(Watermarks, AreFractionsAndInOrder) {
  EXPECT_TRUE(AreValidWatermarks(0.5, 0.8));
  EXPECT_TRUE(AreValidWatermarks(0.5, 0.5));
  EXPECT_TRUE(AreValidWatermarks(1, 1));
  EXPECT_FALSE(AreValidWatermarks(0.8, 0.5));
  EXPECT_FALSE(AreValidWatermarks(0, 0.5));
  EXPECT_FALSE(AreValidWatermarks(-0.5, 0.5));
  EXPECT_FALSE(AreValidWatermarks(0.5, 1.01));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(AreValidWatermarks(nan, 0.5));
  EXPECT_FALSE(AreValidWatermarks(0.5, nan));
}

// Memory.

TEST_F(EvictionPolicyTest, NothingIsPlannedForNoSessions) {
  input_.used_bytes = 100;
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(EvictionPolicyTest, UpToTheHighWatermarkNothingIsEvicted) {
  AddThree();
  input_.used_bytes = 80;
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(EvictionPolicyTest, BeyondItTheLeastRecentlyUsedAreSpilledDownToTheLowOne) {
  AddThree();
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"c", kSpill, kMemory},
                                  EvictionDecision{"b", kSpill, kMemory}));
  input_.used_bytes = 81;  // more than sessions are counted, or they share blocks
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
  input_.low_watermark = 0.51;
  EXPECT_THAT(PlannedIds(), ElementsAre("c"));
}

TEST_F(EvictionPolicyTest, LowerPriorityGoesFirst) {
  AddThree();
  Get("c").priority = 1;
  Get("a").priority = -1;
  EXPECT_THAT(PlannedIds(), ElementsAre("a", "b"));
}

TEST_F(EvictionPolicyTest, TiesGoById) {
  AddThree();
  for (EvictionCandidate& candidate : input_.candidates) candidate.last_use = At(1);
  EXPECT_THAT(PlannedIds(), ElementsAre("a", "b"));
}

TEST_F(EvictionPolicyTest, PinnedAndBusyStay) {
  AddThree();
  Get("c").pinned = true;
  Get("b").busy = true;
  EXPECT_THAT(PlannedIds(), ElementsAre("a"));
}

TEST_F(EvictionPolicyTest, WhatHoldsNoMemoryStays) {
  Add(Session("e", 0, 0));
  Add(Spilled(Session("d", 0, 0)));
  AddThree();
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
}

TEST_F(EvictionPolicyTest, ARequestIsCountedAsUsed) {
  AddThree();
  input_.used_bytes = 60;
  input_.wanted_bytes = 20;
  EXPECT_THAT(Plan(), IsEmpty());
  input_.wanted_bytes = 21;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
}

TEST_F(EvictionPolicyTest, ARequestBeyondTheLowWatermarkEvictsWhatItNeeds) {
  AddThree();
  input_.wanted_bytes = 40;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b", "a"));  // 40 of 50
  input_.wanted_bytes = 60;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));  // 90 of 100; 50 cannot be reached
  input_.wanted_bytes = 100;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b", "a"));
}

TEST_F(EvictionPolicyTest, ARequestThatFitsEvictsNothingIfTheLowWatermarkIsOutOfReach) {
  AddThree();
  Get("c").pinned = true;
  Get("b").pinned = true;
  input_.wanted_bytes = 10;
  EXPECT_THAT(Plan(), IsEmpty());
  input_.wanted_bytes = 11;
  EXPECT_THAT(PlannedIds(), ElementsAre("a"));
  input_.wanted_bytes = 0;  // a sweep does what it can
  EXPECT_THAT(PlannedIds(), ElementsAre("a"));
}

TEST_F(EvictionPolicyTest, NothingIsEvictedForARequestThatCannotFit) {
  AddThree();
  Get("c").busy = true;
  input_.used_bytes = 80;
  input_.wanted_bytes = 80;
  EXPECT_THAT(PlannedIds(), ElementsAre("b", "a"));
  input_.wanted_bytes = 81;
  EXPECT_THAT(Plan(), IsEmpty());
  input_.used_bytes = 81;  // that of a sweep
  EXPECT_THAT(PlannedIds(), ElementsAre("b", "a"));
}

TEST_F(EvictionPolicyTest, SharedBlocksDoNotMakeMoreRoomThanIsUsed) {
  AddThree();
  input_.used_bytes = 40;
  input_.wanted_bytes = 101;
  EXPECT_THAT(Plan(), IsEmpty());
  input_.wanted_bytes = 100;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
}

// What may be lost.

TEST_F(EvictionPolicyTest, WithoutALowerTierNothingIsLostUnlessThatIsAllowed) {
  AddThree();
  input_.quota_bytes["t"] = 60;
  input_.can_spill = false;
  EXPECT_THAT(Plan(), IsEmpty());
  input_.may_drop = true;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"c", kDrop, kQuota}));
  input_.quota_bytes.clear();
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"c", kDrop, kMemory},
                                  EvictionDecision{"b", kDrop, kMemory}));
}

TEST_F(EvictionPolicyTest, WhatCannotBeSpilledStaysUnlessItMayBeLost) {
  AddThree();
  Get("c").spillable = false;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"b", kSpill, kMemory},
                                  EvictionDecision{"a", kSpill, kMemory}));
  input_.may_drop = true;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"c", kDrop, kMemory},
                                  EvictionDecision{"b", kSpill, kMemory}));
}

// Time to live.

TEST_F(EvictionPolicyTest, ATimeToLiveEndsWhateverTheMemory) {
  input_.can_spill = false;
  Add(Session("a", 10, 900)).ttl = absl::Seconds(100);
  Add(Session("b", 10, 901)).ttl = absl::Seconds(100);
  Add(Spilled(Session("c", 0, 0))).ttl = absl::Seconds(100);
  EXPECT_THAT(Plan(),
              ElementsAre(EvictionDecision{"c", kDrop, kTtl}, EvictionDecision{"a", kDrop, kTtl}));
}

TEST_F(EvictionPolicyTest, NoTimeToLiveEndsWhilePinnedOrBusy) {
  Add(Session("a", 10, 0)).ttl = absl::Seconds(100);
  Add(Session("b", 10, 0)).ttl = absl::Seconds(100);
  Get("a").pinned = true;
  Get("b").busy = true;
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(EvictionPolicyTest, NoTimeToLiveEndsBeforeTheFirstMomentOrIfInfinite) {
  Add(Session("a", 10, 2000)).ttl = absl::Seconds(1);  // the clock was set back
  Add(Session("b", 10, 0)).last_use = absl::InfinitePast();
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(EvictionPolicyTest, WhatHasExpiredMakesRoomForTheRest) {
  AddThree();
  input_.quota_bytes["t"] = 60;
  Get("a").ttl = absl::Seconds(100);
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"a", kDrop, kTtl}));
}

// Quotas.

TEST_F(EvictionPolicyTest, ATenantBeyondItsQuotaEvictsItsOwn) {
  Add(Session("d", 10, 0)).tenant = "other";
  Add(Session("c", 20, 1));
  Add(Session("b", 20, 2));
  Add(Session("a", 20, 3));
  input_.quota_bytes = {{"t", 60}, {"other", 10}, {"absent", 1}};
  EXPECT_THAT(Plan(), IsEmpty());
  input_.quota_bytes["t"] = 59;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"c", kSpill, kQuota}));
  input_.quota_bytes["t"] = 39;
  input_.quota_bytes["other"] = 9;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"d", kSpill, kQuota},
                                  EvictionDecision{"c", kSpill, kQuota},
                                  EvictionDecision{"b", kSpill, kQuota}));
}

TEST_F(EvictionPolicyTest, AQuotaOfZeroIsNone) {
  Add(Session("a", 70, 0));
  input_.quota_bytes["t"] = 0;
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(EvictionPolicyTest, WhatIsPinnedCountsTowardsTheQuota) {
  Add(Session("c", 20, 1)).pinned = true;
  Add(Session("b", 20, 2));
  Add(Session("a", 20, 3));
  input_.quota_bytes["t"] = 40;
  EXPECT_THAT(PlannedIds(), ElementsAre("b"));
  input_.quota_bytes["t"] = 1;
  EXPECT_THAT(PlannedIds(), ElementsAre("b", "a"));
}

TEST_F(EvictionPolicyTest, QuotasMakeRoomForMemory) {
  AddThree();
  Get("a").tenant = "greedy";
  input_.quota_bytes["greedy"] = 20;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"a", kSpill, kQuota}));
  input_.high_watermark = 0.5;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"a", kSpill, kQuota},
                                  EvictionDecision{"c", kSpill, kMemory}));
}

// Groups.

class EvictedGroupTest : public EvictionPolicyTest {
 protected:
  // Sessions "d" and "a" of a group, 40 bytes, last used at 2; "c" before and "b" after it.
  EvictedGroupTest() {
    Add(Session("c", 10, 1));
    Add(Session("d", 20, 0)).group = "g";
    Add(Session("a", 20, 2)).group = "g";
    Add(Session("b", 40, 3));
  }
};

TEST_F(EvictedGroupTest, GoesWholeAtItsLatestUse) {
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "a", "d"));
  input_.low_watermark = 0.79;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "a", "d"));
  input_.low_watermark = 0.8;
  EXPECT_THAT(PlannedIds(), ElementsAre("c"));
}

TEST_F(EvictedGroupTest, HasTheHighestPriorityOfItsMembers) {
  Get("d").priority = 1;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
}

TEST_F(EvictedGroupTest, IsHeldByOneMember) {
  Get("d").pinned = true;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
  Get("d").pinned = false;
  Get("d").busy = true;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
}

TEST_F(EvictedGroupTest, IsSpilledIfAllOfItCanBe) {
  Get("a").spillable = false;
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "b"));
  input_.may_drop = true;
  EXPECT_THAT(Plan(), ElementsAre(EvictionDecision{"c", kSpill, kMemory},
                                  EvictionDecision{"a", kDrop, kMemory},
                                  EvictionDecision{"d", kDrop, kMemory}));
}

TEST_F(EvictedGroupTest, SpillsThoseThatAreNotSpilledAndDropsAll) {
  Get("d") = Spilled(Get("d"));
  EXPECT_THAT(PlannedIds(), ElementsAre("c", "a", "b"));
  Get("a").spillable = false;
  input_.may_drop = true;
  EXPECT_THAT(
      Plan(),
      ElementsAre(EvictionDecision{"c", kSpill, kMemory}, EvictionDecision{"a", kDrop, kMemory},
                  EvictionDecision{"d", kDrop, kMemory}, EvictionDecision{"b", kSpill, kMemory}));
}

TEST_F(EvictedGroupTest, LivesAsLongAsItsLongestLivingMember) {
  input_.used_bytes = 0;
  Get("d").ttl = absl::Seconds(100);
  EXPECT_THAT(Plan(), IsEmpty());
  Get("a").ttl = absl::Seconds(998);
  EXPECT_THAT(Plan(),
              ElementsAre(EvictionDecision{"a", kDrop, kTtl}, EvictionDecision{"d", kDrop, kTtl}));
  Get("a").ttl = absl::Seconds(999);
  EXPECT_THAT(Plan(), IsEmpty());
}

TEST_F(EvictedGroupTest, IsOfOneTenant) {
  Get("a").tenant = "other";
  EXPECT_THAT(PlannedIds(), ElementsAre("d", "c", "a"));
}

}  // namespace
}  // namespace oscarkv
