// Forks: what they are, what they cost, and that nothing that one session does shows in another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/session/session_store.h"
#include "tests/server/support/error_details.h"
#include "tests/server/support/store_on_cpu.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

using testing::DetailOf;
using testing::ReasonOf;

class ForkTest : public StoreOnCpu {
 protected:
  void Create(SessionConfig config) { ASSERT_TRUE(store_->Create(std::move(config)).ok()); }

  ForkItem Item(const std::string& source, const std::string& session,
                std::optional<std::int64_t> length = std::nullopt) {
    ForkItem item;
    item.source = source;
    item.generation = Info(source).generation;
    item.length = length;
    item.session = session;
    item.request_id = absl::StrCat("request ", ++requests_);
    return item;
  }
  ForkItem Fork(ForkItem item) {
    store_->Fork({&item, 1});
    return item;
  }

  std::vector<Tokens> All(const std::string& id) {
    std::vector<Tokens> all;
    for (std::size_t i = 0; i < Info(id).layers.size(); ++i) {
      all.push_back(*ReadAll(*store_, id, i));
    }
    return all;
  }

  int requests_ = 0;
};

// A fork goes on as its source truncated to that length would, to the bit, through seals.
TEST_F(ForkTest, IsTheSourceUpToALength) {
  constexpr int kLength = 460;
  for (const std::int64_t length : {0, 1, 3, 4, 5, 36, 37, 131, 132, 133, 200, 300, 459, 460}) {
    SCOPED_TRACE(length);
    Create(SessionOfAllKinds("source"));
    Create(SessionOfAllKinds("twin"));
    Fill("source", 0, kLength, 100);
    Fill("twin", 0, kLength, 100);
    const ForkItem fork = Fork(Item("source", "fork", length));
    ASSERT_TRUE(fork.status.ok()) << fork.status;
    EXPECT_EQ(fork.info.committed_length, length);
    if (length < kLength) {
      ASSERT_TRUE(store_->Truncate("twin", "", Info("twin").generation, length).ok());
    }
    EXPECT_TRUE(All("fork") == All("twin"));
    const std::vector<Tokens> before = All("source");
    for (std::int64_t at = length; at < length + 300; at += 60) {
      EXPECT_EQ(Step("fork", at, 60, 2, 70), Step("twin", at, 60, 2, 70));
    }
    EXPECT_TRUE(All("fork") == All("twin"));
    EXPECT_TRUE(All("source") == before);
    for (const char* id : {"source", "fork", "twin"}) ASSERT_TRUE(store_->Delete(id, 0).ok());
    EXPECT_EQ(store_->Totals().resident_bytes, 0);
    EXPECT_EQ(store_->Totals().logical_bytes, 0);
  }
}

TEST_F(ForkTest, TheSourceGoesOnAsIfNothingHadHappened) {
  Create(SessionOfAllKinds("source"));
  Create(SessionOfAllKinds("twin"));
  for (std::int64_t at = 0; at < 900; at += 45) {
    EXPECT_EQ(Step("source", at, 45), Step("twin", at, 45));
    const std::string id = absl::StrCat("fork ", at);
    ASSERT_TRUE(Fork(Item("source", id)).status.ok());
    if (at % 2 == 0) Step(id, at + 45, 30, 2, 99);
  }
  EXPECT_TRUE(All("source") == All("twin"));
}

TEST_F(ForkTest, StopsAtTheLeastLengthOfAllLayers) {
  Create(SmallSession("source", 2));
  Fill("source", 0, 10, 100);
  const SessionInfo info = Info("source");
  const Source source{.spec = &info.config->layers[0], .seed = 20};
  Request ahead = AppendRequest("source", info.generation, source, 10, 3, true);
  ASSERT_TRUE(Append(store_.get(), 0, &ahead).ok());
  const ForkItem fork = Fork(Item("source", "fork"));
  ASSERT_TRUE(fork.status.ok());
  EXPECT_EQ(fork.info.layers[0].length, 10);
  EXPECT_EQ(fork.info.layers[1].length, 10);
  EXPECT_EQ(Info("source").layers[0].length, 13);
  const ForkItem late = Fork(Item("source", "late", 11));
  EXPECT_EQ(late.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailOf(late.status, "field"), "length");
  EXPECT_EQ(DetailOf(late.status, "expected"), "0 to 10");
}

// A fork keeps what it has when its source goes, and the other way round.
TEST_F(ForkTest, OutlivesItsSource) {
  Create(SmallSession("source"));
  Fill("source", 0, 700, 100);
  const std::vector<Tokens> before = All("source");
  ASSERT_TRUE(Fork(Item("source", "fork")).status.ok());
  ASSERT_TRUE(Fork(Item("fork", "fork of the fork")).status.ok());
  ASSERT_TRUE(store_->Delete("source", 0).ok());
  ASSERT_TRUE(store_->Truncate("fork", "", Info("fork").generation, 5).ok());
  Step("fork", 5, 300, 2, 55);
  EXPECT_TRUE(All("fork of the fork") == before);
}

TEST_F(ForkTest, CostsNextToNothing) {
  Create(SmallSession("source", 4));
  Fill("source", 0, 16384, 2048);
  const std::int64_t alone = store_->Totals().resident_bytes;
  constexpr int kForks = 1000;
  for (int i = 0; i < kForks; ++i) {
    ASSERT_TRUE(Fork(Item("source", absl::StrCat("fork ", i))).status.ok());
    if (i == 0) {
      EXPECT_LT(store_->Totals().resident_bytes, alone * 101 / 100);
    }
  }
  // Each tells of all that it needs; together they take it once.
  EXPECT_EQ(Info("fork 0").layers[0].page_bytes, Info("source").layers[0].page_bytes);
  EXPECT_EQ(Info("fork 0").layers[0].window_bytes, Info("source").layers[0].window_bytes);
  EXPECT_LT(store_->Totals().resident_bytes, alone * 4);
  EXPECT_EQ(store_->Totals().logical_bytes, (kForks + 1) * Info("source").logical_bytes);
}

