// What a driver does with tokens: appends, attends, reads, and what they must give.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "tests/server/session/model/store_driver.h"
#include "tests/server/support/error_details.h"

namespace oscarkv {
namespace {

// Bytes of a token of the model in 16 bits, and of a page of them.
constexpr std::int64_t kTokenBytes = 2 * 2 * 64;
constexpr std::int64_t kPageBytes = kPageTokens * kTokenBytes + 1024;

// More than an append of so many tokens takes in all layers.
std::int64_t MostBytes(std::int64_t tokens) {
  const std::int64_t window = (tokens / kWindowBlockTokens + 3) * kWindowBlockTokens * kTokenBytes;
  return kModelLayers * (window + 2 * kPageBytes + 4096);
}

// Of the difference to what was appended, over the size of that. Tokens that have nothing to do
// with each other are at 1.4.
double RelativeError(DType storage, const std::uint16_t* is, const std::uint16_t* should,
                     std::int64_t count) {
  double error = 0;
  double size = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = FromBits16(storage, should[i]);
    const double difference = FromBits16(storage, is[i]) - x;
    error += difference * difference;
    size += x * x;
  }
  return std::sqrt(error / size);
}
constexpr double kMostError = 0.9;

// An append takes memory for all layers to come as far.
std::int64_t MostOfStep(const ModelSession* session, std::int64_t count) {
  if (session == nullptr) return MostBytes(count);
  std::int64_t longest = 0;
  for (const LayerHistory& layer : session->now.layers) longest = std::max(longest, layer.length());
  std::int64_t bytes = 0;
  for (const LayerHistory& layer : session->now.layers) {
    bytes += MostBytes(longest - layer.length() + count);
  }
  return bytes;
}

}  // namespace

struct StoreDriver::Planned {
  std::string id = {};
  std::size_t layer = 0;
  LayerEvent event = {};
  bool repeat = false;
  bool compared = false;  // the answer with that of an undisturbed store
  Refusal refusal = {};
  Request request = {};
};

void StoreDriver::PlanTokens(bool attend, ModelSession* session, Planned* planned) {
  const LayerHistory& layer = session->now.layers[planned->layer];
  LayerEvent& event = planned->event;
  event.begin = layer.length();
  event.seed = layer.SeedAt(event.begin);
  const std::int64_t most = std::min(kModelTokens, layer.SeedEnd(event.begin)) - event.begin;
  std::int64_t count = OneIn(8) ? Draw(1, 150) : Draw(attend ? 0 : 1, 12);
  // Steps of all layers, as a worker's, come to an end.
  const std::int64_t ahead = session->now.Longest() - event.begin;
  if (ahead > 0 && OneIn(2)) count = ahead;
  event.count = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(count, 0, std::max<std::int64_t>(most, 0)));
  event.queries = static_cast<std::int32_t>(attend ? Draw(1, 3) : Draw(0, 1));
  planned->repeat = layer.last() && (OneIn(6) || (event.count == 0 && !attend));
  if (planned->repeat) {
    event.begin = layer.last()->begin;
    event.count = layer.last()->count;
    event.seed = layer.last()->seed;
  }
  if (event.count == 0 && !attend) {
    planned->refusal = {absl::StatusCode::kInvalidArgument, "INVALID_FIELD"};
  }
}

