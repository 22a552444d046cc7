#include "server/session/session_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/base/error.h"
#include "server/session/layer_state.h"
#include "tests/server/support/error_details.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/faulty_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

using testing::DetailOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::ReasonOf;

class SessionStoreTest : public ::testing::Test {
 protected:
  void Create(SessionConfig config) {
    const absl::StatusOr<SessionInfo> info = store_.Create(std::move(config));
    ASSERT_TRUE(info.ok()) << info.status();
  }
  SessionInfo Info(const std::string& id = "s") { return *store_.Get(id); }
  std::uint64_t Generation(const std::string& id = "s") { return Info(id).generation; }
  Source SourceOf(std::size_t layer = 0, const std::string& id = "s") {
    return {.spec = &Info(id).config->layers[layer], .seed = 7 + layer};
  }
  absl::Status AppendTokens(std::int64_t begin, std::int32_t count, int layer = 0) {
    Request request = AppendRequest("s", Generation(), SourceOf(layer), begin, count, true);
    return Append(&store_, layer, &request);
  }
  void ExpectTokens(std::int64_t length, std::size_t layer = 0) {
    const absl::StatusOr<Tokens> tokens = ReadAll(store_, "s", layer);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(tokens->keys, SourceOf(layer).Keys(0, length));
    EXPECT_EQ(tokens->values, SourceOf(layer).Values(0, length));
  }

  FakeBackend fake_;
  FaultyBackend backend_{&fake_};
  SessionStore store_{&backend_,
                      {.memory_budget_bytes = 1 << 28,
                       .settle_after = absl::InfiniteDuration(),
                       .first_generation = 1000}};
};

TEST_F(SessionStoreTest, CreateIsSafeToRepeat) {
  const absl::StatusOr<SessionInfo> first = store_.Create(SmallSession("s", 2));
  ASSERT_TRUE(first.ok());
  EXPECT_GE(first->generation, 1000U);
  EXPECT_EQ(first->layers.size(), 2U);
  ASSERT_TRUE(AppendTokens(0, 5).ok());

  const absl::StatusOr<SessionInfo> again = store_.Create(SmallSession("s", 2));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->generation, first->generation);
  EXPECT_EQ(again->layers[0].length, 5);

  SessionConfig other_request = SmallSession("s", 2);
  other_request.request_id = "other";
  SessionConfig other_content = SmallSession("s", 2);
  other_content.content_digest = "other";
  for (SessionConfig& config : std::vector<SessionConfig>{other_request, other_content}) {
    const absl::Status status = store_.Create(std::move(config)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(ReasonOf(status), "SESSION_EXISTS");
  }
}

