// What a store says that it takes is what the process takes, while sessions of two models come and
// go. OSCARKV_TEST_FULL: ten thousand sessions.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend_factory.h"
#include "kernels/cpu/slab_memory.h"
#include "server/session/session_store.h"
#include "tests/kernels/support/trials.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

constexpr int kTokens = 512;
constexpr int kChunk = 128;
// What scratch of threads, the heap's free lists, and a huge page that is begun may come to.
constexpr std::int64_t kFixedBytes = 8 << 20;

std::int64_t ProcessBytes() {
  std::int64_t size = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class ResidentTest : public ::testing::Test {
 protected:
  ResidentTest() {
    BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 2});
    EXPECT_TRUE(made.status.ok()) << made.status.message;
    backend_ = std::move(made.backend);
    store_ = std::make_unique<SessionStore>(
        backend_.get(), StoreOptions{.memory_budget_bytes = std::int64_t{8} << 30,
                                     .settle_after = absl::InfiniteDuration(),
                                     .prepared_pages = 0});
  }

  // Sessions `name`0, `name`1... of kTokens tokens, which grow in turns.
  void Fill(const std::string& name, int sessions, int heads) {
    SessionConfig config = SmallSession("");
    LayerSpec& spec = config.layers[0];
    spec.query_heads = spec.kv_heads = heads;
    spec.key_dim = spec.value_dim = 128;
    spec.codec.window = 128;
    std::vector<std::uint64_t> generations;
    for (int i = 0; i < sessions; ++i) {
      config.id = absl::StrCat(name, i);
      const absl::StatusOr<SessionInfo> made = store_->Create(config);
      ASSERT_TRUE(made.ok()) << made.status();
      generations.push_back(made->generation);
    }
    const Source source{.spec = &spec, .seed = 1};
    for (int begin = 0; begin < kTokens; begin += kChunk) {
      Request request = AppendRequest("", 0, source, begin, kChunk, false);
      for (int i = 0; i < sessions; ++i) {
        request.session = absl::StrCat(name, i);
        request.item.generation = generations[static_cast<std::size_t>(i)];
        const absl::Status status = Append(store_.get(), 0, &request);
        ASSERT_TRUE(status.ok()) << status;
      }
    }
  }

  // Deletes sessions `name`i with i % of == 0, or those with another remainder.
  void Delete(const std::string& name, int sessions, int of, bool others) {
    for (int i = 0; i < sessions; ++i) {
      if ((i % of == 0) == others) continue;
      ASSERT_TRUE(store_->Delete(absl::StrCat(name, i), 0).ok());
    }
  }

  void ExpectReported(const char* when, std::int64_t before) {
    const StoreTotals totals = store_->Totals();
    const std::int64_t grown = ProcessBytes() - before;
    std::printf("%s: sessions take %ld MiB, blocks %ld, held %ld, the process %ld\n", when,
                static_cast<long>(totals.resident_bytes >> 20),
                static_cast<long>(totals.block_bytes >> 20),
                static_cast<long>(totals.held_bytes >> 20), static_cast<long>(grown >> 20));
    const std::int64_t reported = totals.held_bytes + (totals.resident_bytes - totals.block_bytes);
    EXPECT_LE(grown, reported + reported / 20 + kFixedBytes) << when;
    EXPECT_GE(grown, reported - reported / 20 - kFixedBytes) << when;
    // What is held beyond the budget's count is a quarter, and what blocks share pages with.
    EXPECT_LE(totals.held_bytes, totals.block_bytes * 14 / 10 + (32 << 20)) << when;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(ResidentTest, WhatIsReportedIsWhatTheProcessTakes) {
  if (!cpu::SlabsAreShared()) GTEST_SKIP() << "the sanitizer keeps freed memory";
  if (testing::kWatchingThreads) GTEST_SKIP() << "the sanitizer keeps notes on all memory";
  const int sessions = std::getenv("OSCARKV_TEST_FULL") != nullptr ? 10'000 : 300;
  Fill("first", 4, 4);  // what threads keep for themselves
  Delete("first", 4, 1, false);
  EXPECT_EQ(store_->Totals().resident_bytes, 0);
  EXPECT_EQ(store_->Totals().held_bytes, 0);
  const std::int64_t before = ProcessBytes();

  Fill("a", sessions, 4);
  ExpectReported("filled", before);
  const StoreTotals full = store_->Totals();
  const std::int64_t grown = ProcessBytes() - before;
  EXPECT_LE(grown, full.resident_bytes + full.resident_bytes / 20);
  EXPECT_GE(grown, full.resident_bytes - full.resident_bytes / 20);

  Delete("a", sessions, 4, true);
  ExpectReported("a quarter left", before);
  Fill("b", sessions, 3);
  ExpectReported("another model", before);
  Delete("b", sessions, 8, true);
  ExpectReported("an eighth of that left", before);
  Fill("c", sessions / 2, 4);
  ExpectReported("the first model again", before);

  Delete("a", sessions, 4, false);
  Delete("b", sessions, 8, false);
  Delete("c", sessions / 2, 1, false);
  EXPECT_EQ(store_->Totals().resident_bytes, 0);
  EXPECT_EQ(store_->Totals().held_bytes, 0);
  // The heap and the backend's list of blocks keep what they have grown to.
  EXPECT_LE(ProcessBytes() - before, kFixedBytes + grown / 50);
}

}  // namespace
}  // namespace oscarkv
