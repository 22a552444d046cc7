#include "tests/server/session/model/store_driver.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/server/support/error_details.h"

namespace oscarkv {
namespace {

constexpr char kIds[] = "abcdefgh";
constexpr std::size_t kTraceLines = 400;
constexpr int kMostEvents = 250;  // that a replay must go through

}  // namespace

std::uint64_t DriverSeed(std::uint64_t usual) {
  const char* const text = std::getenv("OSCARKV_TEST_SEED");
  std::uint64_t seed = usual;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &seed)) << text;
  }
  return seed;
}

std::span<const StoreDriver::Operation> StoreDriver::Operations() {
  static constexpr Operation kOperations[] = {
      {"create", 50, &StoreDriver::Create},
      {"delete", 12, &StoreDriver::Delete},
      {"truncate", 50, &StoreDriver::Truncate},
      {"fork", 40, &StoreDriver::Fork},
      {"tokens", 620, &StoreDriver::AppendOrAttend},
      {"read", 60, &StoreDriver::Read},
      {"compare", 4, &StoreDriver::Compare},
      {"look", 40, &StoreDriver::Look},
      {"settle", 8, &StoreDriver::Settle},
      {"evict", 25, &StoreDriver::Evict},
      {"restore", 15, &StoreDriver::Restore},
      {"checkpoint", 30, &StoreDriver::Checkpoint},
      {"checkpoint all", 5, &StoreDriver::CheckpointAll},
      {"export", 8, &StoreDriver::Export},
      {"import", 16, &StoreDriver::Import},
  };
  return kOperations;
}

StoreDriver::StoreDriver(const DriverOptions& options)
    : options_(options),
      random_(options.seed),
      configs_{ModelConfig({.kind = 0}), ModelConfig({.kind = 1})},
      next_seed_(1000 + (options.seed << 32)) {}

void StoreDriver::Step() {
  static const int kWeights = [] {
    int sum = 0;
    for (const Operation& operation : Operations()) sum += operation.weight;
    return sum;
  }();
  ++steps_;
  std::int64_t at = Draw(0, kWeights - 1);
  for (const Operation& operation : Operations()) {
    at -= operation.weight;
    if (at >= 0) continue;
    (this->*operation.run)();
    return;
  }
}

std::string StoreDriver::DrawId() {
  return absl::StrCat(options_.name, std::string(1, kIds[Draw(0, sizeof(kIds) - 2)]));
}

