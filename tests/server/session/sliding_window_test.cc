// Layers with a sliding window free what no query can see, and nothing shows it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "server/session/session_store.h"
#include "tests/server/support/error_details.h"
#include "tests/server/support/store_on_cpu.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

using testing::DetailOf;
using testing::ReasonOf;

constexpr std::int64_t kRollback = 100;

class SlidingWindowTest : public StoreOnCpu {
 protected:
  SlidingWindowTest() {
    Create("s", kRollback);
    Create("twin", kPositionLimit);  // frees nothing
  }

  // Windows within the 16-bit window, somewhat beyond it, and of some pages.
  void Create(const std::string& id, std::int64_t rollback) {
    SessionConfig config = SmallSession(id, 4);
    config.layers[0].sliding_window = 20;
    config.layers[1].sliding_window = 70;
    config.layers[1].codec.sinks = 0;
    config.layers[2].sliding_window = 500;
    config.layers[3].sliding_window = 0;
    config.rollback_tokens = rollback;
    ASSERT_TRUE(store_->Create(std::move(config)).ok());
  }

  SessionInfo Info(const std::string& id = "s") const { return StoreOnCpu::Info(id); }

  Request MakeRequest(const std::string& id, int layer, std::int64_t begin, int count,
                      int queries) {
    const SessionInfo info = Info(id);
    const Source source{.spec = &info.config->layers[layer],
                        .seed = 20 + static_cast<std::uint64_t>(layer)};
    return AttendRequest(id, info.generation, source, begin, count, queries);
  }

  // Attends with all tokens that it appends.
  std::vector<float> Step(const std::string& id, std::int64_t begin, int count) {
    return StoreOnCpu::Step(id, begin, count, count);
  }
  void Fill(std::int64_t begin, std::int64_t end, int most = 40) {
    for (std::int64_t at = begin; at < end; at += most) {
      const int count = static_cast<int>(std::min<std::int64_t>(most, end - at));
      ASSERT_EQ(Step("s", at, count), Step("twin", at, count)) << at;
    }
  }
  absl::Status Truncate(const std::string& id, std::int64_t length) {
    return store_->Truncate(id, "", Info(id).generation, length).status();
  }
};

TEST_F(SlidingWindowTest, AnswersAreThoseOfASessionThatKeepsAll) {
  std::mt19937 random(1);
  for (std::int64_t at = 0; at < 2500;) {
    const int count = std::uniform_int_distribution<int>(1, 160)(random);
    ASSERT_EQ(Step("s", at, count), Step("twin", at, count)) << at;
    at += count;
    if (random() % 8 != 0) continue;
    const std::int64_t back = std::uniform_int_distribution<std::int64_t>(0, kRollback)(random);
    at = std::max<std::int64_t>(0, at - back);
    ASSERT_TRUE(Truncate("s", at).ok());
    ASSERT_TRUE(Truncate("twin", at).ok());
  }
}

TEST_F(SlidingWindowTest, TakeNoMoreHoweverLongTheyGet) {
  Fill(0, 1200);
  const SessionInfo before = Info();
  Fill(1200, 4000);
  const SessionInfo after = Info();
  const std::int64_t token_bytes = before.config->layers[0].logical_bytes_per_token();
  for (int layer = 0; layer < 3; ++layer) {
    const LayerStats& stats = after.layers[layer];
    const std::int64_t window = after.config->layers[layer].sliding_window;
    // At most a page, or a block, more than what may be seen.
    EXPECT_GE(stats.kept_from, stats.length - kRollback - window - kPageTokens) << layer;
    EXPECT_LE(stats.sealed_tokens, kRollback + window + kPageTokens) << layer;
    EXPECT_LE(stats.window_bytes, before.layers[layer].window_bytes + kPageTokens * token_bytes);
    const std::int64_t sinks = after.config->layers[layer].codec.sinks;
    EXPECT_EQ(stats.logical_bytes, (stats.length - stats.kept_from + sinks) * token_bytes);
  }
  EXPECT_EQ(after.layers[3].kept_from, 0);
  EXPECT_EQ(Info("twin").layers[0].kept_from, 0);
}

