// The background that keeps files up to date cannot fail, or stand still, without anybody knowing.
#include "server/session/tier_health.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/error.h"
#include "server/base/kernel_status.h"
#include "server/file/data_dir.h"
#include "server/file/system_calls.h"
#include "tests/server/support/store_on_cpu.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

absl::Status DiskFull() {
  errno = ENOSPC;
  return SystemError("write", "/data/a.okv");
}

std::string Words(const absl::Status& status) { return std::string(status.message()); }

TEST(TierHealthTest, WithoutAThreadAndWithoutWritesItIsWell) {
  const TierHealth health(absl::Seconds(1));
  EXPECT_EQ(health.Check(Clock::now() + std::chrono::hours(1)), absl::OkStatus());
}

TEST(TierHealthTest, AThreadThatBeatsIsWellHoweverLongItsPass) {
  TierHealth health(absl::Minutes(2));
  health.heartbeat()->Beat();
  const Clock::time_point beat = health.heartbeat()->last();
  EXPECT_EQ(health.Check(beat + seconds(119)), absl::OkStatus());
  const absl::Status stalled = health.Check(beat + seconds(121));
  EXPECT_TRUE(absl::IsUnavailable(stalled));
  EXPECT_THAT(Words(stalled), HasSubstr("121 s"));
  health.heartbeat()->Beat();
  EXPECT_EQ(health.Check(health.heartbeat()->last() + seconds(1)), absl::OkStatus());
}

TEST(TierHealthTest, OnlyTheThreadWithAHeartbeatBeats) {
  Heartbeat heartbeat;
  Heartbeat::BeatThisThread();
  EXPECT_EQ(heartbeat.last(), Clock::time_point());
  {
    const Heartbeat::OfThisThread mine(&heartbeat);
    const Clock::time_point first = heartbeat.last();
    EXPECT_NE(first, Clock::time_point());
    std::this_thread::sleep_for(milliseconds(2));
    std::thread([] { Heartbeat::BeatThisThread(); }).join();
    EXPECT_EQ(heartbeat.last(), first);
    Heartbeat::BeatThisThread();
    EXPECT_GT(heartbeat.last(), first);
  }
  const Clock::time_point last = heartbeat.last();
  std::this_thread::sleep_for(milliseconds(2));
  Heartbeat::BeatThisThread();
  EXPECT_EQ(heartbeat.last(), last);
}

TEST(TierHealthTest, PassesThatKeepFailingAreTold) {
  TierHealth health(absl::Minutes(2));
  for (int i = 0; i < 3 * TierHealth::kPassesInARow; ++i) {
    EXPECT_EQ(health.Check().ok(), i < TierHealth::kPassesInARow) << i;
    health.NotePass(absl::InternalError("std::bad_alloc"));
  }
  EXPECT_THAT(Words(health.Check()), HasSubstr("std::bad_alloc"));
  health.NotePass(absl::OkStatus());
  EXPECT_EQ(health.Check(), absl::OkStatus());
}

TEST(TierHealthTest, WritesThatKeepFailingAreTold) {
  TierHealth health(absl::Minutes(2));
  const Clock::time_point begin = Clock::now();
  health.NoteWrite(DiskFull(), begin);
  EXPECT_EQ(health.Check(begin + seconds(9)), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(health.Check(begin + seconds(11))));
  health.NoteWrite(DiskFull(), begin + seconds(1));
  EXPECT_EQ(health.Check(begin + seconds(1)), absl::OkStatus());
  health.NoteWrite(DiskFull(), begin + seconds(2));
  const absl::Status failing = health.Check(begin + seconds(2));
  EXPECT_THAT(Words(failing), HasSubstr("/data/a.okv: No space left on device"));
  EXPECT_THAT(Words(failing), HasSubstr("for 2 s (3 tries)"));
  health.NoteWrite(absl::OkStatus(), begin + seconds(3));
  EXPECT_EQ(health.Check(begin + seconds(60)), absl::OkStatus());
}

