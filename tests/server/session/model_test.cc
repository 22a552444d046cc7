// Random requests, right and wrong, against a plain model of what a store should do. Over a backend
// whose pages lose nothing, so that every answer is known exactly.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/session/session_store.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/plain_attention.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

constexpr int kLayers = 2;
constexpr std::int64_t kRollback = 16;  // so few that tokens are freed all the time

struct ModelLayer {
  PlainTokens tokens;
  std::optional<std::pair<std::int64_t, std::int32_t>> last;  // start and count
};

struct ModelSession {
  std::uint64_t generation = 0;
  std::uint64_t seed = 0;
  bool is_fork = false;
  std::vector<ModelLayer> layers{kLayers};
};

SessionConfig ModelConfig(const std::string& id) {
  SessionConfig config = SmallSession(id, kLayers);
  config.layers[1].codec.window = 5;
  config.layers[1].codec.sinks = 0;
  config.layers[1].sliding_window = 40;
  config.rollback_tokens = kRollback;
  config.layers[1].softcap = 20;
  config.layers[1].sink_logits = {0.5F, -1, 2, 0};
  return config;
}

class ModelTest : public ::testing::TestWithParam<int> {
 protected:
  int Draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool OneIn(int n) { return Draw(1, n) == 1; }
  std::string DrawId() { return std::string(1, static_cast<char>('a' + Draw(0, 3))); }
  Source SourceOf(const ModelSession& session, int layer) const {
    return {.spec = &specs_.layers[layer], .seed = session.seed * kLayers + layer};
  }

  void Create(const std::string& id) {
    const absl::StatusOr<SessionInfo> info = store_.Create(ModelConfig(id));
    const auto it = model_.find(id);
    if (it != model_.end() && it->second.is_fork) {
      EXPECT_EQ(info.status().code(), absl::StatusCode::kAlreadyExists);
      return;
    }
    ASSERT_TRUE(info.ok());
    if (it != model_.end()) {
      EXPECT_EQ(info->generation, it->second.generation);
      return;
    }
    EXPECT_GT(info->generation, last_generation_);
    last_generation_ = info->generation;
    // The first session tells what every one takes before its first token.
    if (own_bytes_ == 0) own_bytes_ = store_.Totals().resident_bytes;
    EXPECT_GT(own_bytes_, 0);
    model_[id] = {.generation = info->generation, .seed = seeds_++};
  }

  void Delete(const std::string& id) {
    const auto it = model_.find(id);
    const std::uint64_t wrong = OneIn(3) ? 1'000'000 : 0;
    const absl::Status status = store_.Delete(id, wrong);
    if (it == model_.end()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    } else if (wrong != 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    } else {
      EXPECT_TRUE(status.ok());
      model_.erase(it);
    }
  }

  // A fork of a session, which may take the place of another one, or of its own source.
  void Fork(const std::string& id) {
    const std::string source = DrawId();
    const auto from = model_.find(source);
    std::vector<ForkItem> items(1);
    items[0].source = source;
    items[0].session = id;
    items[0].request_id = absl::StrCat("fork ", ++forks_);
    items[0].replace = OneIn(2);
    std::int64_t committed = 0;
    if (from != model_.end()) {
      items[0].generation = from->second.generation;
      committed = Committed(from->second);
      if (OneIn(2)) items[0].length = Draw(0, static_cast<int>(committed) + (OneIn(8) ? 1 : 0));
    }
    const std::int64_t least = from == model_.end() ? 0 : store_.Get(source)->min_truncate_length;
    store_.Fork(items);
    absl::StatusCode expected = CodeOfCut(items[0].length.value_or(committed), committed, least);
    if (from == model_.end()) expected = absl::StatusCode::kNotFound;
    if (model_.count(id) > 0 && !items[0].replace) expected = absl::StatusCode::kAlreadyExists;
    ASSERT_EQ(items[0].status.code(), expected) << items[0].status;
    if (expected != absl::StatusCode::kOk) return;
    EXPECT_GT(items[0].info.generation, last_generation_);
    last_generation_ = items[0].info.generation;
    ModelSession fork = from->second;
    fork.generation = last_generation_;
    fork.is_fork = true;
    CutTo(items[0].length.value_or(committed), &fork);
    model_[id] = std::move(fork);
    shared_ = true;
  }

