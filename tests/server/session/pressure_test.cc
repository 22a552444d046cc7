// Budgets that are too small for what is asked of them: all goes well, and soon, as long as it is
// possible one thing after the other.
#include <chrono>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/session/session_export.h"
#include "server/session/session_import.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class PressureTest : public StoreOnDisk {
 protected:
  // What a store takes for sessions of so many tokens.
  std::int64_t BytesOf(const std::vector<int>& tokens) {
    MakeStore(std::int64_t{1} << 30);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::string id = absl::StrCat("s", i);
      EXPECT_TRUE(store_->Create(SmallSession(id)).ok());
      Fill(id, 0, tokens[i]);
    }
    return store_->Totals().resident_bytes;
  }
};

TEST_F(PressureTest, ASessionOfMoreThanHalfOfTheBudgetComesBack) {
  const std::int64_t budget = BytesOf({3000, 1700}) * 20 / 21;
  Start(budget);
  ASSERT_TRUE(store_->Create(SmallSession("big")).ok());
  Fill("big", 0, 3000);
  ASSERT_TRUE(store_->Evict("big", 0).ok());
  ASSERT_TRUE(store_->Create(SmallSession("other")).ok());
  Fill("other", 0, 1700);
  EXPECT_FALSE(Info("other").evicted);
  const auto restored = store_->Restore("big", 0);
  EXPECT_TRUE(restored.ok()) << restored.status();
}

TEST_F(PressureTest, ABatchOfMoreThanTheBudgetHoldsWaitsForNothing) {
  constexpr int kSessions = 16;
  const std::int64_t budget = BytesOf(std::vector<int>(kSessions, 400)) / 2;
  Start(budget);
  for (int i = 0; i < kSessions; ++i) {
    const std::string id = absl::StrCat("s", i);
    ASSERT_TRUE(store_->Create(SmallSession(id)).ok());
    Fill(id, 0, 400);
  }
  for (int round = 0; round < 4; ++round) {
    std::vector<Request> requests;
    const LayerSpec spec = SmallLayer(0);
    const Source source{.spec = &spec, .seed = 20};
    for (int i = 0; i < kSessions; ++i) {
      const std::string id = absl::StrCat("s", i);
      requests.push_back(AttendRequest(id, Info(id).generation, source, 400 + round * 10, 10, 2));
    }
    std::vector<BatchItem*> items;
    for (Request& request : requests) {
      request.item.session = request.session;
      request.item.outputs = request.outputs.data();
      request.item.log_sum_exps = request.log_sum_exps.data();
      items.push_back(&request.item);
    }
    const auto began = std::chrono::steady_clock::now();
    store_->Attend(items);
    const auto took = std::chrono::steady_clock::now() - began;
    for (const Request& request : requests) {
      EXPECT_EQ(request.item.status, absl::OkStatus()) << request.session;
    }
    EXPECT_LT(took, std::chrono::seconds(1));
  }
}

TEST_F(PressureTest, ACheckpointNeedsNoMemory) {
  // Many queries are sampled, of which a copy would take memory.
  const auto fill = [this](const std::string& id) {
    ASSERT_TRUE(store_->Create(SmallSession(id)).ok());
    Step(id, 0, 160, 160);
  };
  MakeStore(std::int64_t{1} << 30);
  ASSERT_NO_FATAL_FAILURE(fill("a"));
  options_.low_watermark = 1;
  options_.high_watermark = 1;
  Start(store_->Totals().resident_bytes);
  ASSERT_NO_FATAL_FAILURE(fill("a"));
  EXPECT_EQ(store_->Totals().resident_bytes, options_.memory_budget_bytes);
  EXPECT_EQ(store_->CheckpointAll(), absl::OkStatus());
  EXPECT_EQ(Info("a").durable_length, 160);
}

TEST_F(PressureTest, AnImportMakesRoom) {
  const std::int64_t budget = BytesOf({2000, 2000}) * 3 / 4;
  auto exported = store_->Export("s0", 0);
  ASSERT_TRUE(exported.ok()) << exported.status();
  std::vector<std::byte> file;
  while (!(*exported)->done()) {
    const auto piece = (*exported)->Next(1 << 16);
    ASSERT_TRUE(piece.ok()) << piece.status();
    file.insert(file.end(), piece->begin(), piece->end());
  }
  exported->reset();
  Start(budget);
  ASSERT_TRUE(store_->Create(SmallSession("other")).ok());
  Fill("other", 0, 2000);
  const auto import = store_->Import({.session = "",
                                      .request_id = "import",
                                      .tenant = {},
                                      .model = {},
                                      .model_revision = {},
                                      .rope_digest = {}});
  ASSERT_EQ(import->Push(file), absl::OkStatus());
  const auto info = import->Finish();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->committed_length, 2000);
  EXPECT_TRUE(Info("other").evicted);
}

TEST_F(PressureTest, WhereverHostMemoryEndsABatchThrowsOnlyIfNothingIsApplied) {
  const std::int64_t budget = BytesOf({400, 400}) * 3 / 4;
  const LayerSpec spec = SmallLayer(0);
  const Source source{.spec = &spec, .seed = 20};
  Start();
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(store_->Create(SmallSession(id)).ok());
    Fill(id, 0, 400);
    ASSERT_TRUE(store_->Evict(id, 0).ok());
  }
  std::filesystem::copy(folder_ + "/data", folder_ + "/begin",
                        std::filesystem::copy_options::recursive);
  bool struck = true;
  for (int n = 0; struck; n += 3) {
    std::filesystem::remove_all(folder_ + "/data");
    std::filesystem::copy(folder_ + "/begin", folder_ + "/data",
                          std::filesystem::copy_options::recursive);
    Start(budget);
    std::vector<Request> requests;
    for (const char* id : {"a", "b"}) {
      requests.push_back(AttendRequest(id, Info(id).generation, source, 400, 10, 2));
    }
    std::vector<BatchItem*> items;
    for (Request& request : requests) {
      request.item.session = request.session;
      request.item.outputs = request.outputs.data();
      request.item.log_sum_exps = request.log_sum_exps.data();
      items.push_back(&request.item);
    }
    bool thrown = false;
    {
      const testing::FailingNew failing(n);
      try {
        store_->Attend(items);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      struck = failing.struck();
    }
    for (const Request& request : requests) {
      const bool applied = !thrown && request.item.status.ok();
      ASSERT_EQ(Info(request.session).committed_length, applied ? 410 : 400)
          << request.session << ", allocation " << n << ": " << request.item.status;
    }
  }
}

}  // namespace
}  // namespace oscarkv
