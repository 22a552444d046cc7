// Drivers of a model at once on one store, each with sessions of its own, while others move and
// write these, memory is short, and the store ends now and then. Under the thread sanitizer it
// checks the locks too. OSCARKV_TEST_FULL: a hundred thousand requests and more.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/session/model/store_driver.h"
#include "tests/server/session/model/store_rig.h"

namespace oscarkv {
namespace {

constexpr int kDrivers = 3;
constexpr int kRequests = 1500;  // of each, between two ends of the store

class StateMachineConcurrencyTest : public ::testing::Test {
 protected:
  StateMachineConcurrencyTest() {
    for (std::uint64_t i = 0; i < kDrivers; ++i) {
      drivers_.push_back(std::make_unique<StoreDriver>(DriverOptions{.seed = seed_ + i,
                                                                     .name = absl::StrCat("t", i),
                                                                     .moves_when_told = false,
                                                                     .settles = false}));
      drivers_.back()->Use(rig_.store());
    }
  }

  // Moves and writes sessions of all drivers, until it is told to stop.
  void Disturb(std::uint64_t seed, const std::atomic<bool>& stopped) {
    std::mt19937_64 random(seed);
    SessionStore& store = *rig_.store();
    while (!stopped) {
      const std::string id = absl::StrCat("t", random() % kDrivers,
                                          std::string(1, static_cast<char>('a' + random() % 8)));
      switch (random() % 8) {
        case 0:
        case 1:
          (void)store.Evict(id, 0);
          break;
        case 2:
        case 3:
          (void)store.Checkpoint(id, 0);
          break;
        case 4:
          (void)store.Restore(id, 0);
          break;
        case 5:
          (void)store.List("", 100, std::nullopt);
          break;
        case 6:
          (void)store.Export(id, 0);
          break;
        default:
          (void)store.Totals();
      }
      absl::SleepFor(absl::Microseconds(static_cast<double>(random() % 1000)));
    }
  }

  void RunAll() {
    std::atomic<bool> stopped = false;
    std::thread disturber([&] { Disturb(++disturbances_, stopped); });
    std::vector<std::thread> threads;
    for (const auto& driver : drivers_) {
      threads.emplace_back([driver = driver.get()] {
        for (int i = 0; i < kRequests && !HasFailure(); ++i) driver->Step();
      });
    }
    for (std::thread& thread : threads) thread.join();
    stopped = true;
    disturber.join();
  }

  void Settle() {
    for (const auto& driver : drivers_) driver->BeforeSettle();
    rig_.store()->Settle();
    for (const auto& driver : drivers_) driver->AfterSettle();
  }

  void Crash() {
    std::vector<std::map<std::string, std::int64_t>> durable;
    for (const auto& driver : drivers_) durable.push_back(driver->DurableLengths());
    rig_.Restart(false);
    for (std::size_t i = 0; i < drivers_.size(); ++i) {
      drivers_[i]->Use(rig_.store());
      const ModelSessions before = drivers_[i]->sessions();
      drivers_[i]->Recover(before, durable[i]);
    }
  }

  const std::uint64_t seed_ = DriverSeed(21);
  StoreRig rig_{{.budget = 1536 << 10, .checkpoint_interval = absl::Milliseconds(5)}};
  std::vector<std::unique_ptr<StoreDriver>> drivers_;
  std::uint64_t disturbances_ = 0;
};

TEST_F(StateMachineConcurrencyTest, EachDriverSeesItsModel) {
  const int ends = std::getenv("OSCARKV_TEST_FULL") != nullptr ? 24 : 2;
  for (int end = 0; end < ends && !HasFailure(); ++end) {
    RunAll();
    if (HasFailure()) break;
    Settle();
    drivers_[static_cast<std::size_t>(end % kDrivers)]->ExpectUndisturbed();
    if (!HasFailure()) Crash();
  }
  if (HasFailure()) {
    for (const auto& driver : drivers_) driver->PrintTrace();
    return;
  }
  for (const auto& driver : drivers_) driver->DeleteAll();
  EXPECT_EQ(rig_.store()->Totals().resident_bytes, 0);
  EXPECT_EQ(rig_.backend()->Info().block_bytes, 0);
  EXPECT_EQ(rig_.Files(), 0);
}

}  // namespace
}  // namespace oscarkv
