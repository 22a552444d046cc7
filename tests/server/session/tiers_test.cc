// Sessions that go to their files and come back: the answers are those of a store that never moved
// them, after evictions, pressure and restarts.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class TiersTest : public StoreOnDisk {
 protected:
  TiersTest() { std::swap(store_, plain_); }

  void Create(const SessionConfig& config) {
    ASSERT_TRUE(store_->Create(config).ok());
    ASSERT_TRUE(plain_->Create(config).ok());
  }
  // In both stores, with equal answers.
  void StepBoth(const std::string& id, std::int64_t begin, int count) {
    const std::vector<float> answers = Step(id, begin, count);
    std::swap(store_, plain_);
    const std::vector<float> expected = Step(id, begin, count);
    std::swap(store_, plain_);
    ASSERT_TRUE(answers == expected) << id << " at " << begin;
  }
  void TruncateBoth(const std::string& id, std::int64_t length) {
    for (SessionStore* store : {store_.get(), plain_.get()}) {
      const auto info = store->Truncate(id, "", store->Get(id)->generation, length);
      ASSERT_TRUE(info.ok()) << info.status();
    }
  }
  void ExpectSameTokens(const std::string& id) {
    const SessionInfo info = Info(id);
    for (std::size_t i = 0; i < info.layers.size(); ++i) {
      const auto tokens = ReadAll(*store_, id, i);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_TRUE(*tokens == *ReadAll(*plain_, id, i)) << id << ", layer " << i;
    }
  }
  std::unique_ptr<SessionStore> plain_;
};

TEST_F(TiersTest, MovingChangesNoAnswer) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 4; ++trial) {
    Start();
    const std::string id = absl::StrCat("s", trial);
    Create(SessionOfAllKinds(id));
    std::int64_t length = 0;
    for (int step = 0; step < 40; ++step) {
      const int count = 1 + static_cast<int>(random() % 60);
      ASSERT_NO_FATAL_FAILURE(StepBoth(id, length, count));
      length += count;
      switch (random() % 6) {
        case 0:
          length -= static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length));
          ASSERT_NO_FATAL_FAILURE(TruncateBoth(id, length));
          break;
        case 1: {
          const SessionInfo before = Info(id);
          const auto evicted = store_->Evict(id, before.generation);
          ASSERT_TRUE(evicted.ok()) << evicted.status();
          EXPECT_TRUE(evicted->evicted);
          EXPECT_EQ(evicted->resident_bytes, 0);
          EXPECT_EQ(evicted->committed_length, before.committed_length);
          EXPECT_EQ(evicted->durable_length, before.committed_length);
          EXPECT_EQ(evicted->logical_bytes, before.logical_bytes);
          EXPECT_EQ(evicted->generation, before.generation);
          EXPECT_EQ(store_->Totals().logical_bytes, 0);
          for (std::size_t i = 0; i < before.layers.size(); ++i) {
            EXPECT_EQ(evicted->layers[i].sealed_tokens, before.layers[i].sealed_tokens);
          }
          break;
        }
        case 2:
          ASSERT_TRUE(store_->Checkpoint(id, 0).ok());
          EXPECT_EQ(Info(id).durable_length, length);
          break;
        case 3: {
          ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
          const std::uint64_t generation = Info(id).generation;
          EXPECT_EQ(Start().sessions, trial + 1);
          EXPECT_NE(Info(id).generation, generation);
          EXPECT_EQ(Info(id).committed_length, length);
          EXPECT_EQ(Info(id).durable_length, length);
          break;
        }
        default:
          break;
      }
    }
    ExpectSameTokens(id);
    EXPECT_EQ(store_->Totals().tier_failures, 0);
  }
}

TEST_F(TiersTest, WhatIsDurableSurvivesAndTheWorkerGoesOn) {
  Start();
  Create(SmallSession("a", 2));
  for (std::int64_t at = 0; at < 600; at += 50) StepBoth("a", at, 50);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  Step("a", 600, 70);  // lost
  EXPECT_EQ(Info("a").durable_length, 600);
  Start();
  EXPECT_EQ(Info("a").committed_length, 600);
  ASSERT_NO_FATAL_FAILURE(StepBoth("a", 600, 70));
  ExpectSameTokens("a");
}

