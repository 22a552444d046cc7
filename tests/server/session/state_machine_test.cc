// All that can be done to sessions, in any order, right and wrong, with crashes in between, against
// a plain model. OSCARKV_TEST_FULL: a million requests. OSCARKV_TEST_SEED: another sequence.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/server/session/model/store_driver.h"
#include "tests/server/session/model/store_rig.h"

namespace oscarkv {
namespace {

struct Machine {
  const char* name = "";
  std::int64_t budget = 0;
  bool files = true;
  bool moves_when_told = true;
  std::int64_t requests = 0;       // of CI
  std::int64_t full_requests = 0;  // together a million
};

class StateMachineTest : public ::testing::TestWithParam<Machine> {
 protected:
  StateMachineTest()
      : seed_(DriverSeed(11)),
        random_(seed_),
        rig_({.budget = GetParam().budget, .files = GetParam().files}),
        driver_({.seed = seed_,
                 .name = "t",
                 .files = GetParam().files,
                 .moves_when_told = GetParam().moves_when_told}) {
    driver_.Use(rig_.store());
  }
  bool OneIn(std::uint64_t n) { return random_() % n == 0; }

  // A request, in the middle of which a crash may leave the files as they are then.
  void StepAndMaybeCrash() {
    const bool armed = OneIn(500);
    ModelSessions before;
    if (armed) {
      before = driver_.sessions();
      rig_.ArmCrash(1 + static_cast<int>(random_() % 6));
    }
    driver_.Step();
    if (!armed || !rig_.Crashed()) return;
    rig_.Restart(true);
    driver_.Use(rig_.store());
    driver_.Recover(before, {});
  }

  void Crash() {
    const auto durable = driver_.DurableLengths();
    const ModelSessions before = driver_.sessions();
    rig_.Restart(false);
    driver_.Use(rig_.store());
    driver_.Recover(before, durable);
  }

  // Evicted sessions hold nothing but themselves; once they are back, nothing is shared.
  void Audit() {
    driver_.EvictAll();
    const StoreTotals evicted = rig_.store()->Totals();
    EXPECT_EQ(evicted.sessions, std::ssize(driver_.sessions()));
    EXPECT_EQ(evicted.evicted_sessions, evicted.sessions);
    EXPECT_EQ(evicted.block_bytes, 0);
    EXPECT_EQ(evicted.logical_bytes, 0);
    EXPECT_EQ(rig_.Files(), evicted.sessions);
    EXPECT_EQ(evicted.tier_failures, 0);
    EXPECT_EQ(evicted.prepare_failures, 0);
    if (!GetParam().moves_when_told) return;
    EXPECT_EQ(evicted.settle_failures, 0);
    driver_.RestoreAll();
    std::int64_t resident = 0;
    std::int64_t logical = 0;
    for (const SessionInfo& info : rig_.store()->List("", 100, std::nullopt)) {
      resident += info.resident_bytes;
      logical += info.logical_bytes;
    }
    EXPECT_EQ(rig_.store()->Totals().resident_bytes, evicted.resident_bytes + resident);
    EXPECT_EQ(rig_.store()->Totals().logical_bytes, logical);
  }

  void ExpectNothingLeft() {
    driver_.DeleteAll();
    EXPECT_EQ(rig_.store()->Totals().resident_bytes, 0);
    EXPECT_EQ(rig_.store()->Totals().logical_bytes, 0);
    EXPECT_EQ(rig_.backend()->Info().block_bytes, 0);
    if (GetParam().files) {
      EXPECT_EQ(rig_.Files(), 0);
    }
  }

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  StoreRig rig_;
  StoreDriver driver_;
};

TEST_P(StateMachineTest, StoreDoesAsTheModel) {
  const std::int64_t requests =
      std::getenv("OSCARKV_TEST_FULL") != nullptr ? GetParam().full_requests : GetParam().requests;
  while (driver_.steps() < requests && !HasFailure()) {
    if (GetParam().files && OneIn(1000)) {
      Crash();
    } else if (GetParam().files && OneIn(500)) {
      Audit();
    } else if (GetParam().files) {
      StepAndMaybeCrash();
    } else {
      driver_.Step();
    }
  }
  if (!HasFailure()) driver_.ExpectUndisturbed();
  if (!HasFailure()) ExpectNothingLeft();
  if (HasFailure()) driver_.PrintTrace();
}

INSTANTIATE_TEST_SUITE_P(Machines, StateMachineTest,
                         ::testing::Values(Machine{.name = "WithRoom",
                                                   .budget = std::int64_t{1} << 30,
                                                   .requests = 20000,
                                                   .full_requests = 450'000},
                                           Machine{.name = "WithLittleRoom",
                                                   .budget = 600 << 10,
                                                   .moves_when_told = false,
                                                   .requests = 20000,
                                                   .full_requests = 350'000},
                                           Machine{.name = "InMemoryAlone",
                                                   .budget = 600 << 10,
                                                   .files = false,
                                                   .requests = 20000,
                                                   .full_requests = 200'000}),
                         [](const auto& machine) { return machine.param.name; });

}  // namespace
}  // namespace oscarkv
