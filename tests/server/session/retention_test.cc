// How long sessions are kept: time to live, pins and priorities, what makes room without a
// directory, and groups, which go whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

constexpr Retention kShortLived = {.ttl = absl::Milliseconds(40)};

class RetentionTest : public StoreOnDisk {
 protected:
  RetentionTest() {
    options_.checkpoint_interval = absl::Milliseconds(5);
    options_.on_dropped = [this](std::string_view session, EvictionReason reason) {
      const std::lock_guard lock(dropped_mutex_);
      dropped_[std::string(session)] = reason;
    };
  }
  ~RetentionTest() override { store_.reset(); }

  // A store of `options_` without a directory.
  void StartInMemory(std::int64_t budget) {
    store_.reset();
    options_.memory_budget_bytes = budget;
    options_.settle_after = absl::InfiniteDuration();
    options_.data_dir = nullptr;
    store_ = std::make_unique<SessionStore>(backend_.get(), options_);
  }
  void Create(const std::string& id, const Retention& retention, const std::string& group = "") {
    SessionConfig config = SmallSession(id);
    config.group = group;
    const auto info = store_->Create(std::move(config), retention);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->retention, retention);
  }
  bool IsThere(const std::string& id) { return store_->Get(id).ok(); }
  void WaitUntilGone(const std::string& id) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (IsThere(id) && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_FALSE(IsThere(id)) << id;
  }
  std::map<std::string, EvictionReason> Dropped() {
    const std::lock_guard lock(dropped_mutex_);
    return dropped_;
  }

  std::mutex dropped_mutex_;
  std::map<std::string, EvictionReason> dropped_;
};

constexpr std::int64_t kMuch = std::int64_t{1} << 30;

TEST_F(RetentionTest, ExpiredSessionsGoWithTheirFiles) {
  Start(kMuch, absl::Milliseconds(5));
  Create("a", kShortLived);
  Create("b", {});
  Fill("a", 0, 200);
  Fill("b", 0, 200);
  ASSERT_TRUE(store_->Evict("a", 0).ok());
  ASSERT_TRUE(store_->Checkpoint("b", 0).ok());
  EXPECT_EQ(Files(), 2);
  WaitUntilGone("a");
  EXPECT_TRUE(IsThere("b"));
  EXPECT_EQ(store_->Totals().expired_sessions, 1);
  EXPECT_EQ(store_->Totals().dropped_sessions, 0);
  EXPECT_EQ(Dropped(), (std::map<std::string, EvictionReason>{{"a", EvictionReason::kTtl}}));
  EXPECT_EQ(Files(), 1);
  Start();
  EXPECT_FALSE(IsThere("a"));
}

TEST_F(RetentionTest, SessionsExpireWithoutADirectoryToo) {
  StartInMemory(kMuch);
  Create("a", kShortLived);
  Fill("a", 0, 200);
  WaitUntilGone("a");
  EXPECT_EQ(store_->Totals().expired_sessions, 1);
  EXPECT_EQ(store_->Totals().resident_bytes, 0);
}

TEST_F(RetentionTest, PinnedAndUsedSessionsDoNotExpire) {
  StartInMemory(kMuch);
  Retention pinned = kShortLived;
  pinned.pinned = true;
  Create("pinned", pinned);
  Create("used", {.ttl = absl::Milliseconds(400)});
  Create("idle", kShortLived);
  for (int i = 0; i < 10; ++i) {
    Step("used", i, 1);
    absl::SleepFor(absl::Milliseconds(50));
  }
  WaitUntilGone("idle");
  EXPECT_TRUE(IsThere("pinned"));
  EXPECT_TRUE(IsThere("used"));
  ASSERT_TRUE(store_->SetRetention("pinned", 0, kShortLived).ok());
  WaitUntilGone("pinned");
  WaitUntilGone("used");
}