TEST_F(TiersTest, ATruncateIsKnownAfterARestartBeforeTheTokensAreBack) {
  Start();
  ASSERT_TRUE(store_->Create(SmallSession("a", 2)).ok());
  Fill("a", 0, 300);
  const std::uint64_t generation = Info("a").generation;
  ASSERT_TRUE(store_->Truncate("a", "truncate", generation, 200).ok());
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  Start();
  const auto again = store_->Truncate("a", "truncate", generation, 200);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->committed_length, 200);
  EXPECT_TRUE(again->evicted);
}

TEST_F(TiersTest, CheckpointsGoOnAfterEveryRestart) {
  ASSERT_TRUE(plain_->Create(SmallSession("a", 2)).ok());
  for (int boot = 0; boot < 6; ++boot) {
    // As a server's, which are random: above and below those of the boots before.
    next_generation_ = boot % 2 == 0 ? 1'000'000'000'000U >> boot : 5'000'000'000'000U << boot;
    Start();
    const auto session = store_->Create(SmallSession("a", 2));  // the first; then a repeat
    ASSERT_TRUE(session.ok()) << session.status();
    const std::uint64_t generation = session->generation;
    ASSERT_NO_FATAL_FAILURE(StepBoth("a", boot * 100, 100));
    TruncateBoth("a", boot * 100 + 50);
    ASSERT_NO_FATAL_FAILURE(StepBoth("a", boot * 100 + 50, 50));
    EXPECT_GT(Info("a").generation, generation);
    const auto info = store_->Checkpoint("a", 0);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->durable_length, boot * 100 + 100);
  }
}

TEST_F(TiersTest, WhatATruncateDropsDoesNotComeBack) {
  Start();
  Create(SmallSession("a", 2));
  StepBoth("a", 0, 500);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  TruncateBoth("a", 300);
  EXPECT_EQ(Info("a").durable_length, 300);
  Step("a", 300, 200);  // others, in the places of those that were dropped
  Start();
  EXPECT_EQ(Info("a").committed_length, 300);
  ExpectSameTokens("a");
}

// Who asks meanwhile is told what a session has, or had, never half of it.
TEST_F(TiersTest, WhatIsToldOfASessionIsWholeWhileItMoves) {
  Start();
  ASSERT_TRUE(store_->Create(SmallSession("a", 2)).ok());
  Fill("a", 0, 300);
  const std::uint64_t before = Info("a").generation;
  std::atomic<bool> stopped = false;
  std::thread reader([&] {
    while (!stopped) {
      const SessionInfo info = Info("a");
      EXPECT_EQ(info.committed_length, info.generation == before ? 300 : 200);
    }
  });
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(store_->Evict("a", 0).ok());
    ASSERT_TRUE(store_->Restore("a", 0).ok());
  }
  ASSERT_TRUE(store_->Truncate("a", "", before, 200).ok());
  stopped = true;
  reader.join();
}

TEST_F(TiersTest, TwiceTheBudgetInTurnsWithoutAFailure) {
  Start();
  constexpr int kSessions = 10;
  const auto id = [](int i) { return absl::StrCat("s", i); };
  for (int i = 0; i < kSessions; ++i) Create(SmallSession(id(i), 2));
  for (int i = 0; i < kSessions; ++i) StepBoth(id(i), 0, 400);
  const std::int64_t all = store_->Totals().resident_bytes;
  ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
  Start(all / 2);
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < kSessions; ++i) {
      ASSERT_NO_FATAL_FAILURE(StepBoth(id(i), 400 + round * 20, 20));
      ASSERT_LE(store_->Totals().resident_bytes, all / 2 + all / 128 + 1);
    }
  }
  const StoreTotals totals = store_->Totals();
  EXPECT_GT(totals.evictions, kSessions);
  EXPECT_GT(totals.restores, kSessions);
  EXPECT_EQ(totals.tier_failures, 0);
}