  static std::int64_t Committed(const ModelSession& session) {
    std::int64_t least = session.layers[0].tokens.length;
    for (const ModelLayer& layer : session.layers) least = std::min(least, layer.tokens.length);
    return least;
  }

  static void CutTo(std::int64_t length, ModelSession* session) {
    for (ModelLayer& layer : session->layers) {
      layer.last.reset();
      layer.tokens.length = std::min(layer.tokens.length, length);
      Resize(&layer.tokens);
    }
  }

  void Truncate(const std::string& id) {
    const auto it = model_.find(id);
    if (it == model_.end()) {
      EXPECT_EQ(store_.Truncate(id, "", 1, 0).status().code(), absl::StatusCode::kNotFound);
      return;
    }
    ModelSession& session = it->second;
    std::int64_t longest = 0;
    for (const ModelLayer& layer : session.layers) {
      longest = std::max(longest, layer.tokens.length);
    }
    const std::int64_t length = OneIn(2) ? longest - std::min<std::int64_t>(longest, Draw(0, 3))
                                         : Draw(0, static_cast<int>(longest) + 1);
    const std::int64_t least = store_.Get(id)->min_truncate_length;
    const absl::StatusOr<SessionInfo> info = store_.Truncate(id, "", session.generation, length);
    ASSERT_EQ(info.status().code(), CodeOfCut(length, longest, least)) << info.status();
    if (!info.ok()) return;
    EXPECT_GT(info->generation, last_generation_);
    last_generation_ = session.generation = info->generation;
    CutTo(length, &session);
  }

  static absl::StatusCode CodeOfCut(std::int64_t length, std::int64_t most, std::int64_t least) {
    if (length > most) return absl::StatusCode::kInvalidArgument;
    const bool exact = length == 0 || length >= least;
    return exact ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition;
  }

  static void Resize(PlainTokens* tokens) {
    tokens->keys.resize(static_cast<std::size_t>(tokens->length) * 2 * 64);
    tokens->values.resize(static_cast<std::size_t>(tokens->length) * 2 * 64);
  }

  // An append or attend of one session: a new one, a repeat, or one that is wrong somehow.
  void AppendOrAttend(const std::string& id) {
    const auto it = model_.find(id);
    ModelSession nobody;
    ModelSession& session = it == model_.end() ? nobody : it->second;
    const int layer = Draw(0, kLayers - 1);
    ModelLayer& model = session.layers[layer];
    const bool attend = OneIn(2);
    std::int64_t begin = model.tokens.length;
    std::int32_t count = OneIn(4) ? Draw(1, 300) : Draw(attend ? 0 : 1, 9);
    const bool repeat = model.last && OneIn(4);
    if (repeat) std::tie(begin, count) = *model.last;
    const Source source = SourceOf(session, layer);
    Request request = attend
                          ? AttendRequest(id, session.generation, source, begin, count, Draw(1, 3))
                          : AppendRequest(id, session.generation, source, begin, count, OneIn(2));
    absl::StatusCode expected = absl::StatusCode::kOk;
    Spoil(&request, repeat, &expected);
    if (it == model_.end()) expected = absl::StatusCode::kNotFound;
    const absl::Status status =
        attend ? Attend(&store_, layer, &request) : Append(&store_, layer, &request);
    ASSERT_EQ(status.code(), expected) << status;
    if (status.ok() && !repeat && count > 0) {
      model.tokens.keys.insert(model.tokens.keys.end(), request.keys.begin(), request.keys.end());
      model.tokens.values.insert(model.tokens.values.end(), request.values.begin(),
                                 request.values.end());
      model.tokens.length += count;
      model.last = {begin, count};
    }
    EXPECT_EQ(request.item.repeated, status.ok() && repeat);
    EXPECT_EQ(request.item.length_after, model.tokens.length);
    EXPECT_EQ(request.item.generation_after, session.generation);
    if (status.ok() && attend) ExpectAnswer(source, model.tokens, request);
  }

  // Makes one request in eight wrong.
  void Spoil(Request* request, bool repeat, absl::StatusCode* expected) {
    if (!OneIn(8)) return;
    *expected = absl::StatusCode::kFailedPrecondition;
    if (OneIn(2)) {
      ++request->item.generation;
    } else if (repeat && OneIn(2)) {
      request->values[5] ^= 1;  // other bytes at the place of the last append
    } else {
      request->item.expected_length = *request->item.expected_length + 1000;
    }
  }

