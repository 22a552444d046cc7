#include "server/pages/memory_budget.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace oscarkv {
namespace {

TEST(MemoryBudgetTest, HoldsItsLimitOverAllKinds) {
  MemoryBudget budget(100);
  EXPECT_TRUE(budget.Reserve(MemoryKind::kPages, 60));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kWindow, 41));
  EXPECT_TRUE(budget.Reserve(MemoryKind::kWindow, 40));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kPages, 1));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kPages, std::numeric_limits<std::int64_t>::max()));
  EXPECT_TRUE(budget.Reserve(MemoryKind::kPages, 0));
  EXPECT_EQ(budget.used(), 100);
  EXPECT_EQ(budget.used(MemoryKind::kPages), 60);
  EXPECT_EQ(budget.used(MemoryKind::kWindow), 40);
  budget.Release(MemoryKind::kPages, 60);
  EXPECT_EQ(budget.used(), 40);
}

// So that a full budget can be compressed.
TEST(MemoryBudgetTest, SealsMayOverdrawByA64th) {
  MemoryBudget budget(6400);
  EXPECT_TRUE(budget.Reserve(MemoryKind::kWindow, 6400));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kWindow, 1));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kPages, 1));
  EXPECT_TRUE(budget.Reserve(MemoryKind::kPages, 60, Purpose::kSeal));
  EXPECT_TRUE(budget.Reserve(MemoryKind::kWindow, 40, Purpose::kSeal));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kPages, 1, Purpose::kSeal));
  EXPECT_FALSE(
      budget.Reserve(MemoryKind::kPages, std::numeric_limits<std::int64_t>::max(), Purpose::kSeal));
  EXPECT_FALSE(budget.Reserve(MemoryKind::kSession, 1));
}

// What has been promised is there, however full the budget is by then.
TEST(MemoryBudgetTest, TakesWhatWasPromisedFirst) {
  MemoryBudget budget(6400);
  MemoryReservation promise(&budget, MemoryKind::kPromised);
  ASSERT_TRUE(promise.Grow(100));
  ASSERT_TRUE(budget.Reserve(MemoryKind::kWindow, 6300));
  ASSERT_TRUE(budget.Reserve(MemoryKind::kPages, 50, Purpose::kSeal));  // overdrawn
  EXPECT_TRUE(budget.Reserve(MemoryKind::kWindow, 60, Purpose::kKeep, &promise));
  EXPECT_EQ(promise.bytes(), 40);
  EXPECT_EQ(budget.used(MemoryKind::kPromised), 40);
  EXPECT_EQ(budget.used(MemoryKind::kWindow), 6360);
  EXPECT_EQ(budget.used(), 6450);
  // More than was promised: all or nothing.
  EXPECT_FALSE(budget.Reserve(MemoryKind::kWindow, 41, Purpose::kKeep, &promise));
  EXPECT_EQ(promise.bytes(), 40);
  EXPECT_TRUE(budget.Reserve(MemoryKind::kPages, 90, Purpose::kSeal, &promise));
  EXPECT_EQ(promise.bytes(), 0);
  EXPECT_EQ(budget.used(), 6500);
}

TEST(MemoryReservationTest, PassesOnAPart) {
  MemoryBudget budget(100);
  MemoryReservation a(&budget, MemoryKind::kPromised);
  MemoryReservation b(&budget, MemoryKind::kPromised);
  ASSERT_TRUE(a.Grow(50));
  b.Absorb(&a, 20);
  EXPECT_EQ(a.bytes(), 30);
  EXPECT_EQ(b.bytes(), 20);
  const MemoryReservation c = std::move(b);
  EXPECT_EQ(c.bytes(), 20);
  EXPECT_EQ(budget.used(), 50);
}

TEST(MemoryReservationTest, ReleasesWhatItHolds) {
  MemoryBudget budget(100);
  {
    MemoryReservation a(&budget, MemoryKind::kWindow);
    ASSERT_TRUE(a.Grow(30));
    EXPECT_FALSE(a.Grow(71));
    EXPECT_EQ(a.bytes(), 30);
    {
      MemoryReservation b(&budget, MemoryKind::kWindow);
      ASSERT_TRUE(b.Grow(20));
      a.Absorb(&b);
      EXPECT_EQ(b.bytes(), 0);
    }
    EXPECT_EQ(budget.used(MemoryKind::kWindow), 50);
    a.Shrink(10);
    EXPECT_EQ(budget.used(MemoryKind::kWindow), 40);
  }
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace oscarkv