StoreDriver::Planned StoreDriver::Plan(bool attend) {
  Planned planned{.id = DrawId(), .layer = static_cast<std::size_t>(Draw(0, kModelLayers - 1))};
  ModelSession nobody;
  nobody.generation = 1;
  ModelSession* const there = Find(planned.id);
  ModelSession& session = there == nullptr ? nobody : *there;
  planned.event.kind = attend ? LayerEvent::Kind::kAttend : LayerEvent::Kind::kAppend;
  PlanTokens(attend, &session, &planned);
  const LayerEvent& event = planned.event;
  const SessionConfig& config = configs_[session.shape.kind];
  planned.request =
      RequestOf(event, SourceOf(config, planned.layer, event.seed), planned.id, session.generation);
  planned.request.item.layer = static_cast<int>(planned.layer);
  if (attend && there != nullptr) {
    // Queries that would need what has been freed.
    const LayerStats stats = *store_->StatsOf(planned.id, planned.request.item.layer);
    const std::int64_t begin = event.begin + event.count - event.queries;
    const std::int64_t sliding = config.layers[planned.layer].sliding_window;
    if (stats.kept_from > 0 && begin < stats.kept_from + sliding - 1) {
      planned.refusal = {absl::StatusCode::kFailedPrecondition, "TOKENS_FREED"};
    }
  }
  Spoil(&planned);
  if (there == nullptr) planned.refusal = {absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"};
  return planned;
}

// Makes one request in ten wrong.
void StoreDriver::Spoil(Planned* planned) {
  if (!OneIn(10)) return;
  BatchItem& item = planned->request.item;
  switch (Draw(0, 4)) {
    case 0:
      ++item.generation;
      planned->refusal = {absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"};
      break;
    case 1:
      item.layer = 99;
      planned->refusal = {absl::StatusCode::kNotFound, "LAYER_NOT_FOUND"};
      break;
    case 2:
      if (item.num_tokens == 0) break;
      planned->request.keys.resize(2 * planned->request.keys.size());
      item.keys.data = planned->request.keys.data();
      item.keys.heads = 2;
      planned->refusal = {absl::StatusCode::kInvalidArgument, "INVALID_FIELD"};
      break;
    case 3:
      if (item.num_tokens == 0) break;
      item.expected_length = *item.expected_length + 1000;
      planned->refusal = {absl::StatusCode::kFailedPrecondition, "LENGTH_MISMATCH"};
      break;
    default:
      if (!planned->repeat) break;
      planned->request.values[5] ^= 1;
      planned->refusal = {absl::StatusCode::kFailedPrecondition, "REPEAT_MISMATCH"};
  }
}

void StoreDriver::AppendOrAttend() {
  const bool attend = OneIn(2);
  std::vector<Planned> batch;
  const std::int64_t items = OneIn(8) ? Draw(2, 3) : 1;
  for (std::int64_t i = 0; i < items; ++i) {
    batch.push_back(Plan(attend));
    Planned& planned = batch.back();
    planned.compared = attend && OneIn(200);
    for (std::size_t j = 0; j + 1 < batch.size(); ++j) {
      if (batch[j].id != planned.id) continue;
      planned.refusal = {absl::StatusCode::kInvalidArgument, "INVALID_FIELD"};
    }
  }
  std::vector<BatchItem*> pointers;
  for (Planned& planned : batch) {
    BatchItem& item = planned.request.item;
    item.session = planned.id;
    item.outputs = planned.request.outputs.data();
    item.log_sum_exps = planned.request.log_sum_exps.data();
    pointers.push_back(&item);
  }
  const std::int64_t used = UsedBytes();
  attend ? store_->Attend(pointers) : store_->Append(pointers);
  for (Planned& planned : batch) ExpectAnswered(attend, used, &planned);
}

void StoreDriver::ExpectAnswered(bool attend, std::int64_t used, Planned* planned) {
  const BatchItem& item = planned->request.item;
  const LayerEvent& event = planned->event;
  Note(planned->id, absl::StrCat(attend ? "attend" : "append", " of layer ", item.layer, ", ",
                                 event.begin, " + ", event.count, ", queries ", event.queries,
                                 planned->repeat ? ", again: " : ": ",
                                 item.status.ToString(absl::StatusToStringMode::kWithNoExtraData)));
  ModelSession* const session = Find(planned->id);
  const bool named = item.layer != 99 && planned->refusal.reason != "INVALID_FIELD";
  if (!MayLack(item.status, used, 3 * MostOfStep(session, event.count))) {
    ExpectRefusal(item.status, planned->refusal);
    EXPECT_EQ(item.repeated, item.status.ok() && planned->repeat);
  }
  if (session != nullptr && item.status.ok()) {
    LayerHistory& layer = session->now.layers[planned->layer];
    if (planned->compared) {
      undisturbed_.Replay(session->shape, planned->layer, layer);
      Request expected;
      const absl::Status status = undisturbed_.Attend(event, event.seed, &expected);
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(planned->request.outputs == expected.outputs);
      EXPECT_TRUE(planned->request.log_sum_exps == expected.log_sum_exps);
    }
    if (!planned->repeat) {
      layer.Add(event, configs_[session->shape.kind].layers[planned->layer].codec.window,
                kModelRollback);
      session->now.changes += event.count > 0 ? 1 : 0;
      MayBeWritten(session);
    }
  }
  if (session != nullptr && named) {
    EXPECT_EQ(item.length_after, session->now.layers[planned->layer].length());
    EXPECT_EQ(item.generation_after, session->generation);
  }
  ExpectSession(planned->id);
}

void StoreDriver::ExpectTokens(const std::string& id, const ModelSession& session,
                               std::size_t layer, std::int64_t begin, const Tokens& tokens) {
  const SessionConfig& config = configs_[session.shape.kind];
  const LayerSpec& spec = config.layers[layer];
  const LayerHistory& history = session.now.layers[layer];
  constexpr std::int64_t kRow = 64;
  const std::int64_t end = begin + std::ssize(tokens.keys) / kRow;
  std::int64_t at = begin;
  while (at < end) {
    const std::int64_t run_end = std::min(end, history.SeedEnd(at));
    const Source source = SourceOf(config, layer, history.SeedAt(at));
    const std::vector<std::uint16_t> keys = source.Keys(at, run_end - at);
    const std::vector<std::uint16_t> values = source.Values(at, run_end - at);
    for (std::int64_t t = at; t < run_end; ++t) {
      const std::uint16_t* const key = tokens.keys.data() + (t - begin) * kRow;
      const std::uint16_t* const value = tokens.values.data() + (t - begin) * kRow;
      const bool exact =
          !spec.keys_are_coded() || t < spec.codec.sinks || t >= history.coded_limit();
      const double most = exact ? 0 : kMostError;
      const std::int64_t row = (t - at) * kRow;
      ASSERT_LE(RelativeError(spec.storage, key, keys.data() + row, kRow), most)
          << id << ", layer " << layer << ", key " << t;
      ASSERT_LE(RelativeError(spec.storage, value, values.data() + row, kRow), most)
          << id << ", layer " << layer << ", value " << t;
    }
    at = run_end;
  }
}

void StoreDriver::Read() {
  const std::string id = DrawId();
  const auto config = store_->ConfigOf(id);
  const ModelSession* const session = Find(id);
  if (session == nullptr) {
    ExpectRefusal(config.status(), {absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"});
    return;
  }
  const auto layer = static_cast<std::size_t>(Draw(0, kModelLayers - 1));
  const std::int64_t length = session->now.layers[layer].length();
  const LayerStats stats = *store_->StatsOf(id, static_cast<int>(layer));
  const std::int64_t begin = Draw(0, length);
  std::int64_t count =
      std::min<std::int64_t>(OneIn(8) ? kModelTokens : Draw(0, 40), length - begin);
  Refusal refusal = {};
  if (count > 0 && begin < stats.kept_from &&
      begin + count > (*config)->layers[layer].codec.sinks) {
    refusal = {absl::StatusCode::kFailedPrecondition, "TOKENS_FREED"};
  }
  if (OneIn(20)) {
    count = length - begin + 1;
    refusal = {absl::StatusCode::kInvalidArgument, "INVALID_FIELD"};
  }
  const bool wrong = OneIn(20);
  if (wrong) refusal = {absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"};
  Tokens tokens;
  tokens.keys.resize(static_cast<std::size_t>(count) * 64);
  tokens.values.resize(tokens.keys.size());
  absl::Status status;
  do {
    status = store_->Read(*config, session->generation + (wrong ? 1 : 0), static_cast<int>(layer),
                          begin, count, tokens.keys.data(), tokens.values.data());
    // Where others move it meanwhile.
  } while (absl::IsUnavailable(status) && !options_.moves_when_told);
  Note(id, absl::StrCat("read of layer ", layer, ", ", begin, " + ", count, ": ",
                        status.ToString(absl::StatusToStringMode::kWithNoExtraData)));
  ExpectRefusal(status, refusal);
  if (status.ok()) ExpectTokens(id, *session, layer, begin, tokens);
  ExpectSession(id);
}

bool StoreDriver::IsUndisturbed(const std::string& id, const ModelSession& session) {
  for (std::size_t i = 0; i < kModelLayers; ++i) {
    undisturbed_.Replay(session.shape, i, session.now.layers[i]);
    if (!undisturbed_.IsLike(*store_, id)) return false;
  }
  return true;
}

void StoreDriver::Compare() {
  const std::string id = DrawId();
  const ModelSession* const session = Find(id);
  if (session == nullptr) return;
  Note(id, "compare");
  const auto layer = static_cast<std::size_t>(Draw(0, kModelLayers - 1));
  undisturbed_.Replay(session->shape, layer, session->now.layers[layer]);
  EXPECT_TRUE(undisturbed_.IsLike(*store_, id));
}

void StoreDriver::ExpectUndisturbed() {
  for (const auto& [id, session] : sessions_) {
    for (std::size_t i = 0; i < kModelLayers; ++i) {
      undisturbed_.Replay(session.shape, i, session.now.layers[i]);
      EXPECT_TRUE(undisturbed_.IsLike(*store_, id));
    }
  }
}

}  // namespace oscarkv