  void ExpectAnswer(const Source& source, const PlainTokens& tokens, const Request& request) {
    std::vector<float> outputs(request.outputs.size());
    std::vector<float> log_sum_exps(request.log_sum_exps.size());
    PlainAttend(*source.spec, tokens,
                {.data = request.queries.data(),
                 .count = request.item.num_queries,
                 .begin = tokens.length - request.item.num_queries},
                outputs.data(), log_sum_exps.data());
    EXPECT_EQ(request.outputs, outputs);
    EXPECT_EQ(request.log_sum_exps, log_sum_exps);
  }

  void ExpectState() {
    const std::vector<SessionInfo> infos = store_.List("", 100, std::nullopt);
    ASSERT_EQ(infos.size(), model_.size());
    std::int64_t resident = 0;
    std::int64_t logical = 0;
    auto it = model_.begin();
    for (const SessionInfo& info : infos) {
      const auto& [id, session] = *it++;
      ASSERT_EQ(info.config->id, id);
      EXPECT_EQ(info.generation, session.generation);
      std::int64_t committed = info.layers[0].length;
      for (int i = 0; i < kLayers; ++i) {
        committed = std::min(committed, info.layers[i].length);
        EXPECT_EQ(info.layers[i].length, session.layers[i].tokens.length);
        const Tokens tokens = *ReadAll(store_, id, i);
        const PlainTokens kept = Kept(session.layers[i], info.layers[i], specs_.layers[i]);
        EXPECT_EQ(tokens.keys, kept.keys);
        EXPECT_EQ(tokens.values, kept.values);
      }
      EXPECT_EQ(info.committed_length, committed);
      resident += info.resident_bytes;
      logical += info.logical_bytes;
    }
    resident += own_bytes_ * std::ssize(model_);
    if (shared_) {
      EXPECT_LE(store_.Totals().resident_bytes, resident);
    } else {
      EXPECT_EQ(store_.Totals().resident_bytes, resident);
    }
    EXPECT_EQ(store_.Totals().sessions, std::ssize(model_));
    EXPECT_EQ(store_.Totals().logical_bytes, logical);
    if (model_.empty()) {
      EXPECT_EQ(backend_.blocks(), 0);
      shared_ = false;
    }
  }

  // The model's tokens without those that the store has freed, which it must be able to spare.
  static PlainTokens Kept(const ModelLayer& layer, const LayerStats& stats, const LayerSpec& spec) {
    PlainTokens kept = layer.tokens;
    if (stats.kept_from == 0) return kept;
    const std::int64_t first_query = layer.last ? layer.last->first : stats.length;
    EXPECT_GT(spec.sliding_window, 0);
    EXPECT_LE(stats.kept_from, first_query - spec.sliding_window + 1);
    const std::ptrdiff_t row = 2 * 64;
    for (std::vector<std::uint16_t>* values : {&kept.keys, &kept.values}) {
      std::fill(values->begin() + spec.codec.sinks * row, values->begin() + stats.kept_from * row,
                0);
    }
    return kept;
  }

  std::int64_t own_bytes_ = 0;
  std::mt19937 random_{static_cast<std::uint32_t>(GetParam())};
  const SessionConfig specs_ = ModelConfig("");
  FakeBackend backend_;
  SessionStore store_{&backend_,
                      {.memory_budget_bytes = 1 << 30, .settle_after = absl::InfiniteDuration()}};
  std::map<std::string, ModelSession> model_;
  std::uint64_t last_generation_ = 0;
  std::uint64_t seeds_ = 1;
  int forks_ = 0;
  bool shared_ = false;  // sessions may have blocks in common
};

TEST_P(ModelTest, StoreDoesAsTheModel) {
  const int steps = std::getenv("OSCARKV_TEST_FULL") ? 10000 : 500;
  for (int step = 0; step < steps && !HasFailure(); ++step) {
    const std::string id = DrawId();
    const int action = Draw(0, 99);
    if (action < 6) {
      Create(id);
    } else if (action < 8) {
      Delete(id);
    } else if (action < 14) {
      Truncate(id);
    } else if (action < 16) {
      store_.Settle();
    } else if (action < 22) {
      Fork(id);
    } else {
      AppendOrAttend(id);
    }
    if (step % 20 == 0) ExpectState();
  }
  ExpectState();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ModelTest, ::testing::Range(0, 6));

}  // namespace
}  // namespace oscarkv