TEST_F(TiersTest, EverythingAtOnceChangesNoAnswer) {
  constexpr int kSessions = 4;
  constexpr int kSteps = 40;
  const auto id = [](int i) { return absl::StrCat("s", i); };
  std::vector<std::vector<std::vector<float>>> expected(kSessions);
  std::swap(store_, plain_);
  for (int i = 0; i < kSessions; ++i) {
    ASSERT_TRUE(store_->Create(SmallSession(id(i), 2)).ok());
    for (int s = 0; s < kSteps; ++s) expected[i].push_back(Step(id(i), s * 20, 20));
  }
  const std::int64_t all = store_->Totals().resident_bytes;
  std::swap(store_, plain_);

  Start(all * 2 / 3, absl::Milliseconds(1));
  for (int i = 0; i < kSessions; ++i) ASSERT_TRUE(store_->Create(SmallSession(id(i), 2)).ok());
  std::atomic<bool> stopped = false;
  std::vector<std::thread> movers;
  for (int m = 0; m < 2; ++m) {
    movers.emplace_back([&, m] {
      std::mt19937_64 random(static_cast<std::uint64_t>(m));
      while (!stopped) {
        const std::string moved = id(static_cast<int>(random() % kSessions));
        switch (random() % 3) {
          case 0:
            store_->Evict(moved, 0).IgnoreError();
            break;
          case 1:
            store_->Checkpoint(moved, 0).IgnoreError();
            break;
          default:
            store_->List("", 10, {});
            store_->Totals();
        }
        absl::SleepFor(absl::Milliseconds(1));
      }
    });
  }
  std::vector<std::thread> workers;
  for (int i = 0; i < kSessions; ++i) {
    workers.emplace_back([&, i] {
      for (int s = 0; s < kSteps; ++s) {
        EXPECT_TRUE(Step(id(i), s * 20, 20) == expected[i][s]) << id(i) << ", step " << s;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  stopped = true;
  for (std::thread& mover : movers) mover.join();
  EXPECT_GT(store_->Totals().restores, 0);
  // A checkpoint may have met a full budget, and left its work to a later one.
  for (int i = 0; i < kSessions; ++i) {
    ASSERT_TRUE(store_->Evict(id(i), 0).ok());
    EXPECT_EQ(Info(id(i)).durable_length, kSteps * 20);
  }
}

TEST_F(TiersTest, TheBackgroundMakesSessionsDurable) {
  Start(std::int64_t{1} << 30, absl::Milliseconds(5));
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  Fill("a", 0, 300);
  while (Info("a").durable_length < 300) absl::SleepFor(absl::Milliseconds(1));
  const std::int64_t done = store_->Totals().checkpoints;
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_LE(store_->Totals().checkpoints, done + 1);  // nothing has changed
}

TEST_F(TiersTest, DeletedAndReplacedSessionsLeaveNoFile) {
  Start();
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(store_->Create(SmallSession(id)).ok());
    Fill(id, 0, 200);
    ASSERT_TRUE(store_->Checkpoint(id, 0).ok());
  }
  EXPECT_EQ(Files(), 3);
  ASSERT_TRUE(store_->Evict("a", 0).ok());
  ASSERT_EQ(store_->Delete("a", 0), absl::OkStatus());
  EXPECT_EQ(Files(), 2);
  ForkItem fork{.source = "b",
                .generation = Info("b").generation,
                .length = 100,
                .session = "c",
                .request_id = "fork",
                .replace = true,
                .status = {},
                .info = {}};
  store_->Fork(std::span(&fork, 1));
  ASSERT_EQ(fork.status, absl::OkStatus());
  EXPECT_EQ(Files(), 1);
  ASSERT_TRUE(store_->Checkpoint("c", 0).ok());
  Start();
  EXPECT_EQ(store_->Totals().sessions, 2);
  EXPECT_EQ(Info("c").committed_length, 100);
}

TEST_F(TiersTest, WhatIsReplacedWhileItIsWrittenLeavesTheFileToItsSuccessor) {
  Start(std::int64_t{1} << 30, absl::Milliseconds(1));
  Create(SmallSession("source", 2));
  StepBoth("source", 0, 3000);
  ASSERT_TRUE(store_->Create(SmallSession("a", 2)).ok());
  std::atomic<bool> stopped = false;
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      while (!stopped) store_->Checkpoint("a", 0).IgnoreError();
    });
  }
  for (int i = 0; i < 150; ++i) {
    ForkItem fork{.source = "source",
                  .generation = Info("source").generation,
                  .length = 3000 - i,
                  .session = "a",
                  .request_id = absl::StrCat("fork ", i),
                  .replace = true,
                  .status = {},
                  .info = {}};
    store_->Fork(std::span(&fork, 1));
    ASSERT_EQ(fork.status, absl::OkStatus());
    if (i % 10 != 0) continue;
    // The successor's file is its own, also once it was brought back from it.
    ASSERT_TRUE(store_->Evict("a", 0).ok());
    ASSERT_TRUE(store_->Restore("a", 0).ok());
    ASSERT_EQ(Info("a").committed_length, 3000 - i);
  }
  stopped = true;
  for (std::thread& writer : writers) writer.join();
  ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
  EXPECT_TRUE(Start().remarks.empty());
  EXPECT_EQ(Info("a").committed_length, 3000 - 149);
  EXPECT_TRUE(store_->Restore("a", 0).ok());
}