TEST_F(SessionStoreTest, ListsInTheOrderOfIds) {
  for (const char* id : {"b", "d", "a", "c"}) {
    SessionConfig config = SmallSession(id);
    config.tenant = *id < 'c' ? "low" : "high";
    Create(std::move(config));
  }
  const auto ids = [&](std::string_view after, int limit, std::optional<std::string_view> tenant) {
    std::vector<std::string> found;
    for (const SessionInfo& info : store_.List(after, limit, tenant)) {
      found.push_back(info.config->id);
    }
    return found;
  };
  EXPECT_THAT(ids("", 10, std::nullopt), ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(ids("a", 2, std::nullopt), ElementsAre("b", "c"));
  EXPECT_THAT(ids("aa", 1, std::nullopt), ElementsAre("b"));
  EXPECT_THAT(ids("", 10, "high"), ElementsAre("c", "d"));
  EXPECT_THAT(ids("", 10, "none"), IsEmpty());
  EXPECT_THAT(ids("d", 10, std::nullopt), IsEmpty());
  EXPECT_THAT(ids("", 0, std::nullopt), IsEmpty());
}

TEST_F(SessionStoreTest, DeleteFreesEverything) {
  Create(SmallSession("s"));
  ASSERT_TRUE(AppendTokens(0, 500).ok());
  ASSERT_TRUE(AppendTokens(500, 1).ok());
  ASSERT_TRUE(AppendTokens(501, 1).ok());
  EXPECT_EQ(ReasonOf(store_.Delete("s", Generation() + 1)), "GENERATION_MISMATCH");
  EXPECT_TRUE(store_.Delete("s", Generation()).ok());
  EXPECT_EQ(fake_.blocks(), 0);
  EXPECT_EQ(store_.Totals().resident_bytes, 0);
  EXPECT_EQ(store_.Totals().sessions, 0);
  EXPECT_EQ(ReasonOf(store_.Delete("s", 0)), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(store_.Get("s").status()), "SESSION_NOT_FOUND");
  Create(SmallSession("s"));
  EXPECT_TRUE(store_.Delete("s", 0).ok());
}

TEST_F(SessionStoreTest, GenerationsAreNeverUsedTwice) {
  Create(SmallSession("s"));
  const std::uint64_t created = Generation();
  ASSERT_TRUE(store_.Truncate("s", "", created, 0).ok());
  const std::uint64_t truncated = Generation();
  ASSERT_TRUE(store_.Delete("s", 0).ok());
  Create(SmallSession("s"));
  EXPECT_LT(created, truncated);
  EXPECT_LT(truncated, Generation());
}

TEST_F(SessionStoreTest, RefusesWrongItemsAndSaysWhy) {
  Create(SmallSession("s"));
  ASSERT_TRUE(AppendTokens(0, 10).ok());
  const auto refused = [&](auto&& spoil, bool attend = false) {
    Request request = attend ? AttendRequest("s", Generation(), SourceOf(), 10, 4, 4)
                             : AppendRequest("s", Generation(), SourceOf(), 10, 40, true);
    spoil(&request);
    const absl::Status status =
        attend ? Attend(&store_, 0, &request) : Append(&store_, 0, &request);
    EXPECT_EQ(Info().layers[0].length, 10);
    EXPECT_EQ(request.item.length_after, request.session == "s" ? 10 : 0);
    return status;
  };
  const auto field = [&](auto&& spoil, bool attend = false) {
    const absl::Status status = refused(spoil, attend);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(DetailOf(status, "value"), "");
    EXPECT_NE(DetailOf(status, "expected"), "");
    return DetailOf(status, "field");
  };
  EXPECT_EQ(field([](Request* r) { r->item.keys.heads = 3; }), "key.shape");
  EXPECT_EQ(field([](Request* r) { r->item.keys.dtype = DType::kFP16; }), "key.dtype");
  EXPECT_EQ(field([](Request* r) { r->item.values.dim = 128; }), "value.shape");
  EXPECT_EQ(field([](Request* r) { r->item.values.dtype = DType::kFP32; }), "value.dtype");
  EXPECT_EQ(field([](Request* r) { r->item.queries.heads = 2; }), "query.shape");
  EXPECT_EQ(field([](Request* r) { r->item.num_tokens = 0; }), "num_tokens");
  EXPECT_EQ(field([](Request* r) { r->item.num_queries = 0; }, true), "num_query_tokens");
  EXPECT_EQ(field([](Request* r) { r->item.expected_length.reset(); }), "expected_length");
  EXPECT_EQ(field([](Request* r) { r->item.query_start = 9; }), "query_start");
  EXPECT_EQ(field([](Request* r) { r->item.query_start = 35; }), "query_start");
  EXPECT_EQ(field([](Request* r) { r->item.query_stride = 100; }), "query_start");
  EXPECT_EQ(field([](Request* r) { r->item.query_stride = -1; }), "query_stride");
  EXPECT_EQ(field([](Request* r) { r->item.query_start = INT64_MIN; }, true), "query_start");
  EXPECT_EQ(field([](Request* r) { r->item.query_start = INT64_MAX; }, true), "query_start");
  EXPECT_EQ(ReasonOf(refused([](Request* r) { r->session = "t"; })), "SESSION_NOT_FOUND");

  const absl::Status length = refused([](Request* r) { r->item.expected_length = 9; });
  EXPECT_EQ(length.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(length), "LENGTH_MISMATCH");
  EXPECT_EQ(DetailOf(length, "length"), "10");
  EXPECT_EQ(DetailOf(length, "generation"), std::to_string(Generation()));
  const absl::Status generation = refused([](Request* r) { r->item.generation = 3; });
  EXPECT_EQ(generation.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(generation), "GENERATION_MISMATCH");
  EXPECT_EQ(DetailOf(generation, "generation"), std::to_string(Generation()));

  Request request = AppendRequest("s", Generation(), SourceOf(), 10, 1, false);
  EXPECT_EQ(ReasonOf(Append(&store_, 5, &request)), "LAYER_NOT_FOUND");
  EXPECT_EQ(DetailOf(request.item.status, "field"), "layer");
  EXPECT_EQ(DetailOf(request.item.status, "value"), "5");
  EXPECT_EQ(request.item.generation_after, Generation());
  request.session = "t";
  EXPECT_EQ(DetailOf(Append(&store_, 0, &request), "field"), "session");
}

// Sessions without a token take memory too, most of it given plans and directions.
TEST_F(SessionStoreTest, SessionsThemselvesAreWithinTheBudget) {
  SessionStore store(&backend_,
                     {.memory_budget_bytes = 200'000, .settle_after = absl::InfiniteDuration()});
  const auto config = [](int i) {
    SessionConfig made = SmallSession("s" + std::to_string(i));
    made.layers[0].given_directions.assign(2 * 64, 0.125F);
    return made;
  };
  int count = 0;
  absl::Status status;
  for (; count < 1000 && status.ok(); ++count) status = store.Create(config(count)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "OUT_OF_MEMORY");
  EXPECT_LT(count, 200);
  EXPECT_EQ(store.Totals().sessions, count - 1);
  EXPECT_TRUE(store.Create(config(0)).ok());  // a repeat takes nothing
  EXPECT_EQ(ReasonOf(store.Create(config(count - 1)).status()), "OUT_OF_MEMORY");
  ASSERT_TRUE(store.Delete("s0", 0).ok());
  EXPECT_TRUE(store.Create(config(count - 1)).ok());
}

TEST_F(SessionStoreTest, RepeatsAreAcknowledged) {
  Create(SmallSession("s"));
  ASSERT_TRUE(AppendTokens(0, 10).ok());
  Request request = AppendRequest("s", Generation(), SourceOf(), 10, 5, true);
  ASSERT_TRUE(Append(&store_, 0, &request).ok());
  EXPECT_FALSE(request.item.repeated);
  EXPECT_EQ(request.item.length_after, 15);
  ASSERT_TRUE(Append(&store_, 0, &request).ok());
  EXPECT_TRUE(request.item.repeated);
  EXPECT_EQ(request.item.length_after, 15);
  ExpectTokens(15);

  Request other = AppendRequest("s", Generation(), SourceOf(), 10, 5, false);
  other.values[3] ^= 1;
  EXPECT_EQ(ReasonOf(Append(&store_, 0, &other)), "REPEAT_MISMATCH");
  Request shorter = AppendRequest("s", Generation(), SourceOf(), 10, 4, false);
  EXPECT_EQ(ReasonOf(Append(&store_, 0, &shorter)), "LENGTH_MISMATCH");
  Request earlier = AppendRequest("s", Generation(), SourceOf(), 0, 10, false);
  EXPECT_EQ(ReasonOf(Append(&store_, 0, &earlier)), "LENGTH_MISMATCH");

  ASSERT_TRUE(store_.Truncate("s", "", Generation(), 15).ok());
  request.item.generation = Generation();
  EXPECT_EQ(ReasonOf(Append(&store_, 0, &request)), "LENGTH_MISMATCH");  // forgotten
}

TEST_F(SessionStoreTest, RepeatedAttendAnswersAlikeAcrossASeal) {
  Create(SmallSession("s"));
  constexpr std::int64_t kDue = 4 + 128 + 32 + kSealSlack;
  ASSERT_TRUE(AppendTokens(0, kDue - 1).ok());
  for (std::int64_t t = kDue - 1; t < kDue + 6; ++t) {
    Request request = AttendRequest("s", Generation(), SourceOf(), t, 1, 1);
    ASSERT_TRUE(Attend(&store_, 0, &request).ok());
    const std::int64_t sealed = Info().layers[0].sealed_tokens;
    const std::vector<float> outputs = request.outputs;
    ASSERT_TRUE(Attend(&store_, 0, &request).ok());
    EXPECT_TRUE(request.item.repeated);
    EXPECT_EQ(request.outputs, outputs);
    EXPECT_EQ(Info().layers[0].sealed_tokens, sealed);
    // The page is sealed at the start of the append that finds so many tokens.
    EXPECT_EQ(sealed, t >= kDue ? 128 : 0) << t;
  }
}

TEST_F(SessionStoreTest, AttendsOverAnEmptyLayer) {
  SessionConfig config = SmallSession("s", 2);
  config.layers[1].sink_logits = {1, 2, 3, 4};
  Create(std::move(config));
  Request request = AttendRequest("s", Generation(), SourceOf(), 3, 0, 3);
  request.item.expected_length.reset();
  ASSERT_TRUE(Attend(&store_, 0, &request).ok()) << request.item.status;
  EXPECT_THAT(request.outputs, ::testing::Each(0.0F));
  EXPECT_THAT(request.log_sum_exps, ::testing::Each(-std::numeric_limits<float>::infinity()));
  ASSERT_TRUE(Attend(&store_, 1, &request).ok());
  EXPECT_THAT(request.outputs, ::testing::Each(0.0F));
  EXPECT_EQ(request.log_sum_exps[1], 2.0F);
}

TEST_F(SessionStoreTest, QueryPositionsCountFromTheBase) {
  SessionConfig config = SmallSession("s");
  config.position_base = 1000;
  Create(std::move(config));
  Request tokens = AppendRequest("s", Generation(), SourceOf(), 0, 8, false);
  ASSERT_TRUE(Append(&store_, 0, &tokens).ok());
  const auto attend = [&](std::optional<std::int64_t> start) {
    Request request = AttendRequest("s", Generation(), SourceOf(), 8, 0, 2);
    request.item.query_start = start;
    EXPECT_TRUE(Attend(&store_, 0, &request).ok());
    return request.log_sum_exps;
  };
  EXPECT_EQ(attend(std::nullopt), attend(1006));
  EXPECT_NE(attend(std::nullopt), attend(1004));
  // At positions before the session's first token nothing is seen.
  EXPECT_EQ(attend(6)[0], -std::numeric_limits<float>::infinity());
}

TEST_F(SessionStoreTest, ABatchHasItsItemsOneByOne) {
  for (const char* id : {"b", "a", "c"}) Create(SmallSession(id));
  std::vector<Request> requests;
  for (const char* id : {"c", "gone", "a", "b", "a"}) {
    requests.push_back(AppendRequest(id, *id == 'g' ? 1 : Generation(id), SourceOf(0, "a"), 0,
                                     *id == 'b' ? 3 : 50, true));
  }
  requests[3].item.expected_length = 1;
  std::vector<BatchItem> items;
  for (Request& request : requests) {
    items.push_back(request.item);
    items.back().session = request.session;
  }
  AppendAll(&store_, 0, items);
  EXPECT_TRUE(items[0].status.ok());
  EXPECT_EQ(items[0].length_after, 50);
  EXPECT_EQ(ReasonOf(items[1].status), "SESSION_NOT_FOUND");
  EXPECT_EQ(items[1].generation_after, 0U);
  EXPECT_TRUE(items[2].status.ok());
  EXPECT_EQ(ReasonOf(items[3].status), "LENGTH_MISMATCH");
  EXPECT_EQ(items[3].length_after, 0);
  EXPECT_EQ(DetailOf(items[4].status, "field"), "session");
  EXPECT_EQ(backend_.calls().at("Append"), 1);
  EXPECT_EQ(*ReadAll(store_, "a", 0), *ReadAll(store_, "c", 0));
}

TEST_F(SessionStoreTest, TruncateChecksAndForgets) {
  Create(SmallSession("s", 2));
  ASSERT_TRUE(AppendTokens(0, 300, 0).ok());
  ASSERT_TRUE(AppendTokens(0, 200, 1).ok());
  EXPECT_EQ(Info().committed_length, 200);
  EXPECT_EQ(ReasonOf(store_.Truncate("s", "", 1, 0).status()), "GENERATION_MISMATCH");
  EXPECT_EQ(DetailOf(store_.Truncate("s", "", Generation(), 301).status(), "field"), "length");
  EXPECT_EQ(DetailOf(store_.Truncate("s", "", Generation(), -1).status(), "field"), "length");
  const absl::StatusOr<SessionInfo> info = store_.Truncate("s", "", Generation(), 250);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->layers[0].length, 250);
  EXPECT_EQ(info->layers[1].length, 200);
  ExpectTokens(250, 0);
  ExpectTokens(200, 1);
}

TEST_F(SessionStoreTest, ARepeatedTruncateChangesNothing) {
  Create(SmallSession("s"));
  ASSERT_TRUE(AppendTokens(0, 300).ok());
  const std::uint64_t asked = Generation();
  ASSERT_TRUE(store_.Truncate("s", "r", asked, 200).ok());
  const std::uint64_t begun = Generation();
  ASSERT_TRUE(AppendTokens(200, 5).ok());
  const absl::StatusOr<SessionInfo> again = store_.Truncate("s", "r", asked, 200);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->generation, begun);
  EXPECT_EQ(again->layers[0].length, 205);

  const auto refused = [&](std::string_view request_id, std::int64_t length) {
    return ReasonOf(store_.Truncate("s", request_id, asked, length).status());
  };
  EXPECT_EQ(refused("q", 200), "GENERATION_MISMATCH");
  EXPECT_EQ(refused("r", 201), "GENERATION_MISMATCH");
  EXPECT_EQ(ReasonOf(store_.Truncate("s", "r", asked + 1000, 200).status()), "GENERATION_MISMATCH");
  // Only the last one is known, and one without an id never.
  ASSERT_TRUE(store_.Truncate("s", "", begun, 100).ok());
  EXPECT_EQ(refused("r", 200), "GENERATION_MISMATCH");
  EXPECT_EQ(ReasonOf(store_.Truncate("s", "", begun, 100).status()), "GENERATION_MISMATCH");
}

TEST_F(SessionStoreTest, CountsItsBytes) {
  Create(SmallSession("s", 2));
  const std::int64_t own = store_.Totals().resident_bytes;
  EXPECT_GT(own, 0);
  EXPECT_EQ(Info().resident_bytes, 0);
  ASSERT_TRUE(AppendTokens(0, 1000, 0).ok());
  ASSERT_TRUE(AppendTokens(0, 1000, 1).ok());
  store_.Settle();
  const SessionInfo info = Info();
  const LayerSpec& spec = info.config->layers[0];
  EXPECT_EQ(info.logical_bytes, 2 * 1000 * spec.logical_bytes_per_token());
  EXPECT_EQ(info.resident_bytes + own, store_.Totals().resident_bytes);
  EXPECT_EQ(store_.Totals().logical_bytes, info.logical_bytes);
  EXPECT_EQ(info.layers[0].sealed_tokens, 7 * 128);
  EXPECT_EQ(info.layers[0].pages_sealed_without_queries, 0);
  EXPECT_GT(info.layers[0].bits_per_value, 2);
  EXPECT_LT(info.layers[0].bits_per_value, 3);
}

TEST_F(SessionStoreTest, CountsPagesSealedWithoutQueries) {
  Create(SmallSession("s"));
  Request request = AppendRequest("s", Generation(), SourceOf(), 0, 4 + 128 + 32, false);
  ASSERT_TRUE(Append(&store_, 0, &request).ok());
  store_.Settle();
  EXPECT_EQ(Info().layers[0].sealed_tokens, 128);
  EXPECT_EQ(Info().layers[0].pages_sealed_without_queries, 1);
  ASSERT_TRUE(store_.Truncate("s", "", Generation(), 0).ok());
  EXPECT_EQ(Info().layers[0].pages_sealed_without_queries, 0);
}

// Under a given plan without residual no page wants queries, and none are kept.
TEST_F(SessionStoreTest, KeepsNoQueriesThatNoPageNeeds) {
  SessionConfig config = SmallSession("s", 4);
  config.layers[0].codec.plan = PlanMode::kGiven;
  config.layers[0].given_plan.resize(2);
  config.layers[0].codec.residual = false;
  config.layers[1].codec.plan = PlanMode::kGiven;
  config.layers[1].given_plan.resize(2);
  config.layers[1].given_directions.assign(2 * 64, 0.125F);
  config.layers[2].sliding_window = 32;
  config.layers[3].codec.key_bits = 16;
  config.rollback_tokens = kPositionLimit;  // frees none
  Create(std::move(config));
  const std::int64_t block = 2LL * 2 * 128;
  for (int layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(AppendTokens(0, 4 + 64, layer).ok());
    EXPECT_EQ(Info().layers[layer].window_bytes, block * (4 + 64)) << layer;
    ASSERT_TRUE(AppendTokens(68, 400, layer).ok());
  }
  store_.Settle();
  for (int layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(Info().layers[layer].sealed_tokens, layer == 2 ? 0 : 384) << layer;
    EXPECT_EQ(Info().layers[layer].pages_sealed_without_queries, 0) << layer;
    ExpectTokens(468, layer);
  }
}

TEST_F(SessionStoreTest, ReadChecksItsRange) {
  Create(SmallSession("s"));
  ASSERT_TRUE(AppendTokens(0, 10).ok());
  std::vector<std::uint16_t> keys(10 * 128);
  std::vector<std::uint16_t> values(10 * 128);
  const auto read = [&](std::int64_t begin, std::int64_t tokens) {
    return store_.Read(Info().config, Generation(), 0, begin, tokens, keys.data(), values.data());
  };
  EXPECT_TRUE(read(0, 10).ok());
  EXPECT_TRUE(read(10, 0).ok());
  EXPECT_EQ(DetailOf(read(-1, 1), "field"), "begin");
  EXPECT_EQ(DetailOf(read(11, 0), "field"), "begin");
  EXPECT_EQ(DetailOf(read(5, 6), "field"), "num_tokens");
  EXPECT_EQ(DetailOf(read(5, INT64_MAX), "field"), "num_tokens");
  const auto config = Info().config;
  const auto refused = [&](std::uint64_t generation, int layer) {
    return ReasonOf(store_.Read(config, generation, layer, 0, 1, keys.data(), values.data()));
  };
  EXPECT_EQ(refused(1, 0), "GENERATION_MISMATCH");
  EXPECT_EQ(refused(Generation(), 1), "LAYER_NOT_FOUND");
  ASSERT_TRUE(store_.Delete("s", 0).ok());
  EXPECT_EQ(refused(1, 0), "SESSION_NOT_FOUND");
}

// Between a caller's look at a session's shape and its request another session of that id, with
// larger rows, may have taken its place.
TEST_F(SessionStoreTest, RefusesWhatWasSizedByAnotherSession) {
  Create(SmallSession("s"));
  const auto old_config = Info().config;
  ASSERT_TRUE(store_.Delete("s", 0).ok());
  SessionConfig wide = SmallSession("s");
  wide.layers[0].value_dim = 256;
  Create(std::move(wide));
  ASSERT_TRUE(AppendTokens(0, 10).ok());

  const Source narrow{.spec = &old_config->layers[0], .seed = 1};
  Request request = AttendRequest("s", Generation(), narrow, 10, 0, 2);
  request.item.expected_length.reset();
  request.item.config = old_config;
  const std::vector<float> untouched(request.outputs.size(), 7);
  request.outputs = untouched;
  const absl::Status status = Attend(&store_, 0, &request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "GENERATION_MISMATCH");
  EXPECT_EQ(DetailOf(status, "generation"), std::to_string(Generation()));
  EXPECT_EQ(DetailOf(status, "length"), "10");
  EXPECT_EQ(request.item.generation_after, Generation());
  EXPECT_EQ(request.item.length_after, 10);
  EXPECT_EQ(request.outputs, untouched);

  Request append = AppendRequest("s", Generation(), SourceOf(), 10, 1, true);
  append.item.config = old_config;
  EXPECT_EQ(ReasonOf(Append(&store_, 0, &append)), "GENERATION_MISMATCH");
  append.item.config = Info().config;
  EXPECT_TRUE(Append(&store_, 0, &append).ok());

  std::vector<std::uint16_t> keys(2 * 64, 7);
  std::vector<std::uint16_t> values = keys;
  EXPECT_EQ(ReasonOf(store_.Read(old_config, Generation(), 0, 0, 1, keys.data(), values.data())),
            "GENERATION_MISMATCH");
  EXPECT_THAT(values, ::testing::Each(7));
}

}  // namespace
}  // namespace oscarkv
