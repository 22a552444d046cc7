// Pages that are sealed ahead: installed by the append that needs them, as if it had sealed them,
// and gone without a trace where it never comes.

#include "server/session/preparer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/api/page_layout.h"
#include "server/session/settler.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/faulty_backend.h"
#include "tests/server/support/session_rig.h"

namespace oscarkv {
namespace {

// Tokens of a small layer after which its first page may be sealed, and those after which the next
// append does.
constexpr std::int32_t kSealable = 4 + 128 + 32;
constexpr std::int32_t kDue = kSealable + kSealSlack;
constexpr int kPieces = 3;  // of its first page: directions, two heads

class PreparerTest : public ::testing::Test {
 protected:
  Source SourceOf(const Session& session, int layer = 0) const {
    return {.spec = &session.config()->layers[layer], .seed = 7};
  }
  Request Next(const Session& session, std::int32_t count, bool with_queries = true) const {
    return AppendRequest(session.config()->id, session.generation(), SourceOf(session),
                         session.Info().layers[0].length, count, with_queries);
  }
  void Append(SessionRig* rig, Session* session, std::int32_t count, bool prepared = true) const {
    Request request = Next(*session, count);
    ASSERT_TRUE(rig->Append(&request, prepared).ok()) << request.item.status;
  }
  // The pages of a session to which the same tokens came, by requests of these sizes.
  std::vector<std::string> PagesWithout(const std::vector<std::int32_t>& counts) {
    SessionRig rig(&backend_);
    const auto session = rig.Create(SmallSession("twin"));
    for (const std::int32_t count : counts) Append(&rig, session.get(), count, false);
    return rig.Pages(session.get());
  }
  int Seals() const {
    const auto it = backend_.calls().find("Seal");
    return it == backend_.calls().end() ? 0 : it->second;
  }

