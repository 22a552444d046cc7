#include "server/session/settler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <string>
#include <thread>

#include "server/session/session_store.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/faulty_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class SettlerTest : public ::testing::Test {
 protected:
  void AppendTokens(SessionStore* store, int layer, std::int64_t begin, std::int32_t count) {
    const SessionInfo info = *store->Get("s");
    const Source source{.spec = &info.config->layers[layer], .seed = 3};
    Request request = AppendRequest("s", info.generation, source, begin, count, true);
    ASSERT_TRUE(Append(store, layer, &request).ok()) << request.item.status;
  }
  static std::int64_t Sealed(const SessionStore& store, int layer = 0) {
    return store.Get("s")->layers[layer].sealed_tokens;
  }
  // Waits, long if it must, for what happens in the background.
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  FakeBackend fake_;
  FaultyBackend backend_{&fake_};
};

TEST_F(SettlerTest, SealsIdleSessions) {
  SessionStore store(&backend_,
                     {.memory_budget_bytes = 1 << 28, .settle_after = absl::Milliseconds(1)});
  ASSERT_TRUE(store.Create(SmallSession("s", 2)).ok());
  AppendTokens(&store, 0, 0, 4 + 128 * 40 + 31);
  AppendTokens(&store, 1, 0, 4 + 128 * 40 + 31);
  EXPECT_TRUE(Eventually([&] { return Sealed(store, 1) == 128 * 39; }));
  EXPECT_EQ(Sealed(store, 0), 128 * 39);
  AppendTokens(&store, 0, 4 + 128 * 40 + 31, 1);
  AppendTokens(&store, 1, 4 + 128 * 40 + 31, 1);
  EXPECT_TRUE(Eventually([&] { return Sealed(store, 1) == 128 * 40; }));
}

// Pages are sealed one at a time where there is no room for more, and each makes room.
TEST_F(SettlerTest, CompressesAFullBudget) {
  constexpr std::int32_t kTokens = 4 + 128 * 40;
  std::int64_t full = 0;
  {
    SessionStore probe(&backend_, {.memory_budget_bytes = 1 << 28,
                                   .settle_after = absl::InfiniteDuration(),
                                   .prepared_pages = 0});
    ASSERT_TRUE(probe.Create(SmallSession("s")).ok());
    AppendTokens(&probe, 0, 0, kTokens);
    full = probe.Totals().resident_bytes;
  }
  SessionStore store(
      &backend_,
      {.memory_budget_bytes = full, .settle_after = absl::InfiniteDuration(), .prepared_pages = 0});
  ASSERT_TRUE(store.Create(SmallSession("s")).ok());
  AppendTokens(&store, 0, 0, kTokens);
  ASSERT_EQ(store.Totals().resident_bytes, full);
  store.Settle();
  EXPECT_EQ(Sealed(store), 128 * 39);
  EXPECT_LT(store.Totals().resident_bytes, full);
  EXPECT_EQ(store.Totals().settle_failures, 0);
}

TEST_F(SettlerTest, LeavesSessionsAloneInTheMiddleOfAStep) {
  SessionStore store(&backend_, {.memory_budget_bytes = 1 << 28,
                                 .settle_after = absl::InfiniteDuration(),
                                 .prepared_pages = 0});
  ASSERT_TRUE(store.Create(SmallSession("s", 2)).ok());
  AppendTokens(&store, 0, 0, 300);
  store.Settle();
  EXPECT_EQ(Sealed(store), 0);
  AppendTokens(&store, 1, 0, 300);
  store.Settle();
  EXPECT_EQ(Sealed(store, 0), 256);
  EXPECT_EQ(Sealed(store, 1), 256);
}

