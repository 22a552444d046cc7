// What requests are charged, and what they need alone.
#include "server/rpc/prepared_batch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/backend_factory.h"
#include "server/rpc/handlers.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::AppendRequestOf;
using testing::AttendRequestOf;
using testing::TestModel;

constexpr std::int64_t kLimit = 4 << 20;

class PreparedBatchTest : public ::testing::Test {
 protected:
  v1::Session Create(const std::string& id, std::int64_t sliding_window = 0) {
    v1::CreateSessionRequest request = testing::CreateRequest(id, model_);
    request.set_tenant("tenant-of-" + id);
    for (v1::LayerSpec& layer : *request.mutable_layers()) layer.set_sliding_window(sliding_window);
    v1::CreateSessionResponse response;
    EXPECT_TRUE(handlers_.CreateSession(request, response).ok());
    return response.session();
  }

  void Append(const v1::Session& session, std::int64_t begin, int tokens) {
    v1::AppendResponse response;
    EXPECT_TRUE(
        handlers_.Append(AppendRequestOf(model_, session, 0, begin, tokens), response).ok());
    EXPECT_EQ(response.results(0).status().code(), 0);
  }

  std::int64_t CostOf(const v1::AppendRequest& request) {
    v1::AppendResponse response;
    return PreparedBatch::Prepare(store_, kLimit, request, response)->Facts().cost;
  }
  std::int64_t CostOf(const v1::AttendRequest& request) {
    v1::AttendResponse response;
    return PreparedBatch::Prepare(store_, kLimit, request, response)->Facts().cost;
  }
  std::int64_t CostOfStep(const v1::Session& session, std::int64_t begin) {
    return CostOf(AttendRequestOf(model_, session, 0, begin, 1, 1));
  }

  const TestModel model_{};
  const std::unique_ptr<Backend> backend_ = MakeBackend({}).backend;
  // Nothing is sealed ahead: what is due stays due.
  SessionStore store_{backend_.get(), {.memory_budget_bytes = 64 << 20, .prepared_pages = 0}};
  Handlers handlers_{&store_, {.max_message_bytes = kLimit}};
};

TEST_F(PreparedBatchTest, IsChargedToTheTenantOfItsFirstItem) {
  v1::AttendRequest request;
  for (const char* id : {"a", "b"}) {
    testing::AddAttend(model_, Create(id), 0, 1, 1, request);
  }
  v1::AttendResponse response;
  const absl::StatusOr<PreparedBatch> batch =
      PreparedBatch::Prepare(store_, kLimit, request, response);
  const WorkFacts facts = batch->Facts();
  EXPECT_EQ(facts.kind, WorkKind::kAttend);
  EXPECT_EQ(facts.tenant, "tenant-of-a");
  EXPECT_EQ(facts.items, 2);
  ASSERT_EQ(facts.layers.size(), 2U);
  EXPECT_NE(facts.layers[0].session, facts.layers[1].session);
  EXPECT_NE(facts.layers[0].layer, facts.layers[1].layer);
}

TEST_F(PreparedBatchTest, CostGrowsWithTheContextAndWithQueries) {
  const v1::Session session = Create("a");
  const std::int64_t empty = CostOfStep(session, 0);
  Append(session, 0, 200);
  const std::int64_t step = CostOfStep(session, 200);
  // Keys and values of 2 heads of 64 in 16 bits are half a KiB.
  EXPECT_EQ(step - empty, 100);
  EXPECT_GT(CostOf(AttendRequestOf(model_, session, 0, 200, 100, 100)), 100 * (step - empty));
  EXPECT_LT(CostOf(AppendRequestOf(model_, session, 0, 200, 1)), step);
}

// A wrong one would be refused later, but charged before.
TEST_F(PreparedBatchTest, TheLengthThatARequestClaimsCostsNothing) {
  const v1::Session session = Create("a");
  Append(session, 0, 200);
  EXPECT_EQ(CostOfStep(session, std::int64_t{1} << 48), CostOfStep(session, 200));
  EXPECT_EQ(CostOfStep(session, 0), CostOfStep(session, 200));
}

TEST_F(PreparedBatchTest, ASlidingWindowBoundsTheCost) {
  const v1::Session all = Create("all");
  const v1::Session sliding = Create("sliding", 64);
  Append(all, 0, 64);
  Append(sliding, 0, 640);
  const auto query = [&](const v1::Session& session, std::int64_t length) {
    return CostOf(AttendRequestOf(model_, session, 0, length, 0, 1));
  };
  EXPECT_EQ(query(sliding, 640), query(all, 64));
}

// The step that seals a long prompt takes long, however little it appends.
TEST_F(PreparedBatchTest, PagesThatAreDueCostWhatSealingThemDoes) {
  const v1::Session session = Create("a");
  constexpr int kLength = 600;  // sinks, three pages, the window, and some more
  Append(session, 0, kLength);
  const std::int64_t seals = CostOfStep(session, kLength);
  Append(session, kLength, 1);
  const std::int64_t later = CostOfStep(session, kLength + 1);
  EXPECT_GT(seals - later, 3 * 128 * 10);
  EXPECT_LT(CostOf(AttendRequestOf(model_, session, 0, kLength + 1, 0, 1)), later);
}

}  // namespace
}  // namespace oscarkv
