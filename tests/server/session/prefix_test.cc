// Sessions that begin with a prefix that another one holds, by keys that workers give.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/session/session_store.h"
#include "tests/server/support/error_details.h"
#include "tests/server/support/store_on_cpu.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

class PrefixTest : public StoreOnCpu {
 protected:
  static SessionConfig Config(const std::string& id, std::vector<PrefixKey> keys) {
    SessionConfig config = SessionOfAllKinds(id);
    config.tenant = "tenant";
    config.model = "model";
    config.prefix_keys = std::move(keys);
    return config;
  }
  std::int64_t Create(SessionConfig config) {
    const absl::StatusOr<SessionInfo> info = store_->Create(std::move(config));
    EXPECT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->committed_length, info->reused_length);
    return info->reused_length;
  }
};

TEST_F(PrefixTest, TheLongestThatIsThereIsReused) {
  EXPECT_EQ(Create(Config("a", {{128, "a key 128"}, {256, "a key 256"}, {512, "a key 512"}})), 0);
  Fill("a", 0, 400);
  const std::vector<PrefixKey> keys = {{128, "a key 128"}, {256, "a key 256"}, {512, "a key 512"}};
  EXPECT_EQ(Create(Config("b", keys)), 256);
  EXPECT_EQ(Create(Config("c", {{128, "a key 128"}, {256, "another key"}})), 128);
  EXPECT_EQ(Create(Config("d", {{256, "another key, none has it"}})), 0);
  EXPECT_EQ(Create(Config("e", {})), 0);
  Fill("a", 400, 512);
  EXPECT_EQ(Create(Config("f", keys)), 512);
  // What goes on from there is as if all had been appended to it, and the rest been truncated.
  const std::vector<float> answers = Step("a", 512, 40);
  EXPECT_EQ(Step("f", 512, 40), answers);
  Fill("b", 256, 512);
  Fill("e", 0, 400);
  ASSERT_TRUE(store_->Truncate("e", "", Info("e").generation, 256).ok());
  Fill("e", 256, 512);
  EXPECT_EQ(Step("b", 512, 40), Step("e", 512, 40));
}

TEST_F(PrefixTest, ARepeatedCreateReusesNothingAnew) {
  Create(Config("a", {{100, "a key of 100"}}));
  Fill("a", 0, 100);
  EXPECT_EQ(Create(Config("b", {{100, "a key of 100"}})), 100);
  Step("b", 100, 5);
  const absl::StatusOr<SessionInfo> again = store_->Create(Config("b", {{100, "a key of 100"}}));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->reused_length, 100);
  EXPECT_EQ(again->committed_length, 105);
}

// What is not the very same is never shared.
TEST_F(PrefixTest, OthersAreNotReused) {
  Create(Config("a", {{100, "a key of 100"}}));
  Fill("a", 0, 100);
  std::vector<SessionConfig> others(8, Config("", {{100, "a key of 100"}}));
  others[0].tenant = "another tenant";
  others[1].model = "another model";
  others[2].model_revision = "another revision";
  others[3].rope_digest = "another digest";
  others[4].position_base = 1;
  others[5].layers[0].codec.window = 33;
  others[6].layers[2].sliding_window = 1000;
  others[7].value_folded[1] = true;
  for (std::size_t i = 0; i < others.size(); ++i) {
    others[i].id = "other " + std::to_string(i);
    EXPECT_EQ(Create(others[i]), 0) << i;
  }
}

// Keys are of tokens that were there: those that came in the place of dropped ones have none.
TEST_F(PrefixTest, ATruncateEndsKeysOfWhatItDrops) {
  Create(Config("a", {{100, "a key of 100"}, {200, "a key of 200"}}));
  Fill("a", 0, 300);
  ASSERT_TRUE(store_->Truncate("a", "", Info("a").generation, 150).ok());
  Fill("a", 150, 300);
  EXPECT_EQ(Create(Config("b", {{100, "a key of 100"}, {200, "a key of 200"}})), 100);
}

TEST_F(PrefixTest, DeletedSessionsAreNotReused) {
  Create(Config("a", {{100, "a key of 100"}}));
  Fill("a", 0, 100);
  EXPECT_EQ(Create(Config("b", {{100, "a key of 100"}})), 100);
  ASSERT_TRUE(store_->Delete("a", 0).ok());
  EXPECT_EQ(Create(Config("c", {{100, "a key of 100"}})), 100);  // b's
  ASSERT_TRUE(store_->Delete("b", 0).ok());
  ASSERT_TRUE(store_->Delete("c", 0).ok());
  EXPECT_EQ(Create(Config("d", {{100, "a key of 100"}})), 0);
  ForkItem fork;
  fork.source = "d";
  fork.generation = Info("d").generation;
  fork.session = "d";
  fork.request_id = "in its own place";
  fork.replace = true;
  store_->Fork({&fork, 1});
  ASSERT_TRUE(fork.status.ok());
  Fill("d", 0, 100);
  EXPECT_EQ(Create(Config("e", {{100, "a key of 100"}})), 0);  // a fork has no keys
}