ModelSession* StoreDriver::Find(const std::string& id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

void StoreDriver::Note(const std::string& id, const std::string& text) {
  trace_.emplace_back(id, absl::StrCat(steps_, " ", id, ": ", text));
  if (trace_.size() > kTraceLines) trace_.pop_front();
}

void StoreDriver::PrintTrace() const {
  std::cerr << "Seed " << options_.seed << " (OSCARKV_TEST_SEED), request " << steps_
            << ". What came before it:\n";
  if (trace_.empty()) return;
  const std::string& id = trace_.back().first;
  std::vector<std::string> lines;
  for (auto it = trace_.rbegin(); it != trace_.rend() && lines.size() < 60; ++it) {
    if (it->first == id || lines.size() < 10) lines.push_back(it->second);
  }
  std::reverse(lines.begin(), lines.end());
  for (const std::string& line : lines) std::cerr << "  " << line << "\n";
}

void StoreDriver::Began(std::uint64_t generation, ModelSession* session) {
  EXPECT_GT(generation, last_generation_);
  last_generation_ = session->generation = generation;
}

std::int64_t StoreDriver::UsedBytes() const {
  const StoreTotals totals = store_->Totals();
  return totals.resident_bytes +
         totals.resident_bytes_of[static_cast<std::size_t>(MemoryKind::kPromised)];
}

bool StoreDriver::MayLack(const absl::Status& status, std::int64_t used, std::int64_t want) {
  if (!absl::IsResourceExhausted(status)) return false;
  EXPECT_EQ(testing::ReasonOf(status), "OUT_OF_MEMORY") << status;
  // Else others are moved out of the way.
  EXPECT_FALSE(options_.files) << status;
  EXPECT_GT(used + want, store_->Totals().budget_bytes) << status;
  return true;
}

void StoreDriver::MayBeWritten(ModelSession* session) {
  if (!options_.moves_when_told) session->in_file.push_back(session->now);
}

void StoreDriver::ExpectLike(const std::string& id, const SessionInfo& info) {
  const ModelSession* session = Find(id);
  ASSERT_NE(session, nullptr);
  ASSERT_EQ(info.config->id, id);
  EXPECT_EQ(info.config->tenant, options_.name);
  EXPECT_EQ(info.config->request_id, session->request_id);
  EXPECT_EQ(info.generation, session->generation);
  EXPECT_EQ(info.committed_length, session->now.Committed());
  for (std::size_t i = 0; i < info.layers.size(); ++i) {
    const LayerHistory& layer = session->now.layers[i];
    EXPECT_EQ(info.layers[i].length, layer.length()) << "layer " << i;
    EXPECT_LE(info.layers[i].min_truncate_length, layer.free_limit()) << "layer " << i;
    EXPECT_LE(info.layers[i].kept_from, layer.length()) << "layer " << i;
  }
  if (!options_.moves_when_told || !session->has_file) return;
  const bool told = std::any_of(
      session->in_file.begin(), session->in_file.end(),
      [&](const SessionState& state) { return state.Committed() == info.durable_length; });
  EXPECT_TRUE(told) << "durable_length " << info.durable_length << ", in the file "
                    << session->in_file.front().Committed();
}

void StoreDriver::ExpectSession(const std::string& id) {
  const absl::StatusOr<SessionInfo> info = store_->Get(id);
  if (Find(id) == nullptr) {
    EXPECT_EQ(info.status().code(), absl::StatusCode::kNotFound) << id;
    return;
  }
  ASSERT_TRUE(info.ok()) << info.status();
  ExpectLike(id, *info);
}

void StoreDriver::ExpectRefusal(const absl::Status& status, const Refusal& refusal) {
  EXPECT_EQ(status.code(), refusal.code) << status;
  if (refusal.code != absl::StatusCode::kOk) {
    EXPECT_EQ(testing::ReasonOf(status), refusal.reason) << status;
  }
}

SessionConfig StoreDriver::CreateConfig(const std::string& id, const ModelShape& shape) {
  SessionConfig config = ModelConfig(shape);
  config.id = id;
  config.tenant = options_.name;
  return config;
}

std::pair<const ModelSession*, std::int64_t> StoreDriver::PrefixOf(const ModelShape& shape) const {
  if (shape.prompt < 0) return {nullptr, 0};
  for (auto length = std::rbegin(kModelPrefixes); length != std::rend(kModelPrefixes); ++length) {
    const ModelSession* latest = nullptr;
    for (const auto& [id, session] : sessions_) {
      if (!(session.shape == shape) || session.now.prefix_limit < *length ||
          session.now.Committed() < *length || store_->Get(id)->min_truncate_length > *length) {
        continue;
      }
      if (latest == nullptr || latest->added < session.added) latest = &session;
    }
    if (latest != nullptr) return {latest, *length};
  }
  return {nullptr, 0};
}

void StoreDriver::Create() {
  const std::string id = DrawId();
  ModelSession* const there = Find(id);
  const bool again = there != nullptr && there->digest == "create" && OneIn(3);
  ModelSession made;
  made.shape = {.kind = static_cast<int>(Draw(0, 1)), .prompt = -1};
  // Without files a prefix may not be reused for want of memory, or one of several.
  if (options_.files && OneIn(2)) made.shape.prompt = static_cast<int>(Draw(0, kModelPrompts - 1));
  if (again) made.shape = there->shape;
  made.request_id = again ? there->request_id : absl::StrCat("c", ++requests_);
  made.digest = "create";
  SessionConfig config = CreateConfig(id, made.shape);
  config.request_id = made.request_id;
  config.content_digest = made.digest;
  const auto [holder, prefix] = PrefixOf(made.shape);
  const std::int64_t used = UsedBytes();
  const absl::StatusOr<SessionInfo> info = store_->Create(std::move(config));
  Note(id, absl::StrCat(again ? "create again, kind " : "create, kind ", made.shape.kind,
                        " prompt ", made.shape.prompt, ": ", info.ok() ? info->reused_length : -1));
  if (there != nullptr) {
    ExpectRefusal(info.status(),
                  again ? Refusal{} : Refusal{absl::StatusCode::kAlreadyExists, "SESSION_EXISTS"});
    ExpectSession(id);
    return;
  }
  if (MayLack(info.status(), used, 16 << 10)) return;
  ASSERT_TRUE(info.ok()) << info.status();
  Began(info->generation, &made);
  if (info->reused_length != prefix) {
    // The prefix may have been evicted again before it was lent; which other one was is not known.
    EXPECT_FALSE(options_.moves_when_told);
    EXPECT_LT(info->reused_length, prefix);
    EXPECT_EQ(store_->Delete(id, 0), absl::OkStatus());
    return;
  }
  if (prefix > 0) made.now = holder->now.Fork(prefix, 0);
  made.now.SetPrompt(made.shape, NewSeed());
  made.added = ++added_;
  MayBeWritten(&made);
  sessions_[id] = std::move(made);
  ExpectSession(id);
}

void StoreDriver::Delete() {
  const std::string id = DrawId();
  const ModelSession* const session = Find(id);
  const bool wrong = OneIn(3);
  const std::uint64_t generation = session == nullptr ? 0 : session->generation + (wrong ? 1 : 0);
  const absl::Status status = store_->Delete(id, generation);
  Note(id, absl::StrCat("delete ", generation, ": ",
                        status.ToString(absl::StatusToStringMode::kWithNoExtraData)));
  if (session == nullptr) {
    ExpectRefusal(status, {absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"});
  } else if (wrong) {
    ExpectRefusal(status, {absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"});
  } else {
    EXPECT_TRUE(status.ok()) << status;
    sessions_.erase(id);
  }
  ExpectSession(id);
}

StoreDriver::Refusal StoreDriver::CutRefusal(std::int64_t length, std::int64_t most,
                                             std::int64_t least) const {
  if (length > most) return {absl::StatusCode::kInvalidArgument, "INVALID_FIELD"};
  if (length > 0 && length < least) return {absl::StatusCode::kFailedPrecondition, "TOKENS_FREED"};
  return {};
}

void StoreDriver::Truncate() {
  const std::string id = DrawId();
  ModelSession* const session = Find(id);
  if (session == nullptr) {
    ExpectRefusal(store_->Truncate(id, "t", 1, 0).status(),
                  {absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"});
    return;
  }
  const bool again = session->now.last_truncate && OneIn(4);
  TruncateRecord asked{.generation = session->generation};
  if (OneIn(2)) asked.request_id = absl::StrCat("t", ++requests_);
  const std::int64_t longest = session->now.Longest();
  asked.length = OneIn(2) ? longest - std::min<std::int64_t>(longest, Draw(0, 20))
                          : Draw(0, longest + (OneIn(8) ? 1 : 0));
  if (OneIn(12) || session->now.Events() > kMostEvents) asked.length = 0;
  const bool wrong = OneIn(10);
  if (wrong) ++asked.generation;
  if (again) asked = *session->now.last_truncate;
  const std::int64_t least = store_->Get(id)->min_truncate_length;
  const auto info = store_->Truncate(id, asked.request_id, asked.generation, asked.length);
  Note(id, absl::StrCat(again ? "truncate again to " : "truncate to ", asked.length, " (",
                        asked.request_id,
                        "): ", info.status().ToString(absl::StatusToStringMode::kWithNoExtraData)));
  Refusal refusal = CutRefusal(asked.length, longest, least);
  if (wrong) refusal = {absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"};
  if (again) refusal = {};
  ExpectRefusal(info.status(), refusal);
  if (info.ok() && !again) {
    Began(info->generation, session);
    const std::uint64_t next = NewSeed();
    session->now.Truncate(asked, next);
    for (SessionState& state : session->in_file) {
      if (state.IsToldOf(asked, session->shape)) state.Truncate(asked, next);
    }
    MayBeWritten(session);
  }
  ExpectSession(id);
}

StoreDriver::Refusal StoreDriver::ForkRefusal(const ForkItem& item, bool again) {
  if (again) return {};
  if (Find(item.session) != nullptr && !item.replace) {
    return {absl::StatusCode::kAlreadyExists, "SESSION_EXISTS"};
  }
  const ModelSession* const source = Find(item.source);
  if (source == nullptr) return {absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"};
  if (item.generation != source->generation) {
    return {absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"};
  }
  const std::int64_t committed = source->now.Committed();
  return CutRefusal(item.length.value_or(committed), committed,
                    store_->Get(item.source)->min_truncate_length);
}

void StoreDriver::PlanFork(ForkItem* item) {
  item->source = DrawId();
  item->session = DrawId();
  item->request_id = absl::StrCat("f", ++requests_);
  item->replace = OneIn(2);
  const ModelSession* const source = Find(item->source);
  if (source == nullptr) return;
  item->generation = source->generation + (OneIn(12) ? 1 : 0);
  const std::int64_t committed = source->now.Committed();
  if (OneIn(2)) item->length = Draw(0, committed + (OneIn(8) ? 1 : 0));
}

ModelSession StoreDriver::ForkOf(const ForkItem& item) {
  const ModelSession& source = sessions_.at(item.source);
  ModelSession fork{.shape = {.kind = source.shape.kind, .prompt = -1},
                    .request_id = item.request_id,
                    .digest = "fork",
                    .forked_by = item};
  fork.now = source.now.Fork(item.length.value_or(source.now.Committed()), NewSeed());
  return fork;
}

void StoreDriver::Fork() {
  std::vector<ForkItem> items(OneIn(3) ? 3 : 1);
  std::vector<Refusal> refusals;
  std::vector<bool> repeats;
  for (std::size_t i = 0; i < items.size(); ++i) {
    PlanFork(&items[i]);
    const ModelSession* const there = Find(items[i].session);
    const bool again = there != nullptr && there->forked_by && OneIn(3);
    if (again) items[i] = *there->forked_by;
    repeats.push_back(again);
    refusals.push_back(ForkRefusal(items[i], again));
    for (std::size_t j = 0; j < i; ++j) {
      if (items[j].session != items[i].session) continue;
      refusals[i] = {absl::StatusCode::kInvalidArgument, "INVALID_FIELD"};
    }
  }
  // All sources as they are before the first fork is put in its place.
  std::vector<ModelSession> forks(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (refusals[i].code == absl::StatusCode::kOk && !repeats[i]) forks[i] = ForkOf(items[i]);
  }
  const std::int64_t used = UsedBytes();
  store_->Fork(items);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ForkItem& item = items[i];
    Note(item.session,
         absl::StrCat("fork of ", item.source, " to ", item.length.value_or(-1),
                      repeats[i] ? " again: " : ": ",
                      item.status.ToString(absl::StatusToStringMode::kWithNoExtraData)));
    // Those before it may have taken what there was.
    if (MayLack(item.status, used, 16 << 10) || !item.status.ok()) {
      if (!absl::IsResourceExhausted(item.status)) ExpectRefusal(item.status, refusals[i]);
      ExpectSession(item.session);
      continue;
    }
    ExpectRefusal(item.status, refusals[i]);
    if (!repeats[i]) {
      Began(item.info.generation, &forks[i]);
      MayBeWritten(&forks[i]);
      sessions_[item.session] = std::move(forks[i]);
    }
    ExpectSession(item.session);
  }
}

void StoreDriver::Look() {
  const std::string id = DrawId();
  ExpectSession(id);
  const auto config = store_->ConfigOf(id);
  const auto stats = store_->StatsOf(id, 1);
  EXPECT_FALSE(store_->StatsOf(id, 99));
  ASSERT_EQ(config.ok(), Find(id) != nullptr);
  ASSERT_EQ(stats.has_value(), Find(id) != nullptr);
  if (stats) {
    EXPECT_EQ(stats->length, Find(id)->now.layers[1].length());
  }
  if (OneIn(4)) ExpectList();
  // So that it is known again what the files have.
  for (auto& [each, session] : sessions_) {
    if (session.in_file.size() < 40) continue;
    EXPECT_TRUE(store_->Checkpoint(each, 0).ok());
    session.SetFile(session.now);
  }
}

void StoreDriver::ExpectList() {
  const std::vector<SessionInfo> infos = store_->List("", 100, options_.name);
  ASSERT_EQ(infos.size(), sessions_.size());
  for (const SessionInfo& info : infos) ExpectLike(info.config->id, info);
  if (infos.size() > 1) {
    const auto rest = store_->List(infos[0].config->id, 1, options_.name);
    ASSERT_EQ(rest.size(), 1);
    EXPECT_EQ(rest[0].config->id, infos[1].config->id);
  }
}

void StoreDriver::BeforeSettle() {
  sealed_.clear();
  for (const auto& [id, session] : sessions_) {
    const SessionInfo info = *store_->Get(id);
    for (const LayerStats& layer : info.layers) {
      sealed_[id].emplace_back(layer.sealed_tokens, layer.kept_from);
    }
  }
}

void StoreDriver::AfterSettle() {
  for (auto& [id, session] : sessions_) {
    const SessionInfo info = *store_->Get(id);
    for (std::size_t i = 0; i < info.layers.size(); ++i) {
      // What is sealed may be freed at once, and what before was shared too.
      const LayerStats& layer = info.layers[i];
      if (std::pair(layer.sealed_tokens, layer.kept_from) == sealed_[id][i]) continue;
      EXPECT_GT(layer.sealed_tokens + layer.kept_from, sealed_[id][i].first + sealed_[id][i].second)
          << id;
      EXPECT_TRUE(session.now.StepIsComplete()) << id;
      session.now.layers[i].Settle(kModelRollback);
      MayBeWritten(&session);  // one layer is settled after the other
    }
    ExpectSession(id);
  }
}

void StoreDriver::Settle() {
  if (!options_.settles) return;
  BeforeSettle();
  store_->Settle();
  Note("", "settle");
  AfterSettle();
}

void StoreDriver::DeleteAll() {
  for (const auto& [id, session] : sessions_) {
    EXPECT_EQ(store_->Delete(id, session.generation), absl::OkStatus());
  }
  sessions_.clear();
  ExpectList();
}

}  // namespace oscarkv