TEST_F(RetentionTest, IsChangedWithoutHarm) {
  Start();
  Create("a", {});
  Fill("a", 0, 100);
  const SessionInfo before = Info("a");
  const Retention retention{.priority = -3, .pinned = true, .ttl = absl::Hours(7)};
  for (int time = 0; time < 2; ++time) {
    const auto info = store_->SetRetention("a", before.generation, retention);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->retention, retention);
    EXPECT_EQ(info->generation, before.generation);
    EXPECT_EQ(info->committed_length, 100);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(
      store_->SetRetention("a", before.generation + 1, retention).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->SetRetention("b", 0, retention).status()));
}

TEST_F(RetentionTest, ARestartFindsWhatTheLastCheckpointHad) {
  Start();
  Create("created", {.priority = 5, .pinned = true, .ttl = absl::Hours(1)});
  for (const char* id : {"resident", "evicted", "truncated", "restored"}) Create(id, {});
  for (const char* id : {"created", "resident", "evicted", "truncated", "restored"}) {
    Fill(id, 0, 200);
  }
  ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
  ASSERT_TRUE(store_->Evict("evicted", 0).ok());
  ASSERT_TRUE(store_->Evict("restored", 0).ok());
  const Retention changed{.priority = 9, .pinned = false, .ttl = absl::Hours(2)};
  for (const char* id : {"resident", "evicted", "truncated", "restored"}) {
    ASSERT_TRUE(store_->SetRetention(id, 0, changed).ok());
  }
  ASSERT_TRUE(store_->Truncate("truncated", "", Info("truncated").generation, 100).ok());
  ASSERT_TRUE(store_->Restore("restored", 0).ok());
  EXPECT_EQ(Info("restored").retention, changed);
  ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
  EXPECT_TRUE(Info("evicted").evicted);
  EXPECT_EQ(Info("evicted").retention, changed);

  Start();
  EXPECT_EQ(Info("created").retention,
            (Retention{.priority = 5, .pinned = true, .ttl = absl::Hours(1)}));
  for (const char* id : {"resident", "evicted", "truncated", "restored"}) {
    EXPECT_EQ(Info(id).retention, changed) << id;
    EXPECT_EQ(Info(id).committed_length, id == std::string("truncated") ? 100 : 200);
    EXPECT_TRUE(store_->Restore(id, 0).ok());
    EXPECT_EQ(Info(id).retention, changed) << id;
  }
}

TEST_F(RetentionTest, TimeToLiveRunsOverARestart) {
  Start();
  Create("a", {.ttl = absl::Seconds(2)});
  Fill("a", 0, 100);
  ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
  store_.reset();
  absl::SleepFor(absl::Seconds(2));
  const absl::Time begin = absl::Now();
  Start(kMuch, absl::Milliseconds(5));
  WaitUntilGone("a");
  EXPECT_LT(absl::Now() - begin, absl::Milliseconds(1900));
}

TEST_F(RetentionTest, AForkIsAsImportantAsItsSourceAndNotPinned) {
  StartInMemory(kMuch);
  Create("a", {.priority = 4, .pinned = true, .ttl = absl::Hours(3)});
  ForkItem fork;
  fork.source = "a";
  fork.generation = Info("a").generation;
  fork.session = "b";
  fork.request_id = "once";
  store_->Fork({&fork, 1});
  ASSERT_TRUE(fork.status.ok());
  EXPECT_EQ(fork.info.retention,
            (Retention{.priority = 4, .pinned = false, .ttl = absl::Hours(3)}));
}

TEST_F(RetentionTest, LessImportantSessionsGoFirstAndPinnedOnesStay) {
  Start(kMuch);
  Create("measured", {});
  Fill("measured", 0, 400);
  const std::int64_t bytes = store_->Totals().resident_bytes;
  Start(bytes * 10);
  Create("pinned", {.pinned = true});
  Fill("pinned", 0, 400);
  Create("important", {.priority = 1});
  Fill("important", 0, 400);
  for (int i = 0; i < 12; ++i) {
    Create(absl::StrCat("s", i), {});
    Fill(absl::StrCat("s", i), 0, 400);
  }
  EXPECT_TRUE(Info("s0").evicted);
  EXPECT_FALSE(Info("pinned").evicted);
  EXPECT_FALSE(Info("important").evicted);
  EXPECT_FALSE(Info("s11").evicted);
}