TEST_F(SlidingWindowTest, TruncationsAreExactOrRefused) {
  Fill(0, 1500);
  const std::int64_t least = Info().min_truncate_length;
  EXPECT_GT(least, 1500 - kRollback - kPageTokens);
  EXPECT_LE(least, 1500 - kRollback);
  const absl::Status status = Truncate("s", least - 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "TOKENS_FREED");
  EXPECT_EQ(DetailOf(status, "field"), "length");
  EXPECT_EQ(Info().committed_length, 1500);

  ForkItem fork;
  fork.source = "s";
  fork.generation = Info().generation;
  fork.session = "fork";
  fork.request_id = "fork";
  fork.length = least - 1;
  store_->Fork({&fork, 1});
  EXPECT_EQ(ReasonOf(fork.status), "TOKENS_FREED");
  fork.length = least;
  store_->Fork({&fork, 1});
  EXPECT_TRUE(fork.status.ok()) << fork.status;

  ASSERT_TRUE(Truncate("s", least).ok());
  ASSERT_TRUE(Truncate("twin", least).ok());
  const std::vector<float> answers = Step("twin", least, 30);
  EXPECT_EQ(Step("s", least, 30), answers);
  EXPECT_EQ(Step("fork", least, 30), answers);
  ASSERT_TRUE(Truncate("s", 0).ok());
  ASSERT_TRUE(Truncate("twin", 0).ok());
  EXPECT_EQ(Info().min_truncate_length, 0);
  Fill(0, 300);
}

// A step may be longer than what may be rolled back: it can be repeated and dropped all the same.
TEST_F(SlidingWindowTest, TheLastAppendCanAlwaysBeRepeatedAndDropped) {
  Fill(0, 600);
  const std::vector<float> answers = Step("s", 600, 700);
  EXPECT_EQ(Step("s", 600, 700), answers);
  EXPECT_EQ(Step("twin", 600, 700), answers);
  ASSERT_TRUE(Truncate("s", 600).ok());
  EXPECT_EQ(Step("s", 600, 700), answers);
}

TEST_F(SlidingWindowTest, WhatNeedsFreedTokensIsRefused) {
  Fill(0, 1500);
  const SessionInfo info = Info();
  for (int layer = 0; layer < 3; ++layer) {
    const LayerStats& stats = info.layers[layer];
    const LayerSpec& spec = info.config->layers[layer];
    Request request = MakeRequest("s", layer, 1500, 0, 1);
    request.item.query_start = stats.kept_from + spec.sliding_window - 2;
    const absl::Status status = Attend(store_.get(), layer, &request);
    EXPECT_EQ(ReasonOf(status), "TOKENS_FREED");
    EXPECT_EQ(DetailOf(status, "field"), "query_start");
    request.item.query_start = stats.kept_from + spec.sliding_window - 1;
    EXPECT_TRUE(Attend(store_.get(), layer, &request).ok());

    std::vector<std::uint16_t> keys(10 * 2 * 64);
    std::vector<std::uint16_t> values(keys.size());
    const auto read = [&](std::int64_t begin, std::int64_t tokens) {
      return store_->Read(info.config, info.generation, layer, begin, tokens, keys.data(),
                          values.data());
    };
    EXPECT_EQ(ReasonOf(read(stats.kept_from - 1, 5)), "TOKENS_FREED");
    EXPECT_TRUE(read(stats.kept_from, 5).ok());
    EXPECT_TRUE(read(0, spec.codec.sinks).ok());
    EXPECT_EQ(ReasonOf(read(0, spec.codec.sinks + 1)), "TOKENS_FREED");
  }
}

}  // namespace
}  // namespace oscarkv
