// A step that is refused memory is refused at its first layer: never at a later one, whatever other
// sessions take meanwhile.
#include "server/session/step_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/pages/memory_budget.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class StepMemoryTest : public StoreOnDisk {
 protected:
  std::int64_t Promised() const {
    const StoreTotals totals = store_->Totals();
    return totals.resident_bytes_of[static_cast<std::size_t>(MemoryKind::kPromised)];
  }
  void MakeStoreOf(std::int64_t budget, absl::Duration lease) {
    store_.reset();
    store_ = std::make_unique<SessionStore>(backend_.get(),
                                            StoreOptions{.memory_budget_bytes = budget,
                                                         .settle_after = absl::InfiniteDuration(),
                                                         .step_lease = lease});
  }
  absl::Status AppendTo(const std::string& id, std::size_t layer, std::int64_t begin, int count,
                        bool with_queries = false) {
    const SessionInfo info = Info(id);
    const LayerSpec& spec = info.config->layers[layer];
    const Source source{.spec = &spec, .seed = 20 + layer};
    Request request = AppendRequest(id, info.generation, source, begin, count, with_queries);
    return Append(store_.get(), spec.layer, &request);
  }
  absl::Status AttendTo(const std::string& id, std::size_t layer, std::int64_t begin, int count,
                        int queries) {
    const SessionInfo info = Info(id);
    const LayerSpec& spec = info.config->layers[layer];
    const Source source{.spec = &spec, .seed = 20 + layer};
    Request request = AttendRequest(id, info.generation, source, begin, count, queries);
    return Attend(store_.get(), spec.layer, &request);
  }
  std::int64_t LengthOf(const std::string& id, std::size_t layer) const {
    return Info(id).layers[layer].length;
  }
};

TEST_F(StepMemoryTest, WhatIsPromisedIsGoneWhenTheStepIsDone) {
  MakeStoreOf(std::int64_t{1} << 28, absl::InfiniteDuration());
  const SessionConfig config = SessionOfAllKinds("s");
  ASSERT_TRUE(store_->Create(config).ok());
  for (std::int64_t at = 0; at < 700; at += 70) {
    for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
      ASSERT_EQ(AttendTo("s", layer, at, 70, 70), absl::OkStatus());
      EXPECT_EQ(Promised() > 0, layer + 1 < config.layers.size()) << at << ", layer " << layer;
    }
  }
  // Queries may follow on their own; memory for them is kept until then.
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    ASSERT_EQ(AppendTo("s", layer, 700, 40), absl::OkStatus());
  }
  EXPECT_GT(Promised(), 0);
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    ASSERT_EQ(AttendTo("s", layer, 740, 0, 40), absl::OkStatus());
  }
  EXPECT_EQ(Promised(), 0);
}

TEST_F(StepMemoryTest, ARefusedStepLeavesNothing) {
  const SessionConfig config = SessionOfAllKinds("s");
  MakeStoreOf(std::int64_t{1} << 28, absl::InfiniteDuration());
  ASSERT_TRUE(store_->Create(config).ok());
  ASSERT_EQ(AppendTo("s", 0, 0, 500), absl::OkStatus());
  // Less than all layers need, also where seals may overdraw, and more than the first does.
  const std::int64_t needed = store_->Totals().resident_bytes + Promised();
  MakeStoreOf(needed - needed / 16, absl::InfiniteDuration());
  ASSERT_TRUE(store_->Create(config).ok());
  const std::int64_t empty = store_->Totals().resident_bytes;
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    EXPECT_EQ(AppendTo("s", layer, 0, 500).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(LengthOf("s", layer), 0);
  }
  EXPECT_EQ(store_->Totals().resident_bytes, empty);
  EXPECT_EQ(Promised(), 0);
  EXPECT_EQ(AppendTo("s", 0, 0, 400), absl::OkStatus());
}