TEST_F(TiersTest, ASessionWhoseFileIsGoneIsTruncatedAllTheSame) {
  Start();
  Create(SmallSession("a", 2));
  StepBoth("a", 0, 300);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  std::filesystem::remove(dir_->PathOf("a"));
  TruncateBoth("a", 200);
  EXPECT_EQ(Info("a").durable_length, 0);
  StepBoth("a", 200, 50);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  Start();
  EXPECT_EQ(Info("a").committed_length, 250);
  ExpectSameTokens("a");
}

TEST_F(TiersTest, ACheckpointWritesWhatIsNew) {
  Start();
  ASSERT_TRUE(store_->Create(SmallSession("a", 2)).ok());
  Fill("a", 0, 20000, 500);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  const std::string path = dir_->PathOf("a");
  const auto before = std::filesystem::file_size(path);
  Fill("a", 20000, 20128, 128);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  const auto after = std::filesystem::file_size(path);
  // The tokens in 16 bits, pages of those before them, and their queries.
  const SessionInfo info = Info("a");
  EXPECT_LT(after - before, 2 * 128 * info.logical_bytes / info.committed_length);
  ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  EXPECT_EQ(std::filesystem::file_size(path), after);
}

TEST_F(TiersTest, AFileThatKeepsChangingIsCompacted) {
  Start();
  Create(SmallSession("a"));
  StepBoth("a", 0, 400);
  for (int i = 0; i < 200; ++i) {
    ASSERT_NO_FATAL_FAILURE(TruncateBoth("a", 10));
    ASSERT_NO_FATAL_FAILURE(StepBoth("a", 10, 390));
    ASSERT_TRUE(store_->Checkpoint("a", 0).ok());
  }
  EXPECT_LT(std::filesystem::file_size(dir_->PathOf("a")), 4 << 20);
  Start();
  ExpectSameTokens("a");
}

TEST_F(TiersTest, WithoutADirectoryNothingMoves) {
  std::swap(store_, plain_);
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  for (const absl::Status& s : {store_->Evict("a", 0).status(), store_->Restore("a", 0).status(),
                                store_->Checkpoint("a", 0).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
  }
  EXPECT_EQ(store_->CheckpointAll(), absl::OkStatus());
}

TEST_F(TiersTest, ACheckpointThatFailsIsTold) {
  Start();
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  Fill("a", 0, 100);
  std::filesystem::remove_all(folder_ + "/data/sessions");
  EXPECT_FALSE(store_->Checkpoint("a", 0).ok());
  EXPECT_EQ(failures_told_, 1);
  EXPECT_EQ(store_->Totals().tier_failures, 1);
  std::filesystem::create_directory(folder_ + "/data/sessions");
  EXPECT_TRUE(store_->Checkpoint("a", 0).ok());
  EXPECT_EQ(Info("a").durable_length, 100);
}

TEST_F(TiersTest, ADamagedFileIsToldAndKept) {
  Start();
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  Fill("a", 0, 200);
  ASSERT_TRUE(store_->Evict("a", 0).ok());
  {
    std::fstream file(dir_->PathOf("a"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(dir_->PathOf("a")) / 2));
    file.put('\x55');
  }
  const SessionInfo info = Info("a");
  const Source source{.spec = &info.config->layers[0], .seed = 20};
  Request request = AttendRequest("a", info.generation, source, 200, 5, 2);
  EXPECT_TRUE(absl::IsDataLoss(Attend(store_.get(), 0, &request)));
  EXPECT_TRUE(Info("a").evicted);
  EXPECT_EQ(store_->Totals().block_bytes, 0);
}

}  // namespace
}  // namespace oscarkv