  FakeBackend fake_;
  FaultyBackend backend_{&fake_};
};

TEST_F(PreparerTest, TheAppendThatNeedsAPageFindsItSealed) {
  const std::vector<std::string> expected = PagesWithout({kDue, 1});
  SessionRig rig(&backend_);
  const auto session = rig.Create(SmallSession("s"));
  Append(&rig, session.get(), kSealable - 1);
  EXPECT_EQ(rig.DoPieces(), 0);
  Append(&rig, session.get(), 1);
  EXPECT_EQ(rig.DoPieces(), kPieces);
  EXPECT_EQ(rig.preparer().pages(), 1);

  // The appends between leave it as it is.
  const int seals = Seals();
  for (int i = 0; i < kSealSlack; ++i) {
    EXPECT_EQ(rig.Stats(*session).sealed_tokens, 0);
    EXPECT_GT(rig.Stats(*session).prepared_bytes, 0);
    Append(&rig, session.get(), 1);
    EXPECT_EQ(rig.DoPieces(), 0);
  }
  EXPECT_EQ(rig.Stats(*session).sealed_tokens, 0);
  Append(&rig, session.get(), 1);
  EXPECT_EQ(Seals(), seals);
  EXPECT_EQ(rig.Stats(*session).sealed_tokens, 128);
  EXPECT_EQ(rig.Stats(*session).pages_sealed_without_queries, 0);
  EXPECT_EQ(rig.Pages(session.get()), expected);
  EXPECT_EQ(rig.DoPieces(), 0);
  EXPECT_EQ(rig.preparer().failures(), 0);
}

TEST_F(PreparerTest, TheNextAppendTakesOverWhereverThePieceEnds) {
  const std::vector<std::int32_t> counts = {kDue + 2 * 128, 1};
  const std::vector<std::string> expected = PagesWithout(counts);
  ASSERT_EQ(expected.size(), 3U);
  int all = 0;
  for (int pieces = 0; pieces <= all + 1; ++pieces) {
    SessionRig rig(&backend_);
    const auto session = rig.Create(SmallSession("s"));
    Append(&rig, session.get(), counts[0]);
    all = std::max(all, rig.DoPieces(pieces));
    Append(&rig, session.get(), counts[1]);
    EXPECT_EQ(rig.Pages(session.get()), expected) << pieces;
    // What is left of the preparation is nothing.
    EXPECT_EQ(rig.Stats(*session).prepared_bytes, 0);
    rig.DoPieces();
    EXPECT_EQ(rig.Pages(session.get()), expected) << pieces;
  }
  EXPECT_EQ(all, 1 + 3 * 2);
}

// Of more pages than a layer may have prepared the append seals the others.
TEST_F(PreparerTest, PreparesSoManyPagesOfALayerAndNoMore) {
  const std::vector<std::int32_t> counts = {kDue + 5 * 128, 1};
  const std::vector<std::string> expected = PagesWithout(counts);
  for (int most = 0; most < 7; ++most) {
    SessionRig rig(&backend_, 1 << 28, most);
    const auto session = rig.Create(SmallSession("s"));
    Append(&rig, session.get(), counts[0]);
    EXPECT_EQ(rig.DoPieces(), most == 0 ? 0 : 1 + 2 * std::min(most, 6));
    Append(&rig, session.get(), counts[1]);
    EXPECT_EQ(rig.Pages(session.get()), expected) << most;
  }
}

// One that may be sealed, but need not be yet, is no part of what the next append seals.
TEST_F(PreparerTest, PreparesWhatIsDueBeforeWhatIsNot) {
  const std::vector<std::string> expected = PagesWithout({kSealable + 128, 1});
  ASSERT_EQ(expected.size(), 1U);
  SessionRig rig(&backend_);
  const auto session = rig.Create(SmallSession("s"));
  Append(&rig, session.get(), kSealable + 128);
  EXPECT_EQ(rig.DoPieces(), kPieces);
  Append(&rig, session.get(), 1);
  EXPECT_EQ(rig.Pages(session.get()), expected);
  EXPECT_EQ(rig.DoPieces(), 2);  // the next one
  Append(&rig, session.get(), 1);
  EXPECT_EQ(rig.Pages(session.get()), expected);
}

// In the order in which layers were left, which is that in which they come again.
TEST_F(PreparerTest, PreparesInTheOrderOfRequests) {
  SessionRig rig(&backend_);
  const auto first = rig.Create(SmallSession("z"));
  const auto second = rig.Create(SmallSession("a"));
  Append(&rig, first.get(), kDue);
  Append(&rig, second.get(), kDue);
  rig.DoPieces(kPieces);
  const int seals = Seals();
  Append(&rig, first.get(), 1);
  EXPECT_EQ(Seals(), seals);
  Append(&rig, second.get(), 1);
  EXPECT_EQ(Seals(), seals + 1);
}

TEST_F(PreparerTest, WhatIsPreparedIsCounted) {
  SessionRig rig(&backend_);
  const auto session = rig.Create(SmallSession("s"));
  const auto expect_budget = [&] {
    const SessionInfo info = session->Info();
    EXPECT_EQ(rig.taken(), info.resident_bytes);
    return info.layers[0];
  };
  Append(&rig, session.get(), kDue);
  const LayerStats due = expect_budget();
  const LayerSpec& spec = session->config()->layers[0];
  const std::int64_t page = PageLayout(spec).bytes;
  // Ten sampled positions of the 160 from the first page on, and a direction for each kv head.
  EXPECT_EQ(due.prepared_bytes, page + 10 * 2 * 4 * 64 + 2 * 64 * 4);
  EXPECT_EQ(due.page_bytes, 0);
  EXPECT_EQ(rig.budget().used(MemoryKind::kPages), page);
  rig.DoPieces();
  expect_budget();
  Append(&rig, session.get(), 1);
  const LayerStats sealed = expect_budget();
  EXPECT_EQ(sealed.prepared_bytes, 0);
  EXPECT_EQ(sealed.page_bytes, page);
  EXPECT_EQ(rig.budget().used(MemoryKind::kPages), page);
}

TEST_F(PreparerTest, PreparesNothingWhereABudgetIsNearlyFull) {
  std::int64_t used = 0;
  {
    SessionRig probe(&backend_);
    const auto session = probe.Create(SmallSession("s"));
    Append(&probe, session.get(), kDue, false);
    used = probe.budget().used();
  }
  int prepared = 0;
  int refused = 0;
  for (std::int64_t budget = used; prepared == 0; budget += 512) {
    SessionRig rig(&backend_, budget);
    const auto session = rig.Create(SmallSession("s"));
    Append(&rig, session.get(), kDue);
    (rig.DoPieces() > 0 ? prepared : refused) += 1;
    EXPECT_EQ(rig.budget().used() == used, prepared == 0);
    if (prepared > 0) {
      EXPECT_LE(rig.budget().used(), budget - budget / 16);
    }
  }
  EXPECT_GT(refused, 10);
}

TEST_F(PreparerTest, AFailedPieceIsLeftToTheAppend) {
  const std::vector<std::string> expected = PagesWithout({kDue, 1});
  for (const bool throws : {false, true}) {
    for (int call = 0; call < 2; ++call) {
      SessionRig rig(&backend_);
      const auto session = rig.Create(SmallSession("s"));
      Append(&rig, session.get(), kDue);
      // The backend may have done what it failed to tell of; this one refuses to do it twice.
      FakeBackend::Forgiveness forgiven(&fake_);
      throws ? backend_.ThrowInCall(call) : backend_.FailCall(call, KernelStatus::Internal("x"));
      rig.DoPieces();
      EXPECT_TRUE(backend_.struck());
      EXPECT_EQ(rig.preparer().failures(), 1);
      EXPECT_EQ(rig.preparer().pages(), 0);
      EXPECT_EQ(rig.DoPieces(), 0);
      Append(&rig, session.get(), 1);
      EXPECT_EQ(rig.Pages(session.get()), expected);
      // The next page is prepared as if nothing had been.
      Append(&rig, session.get(), 128);
      EXPECT_EQ(rig.DoPieces(), 2);
      EXPECT_EQ(rig.preparer().failures(), 1);
    }
  }
}

// Whichever allocation fails: of the preparation, or of a piece.
TEST_F(PreparerTest, OutlivesAWantOfHostMemory) {
  const std::vector<std::string> expected = PagesWithout({kDue, 1});
  int failures = 0;
  for (int n = 0;; ++n) {
    SessionRig rig(&fake_);
    const auto session = rig.Create(SmallSession("s"));
    Append(&rig, session.get(), kDue, false);
    const std::int64_t used = rig.budget().used();
    FakeBackend::Forgiveness forgiven(&fake_);
    bool struck = false;
    {
      const LayerLease lease(session, 0);
      const testing::FailingNew failing(n);
      rig.preparer().Prepare(&lease.state());
      rig.DoPieces();
      struck = failing.struck();
    }
    EXPECT_EQ(rig.preparer().failures(), struck ? 1 : 0) << n;
    failures += struck ? 1 : 0;
    {
      const LayerLease lease(session, 0);
      if (!lease.state().preparation()) {
        EXPECT_EQ(rig.budget().used(), used) << n;
      }
    }
    Append(&rig, session.get(), 1);
    ASSERT_EQ(rig.Pages(session.get()), expected) << n;
    if (!struck) break;
  }
  EXPECT_GT(failures, 10);
}

// A step that fails when it has taken what was prepared leaves the session whole.
TEST_F(PreparerTest, AFailedStepLeavesTheSessionWhole) {
  const std::vector<std::string> expected = PagesWithout({kDue, 40});
  int faults = 0;
  for (int pieces = 0; pieces <= kPieces; ++pieces) {
    for (int call = 0;; ++call) {
      SessionRig rig(&backend_);
      const auto session = rig.Create(SmallSession("s"));
      Append(&rig, session.get(), kDue);
      rig.DoPieces(pieces);
      backend_.FailCall(call, KernelStatus::Internal("broken"));
      Request request = Next(*session, 40);
      const bool failed = !rig.Append(&request, true).ok();
      if (!backend_.struck()) break;
      if (failed) {
        ++faults;
        EXPECT_EQ(rig.Stats(*session).length, kDue);
        EXPECT_EQ(rig.Stats(*session).sealed_tokens, 0);
        EXPECT_EQ(rig.taken(), session->Info().resident_bytes);
        ASSERT_TRUE(rig.Append(&request, true).ok()) << request.item.status;
      }
      EXPECT_EQ(rig.Pages(session.get()), expected);
      EXPECT_EQ(rig.taken(), session->Info().resident_bytes);
    }
    backend_.Disarm();
  }
  EXPECT_GT(faults, 8);
}

TEST_F(PreparerTest, TruncateAndDeleteDropWhatIsPrepared) {
  const std::vector<std::string> expected = PagesWithout({kDue + 1, 1});
  for (int pieces = 0; pieces <= kPieces; ++pieces) {
    SessionRig rig(&backend_);
    const auto session = rig.Create(SmallSession("s"));
    Append(&rig, session.get(), kDue);
    rig.DoPieces(pieces);
    rig.Truncate(session.get(), kDue - 1);
    EXPECT_EQ(rig.Stats(*session).prepared_bytes, 0);
    EXPECT_EQ(rig.taken(), session->Info().resident_bytes);
    Append(&rig, session.get(), 2);
    rig.DoPieces(pieces);
    Append(&rig, session.get(), 1);
    EXPECT_EQ(rig.Pages(session.get()), expected);

    Append(&rig, session.get(), 128);
    rig.DoPieces(pieces);
    rig.Delete(session.get());
    EXPECT_EQ(rig.budget().used(), 0);
    EXPECT_EQ(fake_.blocks(), 0);
    rig.DoPieces();
    EXPECT_EQ(fake_.blocks(), 0);
  }
}

TEST_F(PreparerTest, QueriesThatComeLaterCountToo) {
  SessionRig rig(&backend_);
  const auto session = rig.Create(SmallSession("s"));
  const auto twin = rig.Create(SmallSession("twin"));
  for (Session* each : {session.get(), twin.get()}) {
    const bool prepared = each == session.get();
    Request append = Next(*each, kDue, false);
    ASSERT_TRUE(rig.Append(&append, prepared).ok());
    rig.DoPieces();
    Request look =
        AttendRequest(each->config()->id, each->generation(), SourceOf(*each), 0, 100, 50);
    look.item.num_tokens = 0;
    look.item.expected_length.reset();
    look.item.keys = {};
    look.item.values = {};
    look.item.query_start = 50;
    ASSERT_TRUE(rig.Attend(&look, prepared).ok()) << look.item.status;
    rig.DoPieces(2);
    Append(&rig, each, 1, prepared);
    EXPECT_EQ(rig.Stats(*each).pages_sealed_without_queries, 0);
  }
  EXPECT_EQ(rig.Pages(session.get()), rig.Pages(twin.get()));
}

TEST_F(PreparerTest, TheSettlerInstallsWhatIsPrepared) {
  const std::vector<std::string> expected = PagesWithout({kDue + 128, 1});
  SessionRig rig(&backend_);
  const auto session = rig.Create(SmallSession("s"));
  Append(&rig, session.get(), kDue + 128);
  rig.DoPieces();
  const int seals = Seals();
  Settler settler(rig.context(), absl::InfiniteDuration(), absl::InfiniteDuration());
  settler.SettleAll();
  EXPECT_EQ(Seals(), seals);
  EXPECT_EQ(rig.Stats(*session).sealed_tokens, 256);
  EXPECT_EQ(rig.Stats(*session).prepared_bytes, 0);
  EXPECT_EQ(rig.Pages(session.get()), expected);
}

// A backend whose seals wait until they are let go.
class HeldBackend : public FaultyBackend {
 public:
  using FaultyBackend::FaultyBackend;
  KernelStatus Seal(std::span<SealItem> items) override {
    if (std::this_thread::get_id() != owner_) {
      begun.count_down();
      go.wait();
    }
    return FaultyBackend::Seal(items);
  }
  std::latch begun{1};
  std::latch go{1};

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
};

enum class Ending { kAppend, kTruncate, kDelete, kNoPreparer };

class PieceUnderWayTest : public ::testing::TestWithParam<Ending> {};

// Whoever takes a layer's preparation waits for the piece under way, and for no more than that.
TEST_P(PieceUnderWayTest, IsWaitedFor) {
  FakeBackend fake;
  HeldBackend held(&fake);
  SessionRig rig(&held);
  rig.preparer().Start();
  const auto session = rig.Create(SmallSession("s"));
  const Source source{.spec = &session->config()->layers[0], .seed = 7};
  Request request = AppendRequest("s", session->generation(), source, 0, kDue + 128, true);
  ASSERT_TRUE(rig.Append(&request).ok());
  held.begun.wait();
  std::atomic<bool> released{false};
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    released = true;
    held.go.count_down();
  });
  switch (GetParam()) {
    case Ending::kAppend:
      request = AppendRequest("s", session->generation(), source, kDue + 128, 1, true);
      EXPECT_TRUE(rig.Append(&request).ok());
      EXPECT_EQ(rig.Stats(*session).sealed_tokens, 256);
      break;
    case Ending::kTruncate:
      rig.Truncate(session.get(), 5);
      EXPECT_EQ(rig.taken(), session->Info().resident_bytes);
      EXPECT_EQ(rig.Stats(*session).prepared_bytes, 0);
      break;
    case Ending::kDelete:
      rig.Delete(session.get());
      EXPECT_EQ(fake.blocks(), 0);
      EXPECT_EQ(rig.budget().used(), 0);
      break;
    case Ending::kNoPreparer:
      rig.ReplacePreparer();
      EXPECT_LT(held.calls().at("Seal"), 4);
      request = AppendRequest("s", session->generation(), source, kDue + 128, 1, true);
      EXPECT_TRUE(rig.Append(&request).ok());
      EXPECT_EQ(rig.Stats(*session).sealed_tokens, 256);
      break;
  }
  EXPECT_TRUE(released);
  releaser.join();
}

INSTANTIATE_TEST_SUITE_P(Endings, PieceUnderWayTest,
                         ::testing::Values(Ending::kAppend, Ending::kTruncate, Ending::kDelete,
                                           Ending::kNoPreparer));

}  // namespace
}  // namespace oscarkv