TEST_F(PrefixTest, ASessionBeginsWithTokensOfItsParent) {
  Create(Config("a", {}));
  Fill("a", 0, 400);
  SessionConfig config = Config("b", {{200, "a key of 200"}});
  config.group = "its own";
  const Retention retention{.priority = 3, .pinned = true};
  const ParentPrefix parent{.session = "a", .length = 256};
  const std::int64_t before = store_->Totals().resident_bytes;
  absl::StatusOr<SessionInfo> made = store_->Create(config, retention, parent);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->reused_length, 256);
  EXPECT_EQ(made->committed_length, 256);
  EXPECT_EQ(made->retention, retention);
  EXPECT_LT(store_->Totals().resident_bytes - before, made->resident_bytes / 4);  // it is shared
  // As if all had been appended to it, and the rest been truncated.
  Create(Config("twin", {}));
  Fill("twin", 0, 400);
  ASSERT_TRUE(store_->Truncate("twin", "", Info("twin").generation, 256).ok());
  EXPECT_EQ(Step("b", 256, 40), Step("twin", 256, 40));
  // A repeat begins nothing anew, and others may begin with it by its keys.
  made = store_->Create(config, retention, parent);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->committed_length, 296);
  EXPECT_EQ(Create(Config("c", {{200, "a key of 200"}})), 200);
  // By default with all that are there, and whatever its own keys would find.
  made = store_->Create(Config("d", {{200, "a key of 200"}}), {},
                        ParentPrefix{.session = "a", .generation = Info("a").generation});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->reused_length, 400);
  EXPECT_EQ(Step("d", 400, 40), Step("a", 400, 40));
}

TEST_F(PrefixTest, AParentThatWillNotDoIsToldAndNothingIsMade) {
  SessionConfig sliding = Config("a", {});
  sliding.rollback_tokens = 50;
  Create(sliding);
  Fill("a", 0, 900);
  Fill("a", 900, 1500);
  ASSERT_GT(Info("a").min_truncate_length, 1);
  const std::int64_t before = store_->Totals().resident_bytes;
  const auto refusal = [&](const SessionConfig& config, const ParentPrefix& parent) {
    const absl::Status status = store_->Create(config, {}, parent).status();
    EXPECT_FALSE(store_->Get(config.id).ok());
    EXPECT_EQ(store_->Totals().resident_bytes, before);
    return absl::StrCat(testing::ReasonOf(status), " ", testing::DetailOf(status, "field"));
  };
  const SessionConfig config = Config("b", {});
  const std::uint64_t generation = Info("a").generation;
  EXPECT_EQ(refusal(config, {.session = "nobody"}), "SESSION_NOT_FOUND session");
  EXPECT_EQ(refusal(config, {.session = "b"}), "SESSION_NOT_FOUND session");
  EXPECT_EQ(refusal(config, {.session = "a", .generation = generation + 1}),
            "GENERATION_MISMATCH ");
  EXPECT_EQ(refusal(config, {.session = "a", .length = 1501}), "INVALID_FIELD parent.length");
  EXPECT_EQ(refusal(config, {.session = "a", .length = 1}), "TOKENS_FREED parent.length");
  std::vector<SessionConfig> others(7, config);
  others[0].model = "another model";
  others[1].model_revision = "another revision";
  others[2].rope_digest = "another digest";
  others[3].position_base = 1;
  others[4].layers[0].codec.window = 33;
  others[5].layers[2].sliding_window = 1000;
  others[6].value_folded[1] = true;
  for (const SessionConfig& other : others) {
    EXPECT_EQ(refusal(other, {.session = "a"}), "INVALID_FIELD parent.session");
  }
  SessionConfig foreign = config;
  foreign.tenant = "another tenant";
  EXPECT_EQ(refusal(foreign, {.session = "a"}), "SESSION_NOT_FOUND session");
}

// A sliding window may have freed what a fork of so few tokens would need.
TEST_F(PrefixTest, FreedTokensAreNotReused) {
  const auto config = [](const std::string& id) {
    SessionConfig sliding = Config(id, {{100, "a key of 100"}, {900, "a key of 900"}});
    sliding.rollback_tokens = 50;
    return sliding;
  };
  Create(config("a"));
  Fill("a", 0, 900);
  EXPECT_EQ(Create(config("b")), 900);
  Fill("a", 900, 1500);
  ASSERT_GT(Info("a").min_truncate_length, 900);
  ASSERT_TRUE(store_->Delete("b", 0).ok());
  EXPECT_EQ(Create(config("c")), 0);
  EXPECT_EQ(Info("c").resident_bytes, 0);
}

}  // namespace
}  // namespace oscarkv