TEST(TierHealthTest, WhatTellsNothingOfFilesChangesNothing) {
  TierHealth health(absl::Minutes(2));
  const absl::Status no_memory = OutOfMemory("full");
  const absl::Status gone =
      MakeError(absl::StatusCode::kNotFound, "gone", {.reason = "SESSION_NOT_FOUND"});
  for (int i = 0; i < 10; ++i) {
    health.NoteWrite(no_memory);
    health.NoteWrite(gone);
  }
  EXPECT_EQ(health.Check(Clock::now() + std::chrono::hours(1)), absl::OkStatus());
  for (int i = 0; i < 3; ++i) health.NoteWrite(DiskFull());
  health.NoteWrite(no_memory);
  EXPECT_FALSE(health.Check().ok());
  health.NoteAllWritten();
  EXPECT_EQ(health.Check(), absl::OkStatus());
}

// A disk that fails writes, or holds them up, when it is told to.
class BadDisk : public SystemCalls {
 public:
  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    while (stuck_) std::this_thread::sleep_for(milliseconds(1));
    if (slow_) std::this_thread::sleep_for(milliseconds(30));
    if (!full_) return SystemCalls::Pwrite(file, bytes, count, offset);
    errno = ENOSPC;
    return -1;
  }

  void SetFull(bool full) { full_ = full; }
  void SetStuck(bool stuck) { stuck_ = stuck; }
  void SetSlow(bool slow) { slow_ = slow; }

 private:
  std::atomic<bool> full_ = false;
  std::atomic<bool> stuck_ = false;
  std::atomic<bool> slow_ = false;
};

class StoreHealthTest : public StoreOnCpu {
 protected:
  StoreHealthTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~StoreHealthTest() override {
    disk_.SetStuck(false);
    store_.reset();
    dir_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(absl::Duration stalled_after, int sessions) {
    auto dir = DataDir::Open(folder_ + "/data", &disk_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    dir_ = *std::move(dir);
    StoreOptions options{.memory_budget_bytes = std::int64_t{1} << 30,
                         .settle_after = absl::InfiniteDuration(),
                         .data_dir = dir_.get(),
                         .durability = Durability::kWritten,
                         .checkpoint_interval = absl::Milliseconds(1),
                         .stalled_after = stalled_after};
    store_ = std::make_unique<SessionStore>(backend_.get(), options);
    ASSERT_TRUE(store_->Recover().ok());
    for (int i = 0; i < sessions; ++i) {
      ASSERT_TRUE(store_->Create(SmallSession(absl::StrCat("s", i))).ok());
    }
    FillAll(sessions, 0, 100);
  }
  void FillAll(int sessions, std::int64_t begin, std::int64_t end) {
    for (int i = 0; i < sessions; ++i) Fill(absl::StrCat("s", i), begin, end);
  }
  static void WaitFor(const std::function<bool()>& condition) {
    for (int i = 0; i < 30000 && !condition(); ++i) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_TRUE(condition());
  }
  void WaitUntil(bool well) const {
    WaitFor([&] { return store_->Health().ok() == well; });
  }
  void WaitUntilDurable(const std::string& id, std::int64_t length) const {
    WaitFor([&] { return Info(id).durable_length == length; });
  }

  BadDisk disk_;
  std::string folder_ = ::testing::TempDir() + "health_XXXXXX";
  std::unique_ptr<DataDir> dir_;
};

TEST_F(StoreHealthTest, AFullDiskTurnsItRedAndAnEmptierOneGreen) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Minutes(2), 5));
  disk_.SetFull(true);
  FillAll(5, 100, 150);
  ASSERT_NO_FATAL_FAILURE(WaitUntil(false));
  EXPECT_THAT(Words(store_->Health()), HasSubstr("No space left on device"));
  EXPECT_GE(store_->Totals().checkpoint_failures, TierHealth::kWritesInARow);
  EXPECT_GT(store_->Totals().checkpoint_lag, absl::ZeroDuration());
  // Requests go on.
  Fill("s0", 150, 200);
  disk_.SetFull(false);
  ASSERT_NO_FATAL_FAILURE(WaitUntil(true));
  ASSERT_NO_FATAL_FAILURE(WaitUntilDurable("s0", 200));
}

