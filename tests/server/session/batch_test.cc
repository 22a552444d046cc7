#include "server/session/batch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "server/base/error.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class BatchTest : public ::testing::Test {
 protected:
  BatchContext Context() {
    return {.sessions = &sessions_, .backend = &backend_, .pool = &pool_, .budget = &budget_};
  }
  absl::Status Append(Request* request) {
    request->item.session = request->session;
    BatchItem* const item = &request->item;
    Batch(Context(), std::span(&item, 1), BatchKind::kAppend).Run();
    return request->item.status;
  }

  FakeBackend backend_;
  MemoryBudget budget_{1 << 28};
  BlockPool pool_{&backend_, &budget_};
  std::atomic<std::int64_t> logical_bytes_{0};
  SessionTable sessions_;
};

// A request that has found a session waits while someone is alone in it, and then sees what the
// other has done.
TEST_F(BatchTest, AnItemThatWaitedForADeleteFindsNothing) {
  const auto session = std::make_shared<Session>(SmallSession("s"), 1, &budget_, &logical_bytes_);
  ASSERT_EQ(sessions_.Insert(session), nullptr);
  const Source source{.spec = &session->config()->layers[0], .seed = 1};
  Request request = AppendRequest("s", 1, source, 0, 5, false);
  std::thread waits;
  {
    const AloneInGate alone(&session->gate());
    waits = std::thread([&] { (void)Append(&request); });
    while (session.use_count() < 3) std::this_thread::yield();  // here, the table's and the batch's
    session->Delete();
    sessions_.Erase(*session);
  }
  waits.join();
  ASSERT_EQ(request.item.status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(DetailsOf(request.item.status)->reason, "SESSION_NOT_FOUND");
  EXPECT_EQ(backend_.blocks(), 0);
}

TEST_F(BatchTest, AnItemThatWaitedForATruncateIsOfAnotherGeneration) {
  const auto session = std::make_shared<Session>(SmallSession("s"), 1, &budget_, &logical_bytes_);
  ASSERT_EQ(sessions_.Insert(session), nullptr);
  const Source source{.spec = &session->config()->layers[0], .seed = 1};
  Request request = AppendRequest("s", 1, source, 0, 5, false);
  std::thread waits;
  {
    const AloneInGate alone(&session->gate());
    waits = std::thread([&] { (void)Append(&request); });
    while (session.use_count() < 3) std::this_thread::yield();
    session->Truncate({.request_id = "", .generation = 1, .length = 0}, 2);
  }
  waits.join();
  ASSERT_EQ(request.item.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DetailsOf(request.item.status)->reason, "GENERATION_MISMATCH");
  EXPECT_EQ(request.item.generation_after, 2U);
}

}  // namespace
}  // namespace oscarkv