TEST_F(StepMemoryTest, ALeaseThatEndsTakesThePromiseBack) {
  MakeStoreOf(std::int64_t{1} << 28, absl::Milliseconds(20));
  ASSERT_TRUE(store_->Create(SmallSession("s", 3)).ok());
  ASSERT_EQ(AppendTo("s", 0, 0, 100), absl::OkStatus());
  while (Promised() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // The worker comes late, and goes on.
  EXPECT_EQ(AppendTo("s", 1, 0, 100), absl::OkStatus());
  EXPECT_EQ(AppendTo("s", 2, 0, 100), absl::OkStatus());
  EXPECT_EQ(Info("s").committed_length, 100);
}

TEST_F(StepMemoryTest, TruncateAndDeleteTakeThePromiseBack) {
  MakeStoreOf(std::int64_t{1} << 28, absl::InfiniteDuration());
  ASSERT_TRUE(store_->Create(SmallSession("s", 3)).ok());
  ASSERT_EQ(AppendTo("s", 0, 0, 100), absl::OkStatus());
  EXPECT_GT(Promised(), 0);
  ASSERT_TRUE(store_->Truncate("s", "", Info("s").generation, 0).ok());
  EXPECT_EQ(Promised(), 0);
  ASSERT_EQ(AppendTo("s", 1, 0, 100), absl::OkStatus());
  EXPECT_GT(Promised(), 0);
  ASSERT_TRUE(store_->Delete("s", 0).ok());
  EXPECT_EQ(Promised(), 0);
  EXPECT_EQ(store_->Totals().resident_bytes, 0);
}

// A context that is moved in one layer at a time, in pieces.
TEST_F(StepMemoryTest, LayersThatFollowInPiecesAreNotRefused) {
  constexpr int kPiece = 96;
  int taken = 0;
  for (int budget = 1 << 19; budget < 1 << 23; budget = budget * 5 / 4) {
    MakeStoreOf(budget, absl::InfiniteDuration());
    const SessionConfig config = SessionOfAllKinds("s");
    ASSERT_TRUE(store_->Create(config).ok());
    std::int64_t length = 0;
    while (length < 2000 && AppendTo("s", 0, length, kPiece, true).ok()) length += kPiece;
    for (std::size_t layer = 1; layer < config.layers.size(); ++layer) {
      for (std::int64_t at = 0; at < length; at += kPiece) {
        ASSERT_EQ(AppendTo("s", layer, at, kPiece, true), absl::OkStatus())
            << "layer " << layer << " at " << at << " of " << length << ", budget " << budget;
      }
    }
    EXPECT_EQ(Info("s").committed_length, length);
    if (length > 0) ++taken;
  }
  EXPECT_GT(taken, 3);
}

// While another session fills the memory.
TEST_F(StepMemoryTest, AStepUnderWayIsNotEvicted) {
  const SessionConfig config = SmallSession("s", 3);
  options_.step_lease = absl::InfiniteDuration();
  Start(1 << 20);
  ASSERT_TRUE(store_->Create(config).ok());
  Fill("s", 0, 300);
  ASSERT_EQ(AppendTo("s", 0, 300, 10), absl::OkStatus());
  ASSERT_TRUE(store_->Create(SmallSession("other", 1)).ok());
  std::int64_t length = 0;
  while (AppendTo("other", 0, length, 64).ok()) length += 64;
  EXPECT_GT(length, 64);
  EXPECT_FALSE(Info("s").evicted);
  EXPECT_EQ(AppendTo("s", 1, 300, 10), absl::OkStatus());
  EXPECT_EQ(AppendTo("s", 2, 300, 10), absl::OkStatus());
  // The step is done: now "s" makes room.
  for (int i = 0; i < 200 && !Info("s").evicted; ++i) {
    EXPECT_EQ(AppendTo("other", 0, length + i * 64, 64), absl::OkStatus());
  }
  EXPECT_TRUE(Info("s").evicted);
}

// Workers that make steps of all kinds on sessions of their own, in one budget.
class StepPressureTest : public StepMemoryTest {
 protected:
  // One worker's session, its steps and what becomes of them.
  struct Outcome {
    int steps = 0;
    int refused = 0;  // at their first layer
    int forks = 0;
  };

  // Each layer of the step as one append, or an append and queries that follow, or both in one.
  void WorkOn(const std::string& id, std::uint64_t seed, int steps, Outcome* outcome) {
    std::mt19937_64 random(seed);
    const auto below = [&random](int n) { return static_cast<int>(random() % n); };
    const SessionConfig config = SessionOfAllKinds(id);
    ASSERT_TRUE(store_->Create(config).ok());
    for (int step = 0; step < steps; ++step) {
      const std::int64_t at = Info(id).committed_length;
      const int count = below(3) == 0 ? 1 + below(200) : 1 + below(3);
      std::vector<std::size_t> order(config.layers.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (below(4) == 0) std::shuffle(order.begin(), order.end(), random);
      for (std::size_t done = 0; done < order.size(); ++done) {
        // Once all layers have the step the session may be evicted: queries that follow on their
        // own then need room for all of it.
        const int kinds = done + 1 < order.size() ? 3 : 2;
        const absl::Status s = DoLayer(id, order[done], at, count, below(kinds), below(2) == 0);
        if (absl::IsResourceExhausted(s) && done == 0) {
          ++outcome->refused;
          break;
        }
        ASSERT_EQ(s, absl::OkStatus()) << id << ", layer " << done << " of a step of " << count
                                       << " at " << at << ", seed " << seed;
        if (below(12) == 0) ForkAndDrop(id, below(2) == 0, outcome);
      }
      ++outcome->steps;
      if (below(20) == 0) {
        const std::int64_t length = Info(id).committed_length;
        const absl::Status s =
            store_->Truncate(id, "", Info(id).generation, length / (1 + below(3))).status();
        // It may have to come back from its file first, while the steps of others are under way.
        ASSERT_TRUE(s.ok() || absl::IsResourceExhausted(s)) << s;
      }
    }
    ASSERT_TRUE(store_->Delete(id, 0).ok());
  }

  absl::Status DoLayer(const std::string& id, std::size_t layer, std::int64_t at, int count,
                       int kind, bool with_queries) {
    if (kind == 0) return AttendTo(id, layer, at, count, count);
    if (absl::Status s = AppendTo(id, layer, at, count, with_queries); !s.ok()) return s;
    return kind == 2 ? AttendTo(id, layer, at + count, 0, count) : absl::OkStatus();
  }

  // In the middle of a step: blocks are shared by then that the step will write.
  void ForkAndDrop(const std::string& id, bool keep_it, Outcome* outcome) {
    std::vector<ForkItem> forks(1);
    forks[0].source = id;
    forks[0].generation = Info(id).generation;
    forks[0].session = absl::StrCat(id, " fork");
    forks[0].request_id = absl::StrCat(outcome->forks);
    forks[0].replace = true;
    store_->Fork(forks);
    outcome->forks += forks[0].status.ok() ? 1 : 0;
    if (!keep_it) store_->Delete(forks[0].session, 0).IgnoreError();
  }

  int Rounds() const { return std::getenv("OSCARKV_TEST_FULL") != nullptr ? 20 : 1; }

  void Run(int workers, std::uint64_t seed) {
    std::vector<Outcome> outcomes(static_cast<std::size_t>(workers));
    std::vector<std::thread> threads;
    for (int i = 0; i < workers; ++i) {
      threads.emplace_back([this, i, seed, &outcomes] {
        WorkOn(absl::StrCat("w", i), seed + static_cast<std::uint64_t>(i), 60,
               &outcomes[static_cast<std::size_t>(i)]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Outcome& outcome : outcomes) {
      steps_ += outcome.steps;
      refused_ += outcome.refused;
      forks_ += outcome.forks;
    }
  }
  int steps_ = 0;
  int refused_ = 0;
  int forks_ = 0;
};

TEST_F(StepPressureTest, OnlyFirstLayersAreRefused) {
  for (int round = 0; round < Rounds(); ++round) {
    MakeStoreOf(3 << 20, absl::InfiniteDuration());
    Run(4, 100 + static_cast<std::uint64_t>(round) * 10);
  }
  EXPECT_GT(refused_, 10);
  EXPECT_GT(steps_, 3 * refused_ / 2);
  EXPECT_GT(forks_, 10);
}

// Checkpoints and evictions under way share blocks with steps, and sessions come back in between.
TEST_F(StepPressureTest, NorWithFiles) {
  for (int round = 0; round < Rounds(); ++round) {
    options_.step_lease = absl::InfiniteDuration();
    Start(3 << 20, absl::Milliseconds(1));
    Run(4, 500 + static_cast<std::uint64_t>(round) * 10);
  }
  EXPECT_GT(store_->Totals().checkpoints, 0);
}

}  // namespace
}  // namespace oscarkv