TEST_F(StoreHealthTest, WhenNothingIsLeftToWriteNothingIsWrong) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Minutes(2), 5));
  disk_.SetFull(true);
  FillAll(5, 100, 150);
  ASSERT_NO_FATAL_FAILURE(WaitUntil(false));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store_->Delete(absl::StrCat("s", i), 0).ok());
  ASSERT_NO_FATAL_FAILURE(WaitUntil(true));
  EXPECT_EQ(store_->Totals().checkpoint_lag, absl::ZeroDuration());
}

TEST_F(StoreHealthTest, AStalledPassTurnsItRedUntilItMoves) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Milliseconds(200), 1));
  ASSERT_NO_FATAL_FAILURE(WaitUntil(true));
  disk_.SetStuck(true);
  Fill("s0", 100, 150);
  ASSERT_NO_FATAL_FAILURE(WaitUntil(false));
  EXPECT_THAT(Words(store_->Health()), HasSubstr("stood still"));
  Fill("s0", 150, 200);
  disk_.SetStuck(false);
  ASSERT_NO_FATAL_FAILURE(WaitUntil(true));
  ASSERT_NO_FATAL_FAILURE(WaitUntilDurable("s0", 200));
}

TEST_F(StoreHealthTest, ASlowDiskThatGetsOnIsNoStall) {
  // One pass of the background, which takes longer than it may stand still.
  constexpr int kSessions = 90;
  ASSERT_NO_FATAL_FAILURE(Start(absl::Seconds(2), kSessions));
  for (int i = 0; i < kSessions; ++i) WaitUntilDurable(absl::StrCat("s", i), 100);
  disk_.SetSlow(true);
  FillAll(kSessions, 100, 150);
  for (int i = 0; i < kSessions; ++i) {
    while (Info(absl::StrCat("s", i)).durable_length < 150) {
      ASSERT_EQ(store_->Health(), absl::OkStatus());
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

TEST_F(StoreHealthTest, EachPieceThatIsWrittenIsABeat) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Minutes(2), 1));
  Heartbeat heartbeat;
  const Heartbeat::OfThisThread mine(&heartbeat);
  const Clock::time_point begin = heartbeat.last();
  std::this_thread::sleep_for(milliseconds(2));
  Fill("s0", 100, 150);
  ASSERT_TRUE(store_->Checkpoint("s0", 0).ok());
  EXPECT_GT(heartbeat.last(), begin);
}

// What a scrape does, and the health service.
TEST_F(StoreHealthTest, TotalsAreToldWhileSessionsComeAndGo) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::Minutes(2), 2));
  std::atomic<bool> stopped = false;
  std::vector<std::thread> watchers;
  for (int i = 0; i < 2; ++i) {
    watchers.emplace_back([&] {
      while (!stopped) {
        EXPECT_EQ(store_->Health(), absl::OkStatus());
        const StoreTotals totals = store_->Totals();
        EXPECT_GE(totals.tokens + totals.evicted_tokens, 200);
        EXPECT_GE(totals.checkpoint_lag, absl::ZeroDuration());
      }
    });
  }
  std::vector<std::thread> workers;
  for (int w = 0; w < 3; ++w) {
    workers.emplace_back([&, w] {
      for (int i = 0; i < 20; ++i) {
        const std::string id = absl::StrCat("w", w, ".", i);
        EXPECT_TRUE(store_->Create(SmallSession(id)).ok());
        Fill(id, 0, 60);
        EXPECT_TRUE(store_->Evict(id, 0).ok());
        Fill(id, 60, 100);
        EXPECT_EQ(store_->Delete(id, 0), absl::OkStatus());
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  stopped = true;
  for (std::thread& watcher : watchers) watcher.join();
  const StoreTotals totals = store_->Totals();
  EXPECT_EQ(totals.sessions, 2);
  EXPECT_EQ(totals.tokens, 200);
  EXPECT_EQ(totals.evicted_sessions, 0);
  EXPECT_EQ(totals.evictions, 60);
  EXPECT_EQ(totals.restores, 60);
  EXPECT_EQ(totals.restores_within_minute, 60);
  EXPECT_GT(totals.file_written_bytes, 0);
  EXPECT_GT(totals.file_read_bytes, 0);
}

}  // namespace
}  // namespace oscarkv