TEST_F(SettlerTest, CountsFailuresAndTriesAgain) {
  SessionStore store(&backend_, {.memory_budget_bytes = 1 << 28,
                                 .settle_after = absl::InfiniteDuration(),
                                 .prepared_pages = 0});
  ASSERT_TRUE(store.Create(SmallSession("s")).ok());
  AppendTokens(&store, 0, 0, 300);
  for (int call = 0; call < 2; ++call) {  // the allocation, then the seal
    backend_.FailCall(call, KernelStatus::Internal("broken"));
    store.Settle();
    EXPECT_TRUE(backend_.struck());
    EXPECT_EQ(store.Totals().settle_failures, call + 1);
    EXPECT_EQ(Sealed(store), 0);
  }
  store.Settle();
  EXPECT_EQ(Sealed(store), 256);
  EXPECT_EQ(store.Totals().settle_failures, 2);
}

// An exception that reached the thread's end would end the server.
TEST_F(SettlerTest, OutlivesExceptions) {
  SessionStore store(&backend_, {.memory_budget_bytes = 1 << 28,
                                 .settle_after = absl::InfiniteDuration(),
                                 .prepared_pages = 0});
  ASSERT_TRUE(store.Create(SmallSession("s")).ok());
  AppendTokens(&store, 0, 0, 300);
  const std::int64_t blocks = fake_.blocks();
  for (int call = 0; call < 2; ++call) {
    backend_.ThrowInCall(call);
    store.Settle();
    EXPECT_TRUE(backend_.struck());
    EXPECT_EQ(store.Totals().settle_failures, call + 1);
    EXPECT_EQ(Sealed(store), 0);
    EXPECT_EQ(fake_.blocks(), blocks);
  }
  store.Settle();
  EXPECT_EQ(Sealed(store), 256);
}

// Whichever allocation fails, of the list of sessions or within one.
TEST_F(SettlerTest, OutlivesAWantOfHostMemory) {
  for (int n = 0;; ++n) {
    SessionStore store(&backend_, {.memory_budget_bytes = 1 << 28,
                                   .settle_after = absl::InfiniteDuration(),
                                   .prepared_pages = 0});
    ASSERT_TRUE(store.Create(SmallSession("s")).ok());
    AppendTokens(&store, 0, 0, 300);
    bool struck = false;
    {
      const testing::FailingNew failing(n);
      try {
        store.Settle();
      } catch (...) {
        ADD_FAILURE() << "allocation " << n;
      }
      struck = failing.struck();
    }
    EXPECT_EQ(store.Totals().settle_failures, struck ? 1 : 0) << n;
    store.Settle();
    ASSERT_EQ(Sealed(store), 256) << n;
    if (!struck) break;
  }
}

// A backend that takes its time, and says when it was asked first.
class SlowBackend : public FaultyBackend {
 public:
  using FaultyBackend::FaultyBackend;
  KernelStatus Seal(std::span<SealItem> items) override {
    if (seals.fetch_add(1) == 0) asked.count_down();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return FaultyBackend::Seal(items);
  }
  std::atomic<int> seals{0};
  std::latch asked{1};
};

TEST_F(SettlerTest, APassUnderWayEndsWithTheStore) {
  constexpr int kLayers = 200;
  SlowBackend slow(&fake_);
  {
    SessionStore store(&slow, {.memory_budget_bytes = 1 << 28,
                               .settle_after = absl::Milliseconds(1),
                               .prepared_pages = 0});
    ASSERT_TRUE(store.Create(SmallSession("s", kLayers)).ok());
    for (int layer = 0; layer < kLayers; ++layer) AppendTokens(&store, layer, 0, 200);
    slow.asked.wait();
  }
  EXPECT_LT(slow.seals, kLayers);
}

TEST_F(SettlerTest, EndsWithoutWaitingForItsNextPass) {
  for (int i = 0; i < 100; ++i) {
    const SessionStore store(
        &backend_, {.memory_budget_bytes = 1, .settle_after = absl::Hours(1), .prepared_pages = 0});
  }
}

}  // namespace
}  // namespace oscarkv