TEST_F(RetentionTest, AGroupIsEvictedWholeOrNotAtAll) {
  Start(kMuch);
  Create("measured", {});
  Fill("measured", 0, 400);
  const std::int64_t bytes = store_->Totals().resident_bytes;
  Start(bytes * 10);
  // Each group has an old member; the second group has one that is pinned.
  for (const char* group : {"g", "h"}) {
    for (int i = 0; i < 2; ++i) {
      const std::string id = absl::StrCat(group, i);
      Create(id, {.pinned = id == "h1"}, group);
      Fill(id, 0, 400);
    }
  }
  for (int i = 0; i < 7; ++i) {
    Create(absl::StrCat("s", i), {.priority = 1});
    Fill(absl::StrCat("s", i), 0, 400);
  }
  EXPECT_TRUE(Info("g0").evicted);
  EXPECT_TRUE(Info("g1").evicted);
  EXPECT_FALSE(Info("h0").evicted);
  EXPECT_FALSE(Info("h1").evicted);
}

TEST_F(RetentionTest, WithoutADirectoryAFullBudgetRefusesOrDrops) {
  StartInMemory(kMuch);
  Create("measured", {});
  Fill("measured", 0, 400);
  const std::int64_t bytes = store_->Totals().resident_bytes;

  StartInMemory(bytes * 10);
  int refused = 0;
  for (int i = 0; i < 30; ++i) {
    const auto info = store_->Create(SmallSession(absl::StrCat("s", i)));
    if (!info.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(info.status()));
      ++refused;
      continue;
    }
    const Source source{.spec = &info->config->layers[0], .seed = 20};
    Request request = AppendRequest(absl::StrCat("s", i), info->generation, source, 0, 400, true);
    refused += absl::IsResourceExhausted(Append(store_.get(), 0, &request)) ? 1 : 0;
  }
  EXPECT_GT(refused, 10);
  EXPECT_TRUE(IsThere("s0"));

  options_.drop_when_full = true;
  StartInMemory(bytes * 10);
  Create("pinned", {.pinned = true});
  Fill("pinned", 0, 400);
  for (int i = 0; i < 30; ++i) {
    Create(absl::StrCat("s", i), {});
    Fill(absl::StrCat("s", i), 0, 400);
  }
  EXPECT_FALSE(IsThere("s0"));
  EXPECT_TRUE(IsThere("pinned"));
  EXPECT_TRUE(IsThere("s29"));
  const StoreTotals totals = store_->Totals();
  EXPECT_EQ(totals.sessions + totals.dropped_sessions, 31);
  EXPECT_EQ(totals.expired_sessions, 0);
  EXPECT_EQ(Dropped().at("s0"), EvictionReason::kMemory);
}

TEST_F(RetentionTest, ManyTokensAreCheckpointedBeforeTheirTime) {
  options_.checkpoint_tokens = 300;
  Start(kMuch, absl::Hours(1));  // passes come once a second
  Create("many", {});
  Create("few", {});
  ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
  Fill("many", 0, 300);
  Fill("few", 0, 299);
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (Info("many").durable_length < 300 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(Info("many").durable_length, 300);
  EXPECT_EQ(Info("few").durable_length, 0);
  // What a truncate has dropped is no longer in the way.
  ASSERT_TRUE(store_->Truncate("many", "", Info("many").generation, 0).ok());
  Fill("many", 0, 300);
  while (Info("many").durable_length < 300 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(Info("many").durable_length, 300);
}

TEST_F(RetentionTest, EmptySessionsAreDroppedToo) {
  options_.drop_when_full = true;
  StartInMemory(1 << 20);
  for (int i = 0; i < 3000; ++i) Create(absl::StrCat("s", i), {});
  EXPECT_FALSE(IsThere("s0"));
  EXPECT_TRUE(IsThere("s2999"));
}

}  // namespace
}  // namespace oscarkv
