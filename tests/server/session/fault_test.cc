// Whatever call of the backend fails, and wherever memory ends: an item that fails leaves its
// session as it was, and the same item later succeeds as if nothing had been.

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/session/session_store.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/faulty_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

// All that a client can see of a session.
struct Seen {
  SessionInfo info;
  std::vector<Tokens> tokens;  // [layers]
};

Seen Look(const SessionStore& store, const std::string& id) {
  Seen seen{.info = *store.Get(id), .tokens = {}};
  for (std::size_t i = 0; i < seen.info.layers.size(); ++i) {
    seen.tokens.push_back(*ReadAll(store, id, i));
  }
  return seen;
}

void ExpectSame(const Seen& a, const Seen& b) {
  EXPECT_EQ(a.info.generation, b.info.generation);
  EXPECT_EQ(a.info.resident_bytes, b.info.resident_bytes);
  EXPECT_EQ(a.tokens, b.tokens);
  for (std::size_t i = 0; i < a.info.layers.size(); ++i) {
    EXPECT_EQ(a.info.layers[i].length, b.info.layers[i].length);
    EXPECT_EQ(a.info.layers[i].sealed_tokens, b.info.layers[i].sealed_tokens);
    EXPECT_EQ(a.info.layers[i].window_bytes, b.info.layers[i].window_bytes);
    EXPECT_EQ(a.info.layers[i].page_bytes, b.info.layers[i].page_bytes);
  }
}

StoreOptions Options(std::int64_t budget) {
  // Nothing in the background: calls of the backend are counted, and tests of their own tell of it.
  return {
      .memory_budget_bytes = budget, .settle_after = absl::InfiniteDuration(), .prepared_pages = 0};
}

// A store with a session that has two pages due at the next append.
class Scene {
 public:
  explicit Scene(std::int64_t budget = 1 << 28) : store_(&backend_, Options(budget)) {
    EXPECT_TRUE(store_.Create(SmallSession("s")).ok());
    spec_ = SmallLayer(0);
    Append(0, 301);
  }

  void Append(std::int64_t begin, std::int32_t count) {
    Request request = AppendRequest("s", Generation(), source(), begin, count, true);
    EXPECT_TRUE(oscarkv::Append(&store_, 0, &request).ok()) << request.item.status;
  }
  // 40 tokens with their queries: seals, needs window blocks, adds to the sample.
  Request Next() { return AttendRequest("s", Generation(), source(), 301, 40, 40); }

  std::uint64_t Generation() { return store_.Get("s")->generation; }
  Source source() const { return {.spec = &spec_, .seed = 5}; }
  SessionStore& store() { return store_; }
  FaultyBackend& backend() { return backend_; }
  FakeBackend& fake() { return fake_; }

 private:
  FakeBackend fake_;
  FaultyBackend backend_{&fake_};
  LayerSpec spec_;
  SessionStore store_;
};

struct Expected {
  std::vector<float> outputs;
  Seen after;
};

Expected WithoutFault() {
  Scene scene;
  Request request = scene.Next();
  EXPECT_TRUE(Attend(&scene.store(), 0, &request).ok());
  return {.outputs = request.outputs, .after = Look(scene.store(), "s")};
}

TEST(FaultTest, EveryFailingCallLeavesTheSessionWhole) {
  const Expected expected = WithoutFault();
  EXPECT_EQ(expected.after.info.layers[0].sealed_tokens, 256);
  for (const KernelStatus& fault :
       {KernelStatus::ResourceExhausted("full"), KernelStatus::Internal("broken")}) {
    int faults = 0;
    for (int call = 0;; ++call) {
      Scene scene;
      Request request = scene.Next();
      const Seen before = Look(scene.store(), "s");
      const std::int64_t blocks = scene.fake().blocks();
      scene.backend().FailCall(call, fault);
      const absl::Status status = Attend(&scene.store(), 0, &request);
      if (!scene.backend().struck()) break;
      ++faults;
      ASSERT_EQ(status, request.item.status);
      ASSERT_EQ(status.code(), fault.code == KernelErrorCode::kInternal
                                   ? absl::StatusCode::kInternal
                                   : absl::StatusCode::kResourceExhausted);
      ASSERT_EQ(request.item.length_after, 301);
      for (const float x : request.outputs) ASSERT_EQ(x, 0);
      ExpectSame(Look(scene.store(), "s"), before);
      ASSERT_EQ(scene.fake().blocks(), blocks);

      ASSERT_TRUE(Attend(&scene.store(), 0, &request).ok());
      EXPECT_FALSE(request.item.repeated);
      ASSERT_EQ(request.outputs, expected.outputs);
      ExpectSame(Look(scene.store(), "s"), [&] {
        Seen after = expected.after;
        after.info.generation = before.info.generation;
        return after;
      }());
    }
    EXPECT_EQ(faults, 5);  // pages, window blocks; seal, append, attend
  }
}

