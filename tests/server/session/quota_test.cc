// Quotas of tenants: their own sessions make room for them, and nobody else's do.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/support/error_details.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class QuotaTest : public StoreOnDisk {
 protected:
  QuotaTest() {
    Start(std::int64_t{1} << 30);
    Create("measured", "");
    Fill("measured", 0, 400);
    one_ = Info("measured").resident_bytes;
    EXPECT_EQ(store_->Delete("measured", 0), absl::OkStatus());
    options_.quotas.by_tenant["red"] = 3 * one_;
  }

  // A store of `options_` without a directory.
  void StartInMemory() {
    store_.reset();
    options_.data_dir = nullptr;
    store_ = std::make_unique<SessionStore>(backend_.get(), options_);
  }
  void Create(const std::string& id, const std::string& tenant) {
    SessionConfig config = SmallSession(id);
    config.tenant = tenant;
    ASSERT_TRUE(store_->Create(std::move(config)).ok());
  }
  absl::Status AppendTo(const std::string& id, std::int64_t begin, int count) {
    const SessionInfo info = Info(id);
    const Source source{.spec = &info.config->layers[0], .seed = 20};
    Request request = AppendRequest(id, info.generation, source, begin, count, true);
    return Append(store_.get(), 0, &request);
  }

  std::int64_t one_ = 0;  // that a session of 400 tokens takes
};

TEST_F(QuotaTest, ATenantsOwnSessionsMakeRoom) {
  Start();
  for (int i = 0; i < 6; ++i) {
    Create(absl::StrCat("red", i), "red");
    Create(absl::StrCat("blue", i), "blue");
    Fill(absl::StrCat("red", i), 0, 400);
    Fill(absl::StrCat("blue", i), 0, 400);
  }
  std::int64_t red = 0;
  for (int i = 0; i < 6; ++i) {
    EXPECT_FALSE(Info(absl::StrCat("blue", i)).evicted) << i;
    red += Info(absl::StrCat("red", i)).resident_bytes;
  }
  EXPECT_LE(red, 4 * one_);
  EXPECT_TRUE(Info("red0").evicted);
  EXPECT_FALSE(Info("red5").evicted);
}

TEST_F(QuotaTest, WhereNothingMakesRoomTokensAreRefusedAndTheRestGoesOn) {
  StartInMemory();
  Create("a", "red");
  Create("other", "");
  std::int64_t length = 0;
  absl::Status s;
  while (length < 8000 && s.ok()) {
    s = AppendTo("a", length, 50);
    if (s.ok()) length += 50;
  }
  ASSERT_TRUE(absl::IsResourceExhausted(s)) << s;
  EXPECT_EQ(testing::ReasonOf(s), "QUOTA_EXCEEDED");
  EXPECT_EQ(testing::DetailOf(s, "tenant"), "red");
  EXPECT_EQ(testing::DetailOf(s, "quota"), absl::StrCat(3 * one_));
  EXPECT_EQ(testing::DetailOf(s, "used"), absl::StrCat(Info("a").resident_bytes));
  EXPECT_EQ(Info("a").committed_length, length);
  EXPECT_EQ(AppendTo("other", 0, 400), absl::OkStatus());
  EXPECT_TRUE(ReadAll(*store_, "a", 0).ok());
  ASSERT_TRUE(store_->Truncate("a", "", Info("a").generation, 100).ok());
  EXPECT_EQ(AppendTo("a", 100, 50), absl::OkStatus());
}

TEST_F(QuotaTest, AStepThatBeganIsNotRefusedInItsMiddle) {
  StartInMemory();
  SessionConfig config = SessionOfAllKinds("a");
  config.tenant = "red";
  ASSERT_TRUE(store_->Create(config).ok());
  const auto append = [&](std::size_t layer, std::int64_t begin) {
    const LayerSpec& spec = config.layers[layer];
    const Source source{.spec = &spec, .seed = 20 + layer};
    Request request = AppendRequest("a", Info("a").generation, source, begin, 20, false);
    return Append(store_.get(), spec.layer, &request);
  };
  std::int64_t length = 0;
  absl::Status s;
  for (; length < 8000 && s.ok(); length += 20) {
    s = append(0, length);
    for (std::size_t layer = 1; s.ok() && layer < config.layers.size(); ++layer) {
      ASSERT_EQ(append(layer, length), absl::OkStatus()) << layer << " at " << length;
    }
  }
  EXPECT_EQ(testing::ReasonOf(s), "QUOTA_EXCEEDED");
  EXPECT_GT(length, 100);
}

TEST_F(QuotaTest, AloneAtItsQuotaASessionIsNotEvictedForItself) {
  Start();
  Create("a", "red");
  std::int64_t length = 0;
  while (length < 8000 && AppendTo("a", length, 50).ok()) length += 50;
  ASSERT_LT(length, 8000);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(testing::ReasonOf(AppendTo("a", length, 50)), "QUOTA_EXCEEDED");
  }
  EXPECT_EQ(store_->Totals().evictions, 0);
}

TEST_F(QuotaTest, WhatIsGoneCountsNoMore) {
  options_.quotas.otherwise = 3 * one_;
  StartInMemory();
  for (int i = 0; i < 20; ++i) {
    const std::string id = absl::StrCat("s", i);
    Create(id, "green");
    Fill(id, 0, 400);
    ForkItem fork;
    fork.source = id;
    fork.generation = Info(id).generation;
    fork.session = "fork";
    fork.request_id = id;
    fork.replace = true;
    store_->Fork({&fork, 1});
    ASSERT_TRUE(fork.status.ok());
    ASSERT_EQ(store_->Delete(id, 0), absl::OkStatus());
  }
}

}  // namespace
}  // namespace oscarkv