TEST_F(ForkTest, IsSafeToRepeat) {
  Create(SmallSession("source"));
  Fill("source", 0, 50, 100);
  const ForkItem item = Item("source", "fork", 40);
  const ForkItem first = Fork(item);
  ASSERT_TRUE(first.status.ok());
  Step("fork", 40, 3);
  ASSERT_TRUE(store_->Truncate("source", "", Info("source").generation, 10).ok());
  const ForkItem again = Fork(item);
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.info.generation, first.info.generation);
  EXPECT_EQ(again.info.committed_length, 43);

  ForkItem other_request = item;
  other_request.request_id = "other";
  ForkItem other_length = item;
  other_length.length = 41;
  for (const ForkItem& other : {other_request, other_length}) {
    const absl::Status status = Fork(other).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(ReasonOf(status), "SESSION_EXISTS");
  }
}

// A beam search keeps its ids: hypotheses trade places in one call.
TEST_F(ForkTest, SessionsTradePlaces) {
  for (const char* id : {"a", "b", "c"}) Create(SmallSession(id, 2));
  for (const char* id : {"a", "b", "c"}) {
    Step(id, 0, 170, 2, 20 + static_cast<std::uint64_t>(id[0]));
  }
  const std::vector<Tokens> a = All("a");
  const std::vector<Tokens> b = All("b");
  std::vector<ForkItem> items = {Item("b", "a"), Item("a", "b"), Item("a", "c")};
  for (ForkItem& item : items) item.replace = true;
  std::vector<ForkItem> again = items;
  store_->Fork(items);
  for (const ForkItem& item : items) {
    EXPECT_TRUE(item.status.ok()) << item.status;
    EXPECT_EQ(Info(item.session).generation, item.info.generation);
  }
  EXPECT_TRUE(All("a") == b);
  EXPECT_TRUE(All("b") == a);
  EXPECT_TRUE(All("c") == a);
  store_->Fork(again);
  for (std::size_t i = 0; i < again.size(); ++i) {
    EXPECT_TRUE(again[i].status.ok());
    EXPECT_EQ(again[i].info.generation, items[i].info.generation);
  }
  ForkItem self = Item("a", "a", 7);
  self.replace = true;
  EXPECT_TRUE(Fork(self).status.ok());
  EXPECT_EQ(Info("a").committed_length, 7);
  EXPECT_EQ(store_->Totals().sessions, 3);
}

TEST_F(ForkTest, WrongItemsChangeNothing) {
  Create(SmallSession("source"));
  Fill("source", 0, 50, 100);
  ForkItem nobody = Item("source", "fork");
  nobody.source = "nobody";
  EXPECT_EQ(ReasonOf(Fork(nobody).status), "SESSION_NOT_FOUND");
  ForkItem old = Item("source", "fork");
  old.generation += 7;
  EXPECT_EQ(ReasonOf(Fork(old).status), "GENERATION_MISMATCH");
  EXPECT_EQ(Fork(Item("source", "fork", -1)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(Fork(Item("source", "source")).status), "SESSION_EXISTS");
  EXPECT_EQ(store_->Totals().sessions, 1);

  std::vector<ForkItem> twice = {Item("source", "fork"), Item("source", "fork")};
  store_->Fork(twice);
  EXPECT_TRUE(twice[0].status.ok());
  EXPECT_EQ(twice[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailOf(twice[1].status, "field"), "session");
}

TEST_F(ForkTest, WithoutMemoryNothingIsLeftBehind) {
  Create(SmallSession("source"));
  Fill("source", 0, 50, 100);
  const std::int64_t needed = store_->Totals().resident_bytes;
  MakeStore(needed + 100);
  Create(SmallSession("source"));
  Fill("source", 0, 50, 100);
  const StoreTotals before = store_->Totals();
  const ForkItem fork = Fork(Item("source", "fork"));
  EXPECT_EQ(ReasonOf(fork.status), "OUT_OF_MEMORY");
  EXPECT_EQ(store_->Totals().resident_bytes, before.resident_bytes);
  EXPECT_EQ(store_->Totals().logical_bytes, before.logical_bytes);
  EXPECT_EQ(store_->Totals().sessions, 1);
}

// Forks are made, appended to and deleted while their source grows.
TEST_F(ForkTest, WhileTheSourceIsInUse) {
  Create(SmallSession("source"));
  Create(SmallSession("twin"));
  constexpr int kSteps = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kSteps; ++i) {
        ForkItem item;
        item.source = "source";
        item.generation = Info("source").generation;
        item.session = absl::StrCat("fork ", t);
        item.request_id = absl::StrCat("request ", t, " ", i);
        store_->Fork({&item, 1});
        EXPECT_TRUE(item.status.ok()) << item.status;
        Step(item.session, item.info.committed_length, 40, 2, 5);
        EXPECT_TRUE(store_->Delete(item.session, 0).ok());
      }
    });
  }
  std::vector<std::vector<float>> answers;
  for (int i = 0; i < kSteps; ++i) answers.push_back(Step("source", i * 20, 20));
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kSteps; ++i) EXPECT_EQ(answers[i], Step("twin", i * 20, 20)) << i;
  EXPECT_TRUE(All("source") == All("twin"));
}

}  // namespace
}  // namespace oscarkv
