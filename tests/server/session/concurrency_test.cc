// Requests of many threads at once. What these tests check by themselves is that all ends well and
// that no token is lost or mixed up; run under thread sanitizer they check the locks.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/session/session_store.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class ConcurrencyTest : public ::testing::Test {
 protected:
  static void Run(const std::vector<std::function<void()>>& bodies) {
    std::vector<std::thread> threads;
    threads.reserve(bodies.size());
    for (const auto& body : bodies) threads.emplace_back(body);
    for (std::thread& thread : threads) thread.join();
  }

  FakeBackend backend_;
  SessionStore store_{&backend_,
                      {.memory_budget_bytes = 1 << 30, .settle_after = absl::Milliseconds(1)}};
  const SessionConfig specs_ = SmallSession("", 3);
};

TEST_F(ConcurrencyTest, LayersAreAppendedSideBySide) {
  const std::uint64_t generation = store_.Create(SmallSession("s", 3))->generation;
  std::vector<std::function<void()>> bodies;
  for (int layer = 0; layer < 3; ++layer) {
    bodies.push_back([this, generation, layer] {
      const Source source{.spec = &specs_.layers[layer], .seed = 1};
      for (std::int64_t begin = 0; begin < 600; begin += 12) {
        Request request = AttendRequest("s", generation, source, begin, 12, 1);
        ASSERT_TRUE(Attend(&store_, layer, &request).ok()) << request.item.status;
      }
    });
  }
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) {
      EXPECT_EQ(store_.List("", 10, std::nullopt).size(), 1U);
      EXPECT_LE(store_.Get("s")->committed_length, 600);
      store_.Totals();
      store_.Settle();
    }
  });
  Run(bodies);
  done = true;
  watcher.join();
  store_.Settle();
  for (std::size_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(store_.Get("s")->layers[layer].sealed_tokens, 512);
    const Source source{.spec = &specs_.layers[layer], .seed = 1};
    EXPECT_EQ(ReadAll(store_, "s", layer)->keys, source.Keys(0, 600));
    EXPECT_EQ(ReadAll(store_, "s", layer)->values, source.Values(0, 600));
  }
}

// Appends to one layer are ordered: of many that expect the same length one goes through, and the
// others learn of it.
TEST_F(ConcurrencyTest, OneAppendWinsAPlace) {
  const std::uint64_t generation = store_.Create(SmallSession("s", 1))->generation;
  constexpr int kThreads = 4;
  std::atomic<int> appended{0};
  std::vector<std::function<void()>> bodies;
  for (int thread = 0; thread < kThreads; ++thread) {
    bodies.push_back([&, thread] {
      const Source source{.spec = &specs_.layers[0],
                          .seed = static_cast<std::uint64_t>(thread) + 1};
      for (std::int64_t begin = 0; begin < 300;) {
        Request request = AppendRequest("s", generation, source, begin, 3, false);
        if (Append(&store_, 0, &request).ok()) ++appended;
        begin = request.item.length_after;
      }
    });
  }
  Run(bodies);
  EXPECT_EQ(appended.load(), 100);
  const Tokens tokens = *ReadAll(store_, "s", 0);
  for (std::int64_t begin = 0; begin < 300; begin += 3) {
    int writers = 0;
    for (int thread = 0; thread < kThreads; ++thread) {
      const Source source{.spec = &specs_.layers[0],
                          .seed = static_cast<std::uint64_t>(thread) + 1};
      const std::vector<std::uint16_t> keys = source.Keys(begin, 3);
      if (std::equal(keys.begin(), keys.end(), tokens.keys.begin() + begin * 128)) ++writers;
    }
    ASSERT_EQ(writers, 1) << begin;
  }
}

// Batches over the same sessions in different orders, with truncates and deletes between them.
TEST_F(ConcurrencyTest, EverythingAtOnceEnds) {
  const std::vector<std::string> ids = {"a", "b", "c", "d"};
  for (const std::string& id : ids) ASSERT_TRUE(store_.Create(SmallSession(id, 3)).ok());
  const auto batches = [&](std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % n); };
    for (int i = 0; i < 150; ++i) {
      const int layer = draw(3);
      const Source source{.spec = &specs_.layers[layer], .seed = 1};
      std::vector<std::string> order = ids;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Request> requests;
      for (const std::string& id : order) {
        const absl::StatusOr<SessionInfo> info = store_.Get(id);
        const std::int64_t length = info.ok() ? info->layers[layer].length : 0;
        requests.push_back(
            AttendRequest(id, info.ok() ? info->generation : 1, source, length, 1 + draw(40), 1));
      }
      std::vector<BatchItem> items;
      for (Request& request : requests) {
        items.push_back(request.item);
        items.back().session = request.session;
        items.back().outputs = request.outputs.data();
        items.back().log_sum_exps = request.log_sum_exps.data();
      }
      if (draw(2) == 0) {
        AttendAll(&store_, layer, items);
      } else {
        AppendAll(&store_, layer, items);
      }
    }
  };
  const auto changes = [&](std::uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      const std::string& id = ids[random() % ids.size()];
      const absl::StatusOr<SessionInfo> info = store_.Get(id);
      switch (random() % 4) {
        case 0:
          if (info.ok())
            (void)store_.Truncate(id, "", info->generation, info->committed_length / 2);
          break;
        case 1:
          if (info.ok()) (void)store_.Delete(id, info->generation);
          break;
        case 2:
          (void)ReadAll(store_, id, 0);
          break;
        default:
          (void)store_.Create(SmallSession(id, 3));
      }
    }
  };
  Run({[&] { batches(1); }, [&] { batches(2); }, [&] { batches(3); }, [&] { changes(4); },
       [&] { changes(5); },
       [&] {
         for (int i = 0; i < 100; ++i) store_.Settle();
       }});

  const Source source{.spec = &specs_.layers[0], .seed = 1};
  for (const SessionInfo& info : store_.List("", 10, std::nullopt)) {
    const std::string& id = info.config->id;
    for (std::size_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(ReadAll(store_, id, layer)->keys, source.Keys(0, info.layers[layer].length));
    }
    ASSERT_TRUE(store_.Delete(id, 0).ok());
  }
  EXPECT_EQ(backend_.blocks(), 0);
  EXPECT_EQ(store_.Totals().resident_bytes, 0);
}

}  // namespace
}  // namespace oscarkv