TEST(FaultTest, EveryTightBudgetLeavesTheSessionWhole) {
  const Expected expected = WithoutFault();
  Scene probe;
  const std::int64_t before_bytes = probe.store().Totals().resident_bytes;
  int failed = 0;
  bool succeeded = false;
  // Steps smaller than the smallest thing reserved, so that each reservation is the one that fails.
  for (std::int64_t budget = before_bytes; !succeeded; budget += 256) {
    Scene scene(budget);
    Request request = scene.Next();
    const Seen before = Look(scene.store(), "s");
    const std::int64_t blocks = scene.fake().blocks();
    succeeded = Attend(&scene.store(), 0, &request).ok();
    if (succeeded) {
      EXPECT_EQ(request.outputs, expected.outputs);
      break;
    }
    ++failed;
    ASSERT_EQ(request.item.status.code(), absl::StatusCode::kResourceExhausted);
    ASSERT_EQ(DetailsOf(request.item.status)->reason, "OUT_OF_MEMORY");
    ASSERT_GT(DetailsOf(request.item.status)->retry_after, absl::ZeroDuration());
    ASSERT_EQ(scene.fake().blocks(), blocks);
    ASSERT_EQ(scene.store().Totals().resident_bytes, before_bytes);
    ExpectSame(Look(scene.store(), "s"), before);
  }
  EXPECT_GT(failed, 50);
}

// Host memory may end anywhere, in the backend of the test too.
TEST(FaultTest, EveryFailingAllocationLeavesTheSessionWhole) {
  const Expected expected = WithoutFault();
  int failed = 0;
  // The store's own come first; then thousands of the test's backend, of which some will do.
  for (int n = 0;; n += n < 120 ? 1 : 997) {
    Scene scene;
    Request request = scene.Next();
    const Seen before = Look(scene.store(), "s");
    const std::int64_t bytes = scene.store().Totals().resident_bytes;
    bool struck = false;
    bool attended = false;  // also where only memory to go faster was wanting
    {
      const testing::FailingNew failing(n);
      try {
        attended = Attend(&scene.store(), 0, &request).ok();
      } catch (const std::bad_alloc&) {
      }
      struck = failing.struck();
    }
    if (!struck) break;
    if (attended) {
      EXPECT_EQ(request.outputs, expected.outputs) << n;
      continue;
    }
    ++failed;
    ExpectSame(Look(scene.store(), "s"), before);
    ASSERT_EQ(scene.store().Totals().resident_bytes, bytes) << n;
    ASSERT_TRUE(Attend(&scene.store(), 0, &request).ok()) << n;
    EXPECT_FALSE(request.item.repeated) << n;
    ASSERT_EQ(request.outputs, expected.outputs) << n;
  }
  EXPECT_GT(failed, 50);
}

// In a batch the items that need nothing of the failed call go on.
TEST(FaultTest, AFailedSealFailsOnlyItemsThatSeal) {
  Scene scene;
  ASSERT_TRUE(scene.store().Create(SmallSession("other")).ok());
  const std::uint64_t generation = scene.store().Get("other")->generation;
  Request seals = scene.Next();
  Request simple = AttendRequest("other", generation, scene.source(), 0, 8, 1);
  std::vector<BatchItem> items;
  for (Request* request : {&seals, &simple}) {
    request->item.session = request->session;
    request->item.outputs = request->outputs.data();
    request->item.log_sum_exps = request->log_sum_exps.data();
    items.push_back(request->item);
  }
  // Allocations: pages and window of the first, sinks and window of the second; then the seal.
  scene.backend().FailCall(4, KernelStatus::Internal("broken"));
  AttendAll(&scene.store(), 0, items);
  ASSERT_TRUE(scene.backend().struck());
  EXPECT_EQ(items[0].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(items[0].length_after, 301);
  EXPECT_TRUE(items[1].status.ok()) << items[1].status;
  EXPECT_EQ(items[1].length_after, 8);
}

TEST(FaultTest, AFailedReadChangesNothing) {
  Scene scene;
  const Seen before = Look(scene.store(), "s");
  scene.backend().FailCall(0, KernelStatus::Unavailable("lost"));
  EXPECT_EQ(ReadAll(scene.store(), "s", 0).status().code(), absl::StatusCode::kUnavailable);
  ExpectSame(Look(scene.store(), "s"), before);
}

}  // namespace
}  // namespace oscarkv
