// What a driver does with files, and what it finds there after a crash.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/session/session_import.h"
#include "tests/server/session/model/store_driver.h"
#include "tests/server/support/error_details.h"

namespace oscarkv {

std::pair<std::uint64_t, StoreDriver::Refusal> StoreDriver::DrawMove(const ModelSession* session) {
  const std::uint64_t generation = session == nullptr ? 0 : session->generation;
  const std::int64_t draw = Draw(0, 11);
  if (!options_.files) return {generation, {absl::StatusCode::kFailedPrecondition, "NO_DATA_DIR"}};
  if (session == nullptr) return {0, {absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"}};
  if (draw == 0) {
    return {generation + 1, {absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"}};
  }
  return {draw < 6 ? 0 : generation, {}};
}

void StoreDriver::Evict() {
  const std::string id = DrawId();
  ModelSession* const session = Find(id);
  const auto [generation, refusal] = DrawMove(session);
  const auto info = store_->Evict(id, generation);
  Note(id,
       absl::StrCat("evict: ", info.status().ToString(absl::StatusToStringMode::kWithNoExtraData)));
  ExpectRefusal(info.status(), refusal);
  if (info.ok()) {
    if (options_.moves_when_told) {
      EXPECT_TRUE(info->evicted);
      EXPECT_EQ(info->resident_bytes, 0);
    }
    session->SetFile(session->now);
    EXPECT_EQ(info->durable_length, session->now.Committed());
  }
  ExpectSession(id);
}

void StoreDriver::Restore() {
  const std::string id = DrawId();
  const auto [generation, refusal] = DrawMove(Find(id));
  const auto info = store_->Restore(id, generation);
  Note(id, absl::StrCat("restore: ",
                        info.status().ToString(absl::StatusToStringMode::kWithNoExtraData)));
  ExpectRefusal(info.status(), refusal);
  if (info.ok() && options_.moves_when_told) {
    EXPECT_FALSE(info->evicted);
  }
  ExpectSession(id);
}

void StoreDriver::Checkpoint() {
  const std::string id = DrawId();
  ModelSession* const session = Find(id);
  const auto [generation, refusal] = DrawMove(session);
  const auto info = store_->Checkpoint(id, generation);
  Note(id, absl::StrCat("checkpoint: ",
                        info.status().ToString(absl::StatusToStringMode::kWithNoExtraData)));
  ExpectRefusal(info.status(), refusal);
  if (info.ok()) {
    session->SetFile(session->now);
    EXPECT_EQ(info->durable_length, session->now.Committed());
  }
  ExpectSession(id);
}

void StoreDriver::CheckpointAll() {
  // Of others too: who checks them knows of no more than that they may have been written.
  if (!options_.moves_when_told) return;
  EXPECT_EQ(store_->CheckpointAll(), absl::OkStatus());
  Note("", "checkpoint of all");
  if (!options_.files) return;
  for (auto& [id, session] : sessions_) {
    // Queries alone, and what was settled, are no change that asks for a checkpoint.
    const bool changed = !session.has_file || session.in_file.back().changes != session.now.changes;
    if (changed) session.SetFile(session.now);
    session.in_file.push_back(session.now);
    ExpectSession(id);
  }
}

void StoreDriver::Export() {
  const std::string id = DrawId();
  const ModelSession* const session = Find(id);
  const bool wrong = session != nullptr && OneIn(10);
  // What is being sealed ahead meanwhile may be done, and use less, after the refusal.
  const std::int64_t used = UsedBytes();
  auto made = store_->Export(id, wrong ? session->generation + 1 : 0);
  Note(id, absl::StrCat("export: ",
                        made.status().ToString(absl::StatusToStringMode::kWithNoExtraData)));
  if (session == nullptr || wrong) {
    ExpectRefusal(made.status(),
                  wrong ? Refusal{absl::StatusCode::kFailedPrecondition, "GENERATION_MISMATCH"}
                        : Refusal{absl::StatusCode::kNotFound, "SESSION_NOT_FOUND"});
    return;
  }
  // The copy's queries.
  if (!made.ok() && MayLack(made.status(), used, 16 << 10)) return;
  ASSERT_TRUE(made.ok()) << made.status();
  Exported exported{.shape = session->shape, .state = session->now, .serial = ++requests_};
  while (!(*made)->done()) {
    const auto bytes = (*made)->Next(static_cast<std::size_t>(Draw(1, 100000)));
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    exported.bytes.insert(exported.bytes.end(), bytes->begin(), bytes->end());
  }
  exports_.push_back(std::move(exported));
  if (exports_.size() > 3) exports_.pop_front();
  ExpectSession(id);
}

void StoreDriver::Import() {
  if (exports_.empty()) return;
  const std::string id = DrawId();
  const Exported& file = exports_[static_cast<std::size_t>(Draw(0, std::ssize(exports_) - 1))];
  ModelSession* const there = Find(id);
  const std::string digest = absl::StrCat("import ", file.serial);
  const bool again = there != nullptr && there->digest == digest && OneIn(2);
  ImportOptions import{.session = id,
                       .request_id = again ? there->request_id : absl::StrCat("i", ++requests_),
                       .tenant = {},
                       .model = {},
                       .model_revision = {},
                       .rope_digest = {}};
  std::vector<std::byte> bytes = file.bytes;
  const bool broken = OneIn(4);
  if (broken && OneIn(2))
    bytes.resize(static_cast<std::size_t>(Draw(0, std::ssize(bytes) - 1)));
  else if (broken) {
    bytes[static_cast<std::size_t>(Draw(0, std::ssize(bytes) - 1))] ^= std::byte{1 << 4};
  }
  const std::int64_t used = UsedBytes();
  const std::string request_id = import.request_id;
  absl::StatusOr<SessionInfo> info = absl::UnknownError("");
  {
    const auto made = store_->Import(std::move(import));
    absl::Status status = made->Push(bytes);
    info = status.ok() ? made->Finish() : absl::StatusOr<SessionInfo>(status);
  }
  Note(id, absl::StrCat(broken ? "import of a broken file: " : "import: ", file.serial, " ",
                        info.status().ToString(absl::StatusToStringMode::kWithNoExtraData)));
  if (broken) {
    EXPECT_FALSE(info.ok());
    ExpectSession(id);
    return;
  }
  if (MayLack(info.status(), used, (16 << 10) + 2 * std::ssize(bytes))) return;
  if (there != nullptr) {
    ExpectRefusal(info.status(),
                  again ? Refusal{} : Refusal{absl::StatusCode::kAlreadyExists, "SESSION_EXISTS"});
    ExpectSession(id);
    return;
  }
  ASSERT_TRUE(info.ok()) << info.status();
  ModelSession made{.shape = file.shape, .request_id = request_id, .digest = digest};
  Began(info->generation, &made);
  made.now = file.state;
  made.now.GoOnWith(made.shape, NewSeed());
  made.added = ++added_;
  MayBeWritten(&made);
  sessions_[id] = std::move(made);
  ExpectSession(id);
}

void StoreDriver::EvictAll() {
  for (auto& [id, session] : sessions_) {
    const auto info = store_->Evict(id, session.generation);
    ASSERT_TRUE(info.ok()) << info.status();
    session.SetFile(session.now);
    ExpectLike(id, *info);
  }
}

void StoreDriver::RestoreAll() {
  for (const auto& [id, session] : sessions_) {
    const auto info = store_->Restore(id, session.generation);
    ASSERT_TRUE(info.ok()) << info.status();
    ExpectLike(id, *info);
  }
}

std::map<std::string, std::int64_t> StoreDriver::DurableLengths() const {
  std::map<std::string, std::int64_t> durable;
  for (const auto& [id, session] : sessions_) durable[id] = store_->Get(id)->durable_length;
  return durable;
}

bool StoreDriver::TokensFit(const std::string& id, const ModelSession& session) {
  // The 16-bit layer tells.
  const absl::StatusOr<Tokens> tokens = ReadAll(*store_, id, 1);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  if (!tokens.ok()) return false;
  const SessionConfig& config = configs_[session.shape.kind];
  const LayerHistory& layer = session.now.layers[1];
  const std::int64_t kept_from = store_->Get(id)->layers[1].kept_from;
  for (std::int64_t t = kept_from; t < layer.length(); ++t) {
    const std::vector<std::uint16_t> key = SourceOf(config, 1, layer.SeedAt(t)).Keys(t, 1);
    if (!std::equal(key.begin(), key.end(), tokens->keys.begin() + t * 64)) return false;
  }
  return true;
}

void StoreDriver::RecoverSession(const SessionInfo& info, const ModelSession* before,
                                 const ModelSession* after, ModelSessions* found) {
  const std::string& id = info.config->id;
  std::vector<ModelSession> fitting;
  for (const ModelSession* known : {after, before}) {
    if (known == nullptr || known->request_id != info.config->request_id) continue;
    EXPECT_NE(info.generation, known->generation);
    // The latest first.
    for (auto state = known->in_file.rbegin(); state != known->in_file.rend(); ++state) {
      bool fits = state->Committed() == info.committed_length;
      for (std::size_t i = 0; i < kModelLayers; ++i) {
        fits = fits && state->layers[i].length() == info.layers[i].length;
      }
      const auto same = [&](const ModelSession& other) { return other.now.SameAs(*state); };
      if (!fits || std::any_of(fitting.begin(), fitting.end(), same)) continue;
      fitting.push_back(*known);
      fitting.back().SetFile(*state);
      fitting.back().now = *state;
    }
  }
  const bool surely = fitting.size() == 1;
  if (!surely || OneIn(2)) {
    std::erase_if(fitting, [&](const ModelSession& model) { return !TokensFit(id, model); });
  }
  if (!surely && fitting.size() > 1) {
    std::erase_if(fitting, [&](const ModelSession& model) { return !IsUndisturbed(id, model); });
  }
  Note(id, absl::StrCat("found with ", info.layers[0].length, " and ", info.layers[1].length));
  ASSERT_FALSE(fitting.empty()) << id << " was never like this: lengths " << info.layers[0].length
                                << " and " << info.layers[1].length;
  ModelSession session = fitting.front();
  // What can be told apart by no more than that.
  if (fitting.size() > 1) {
    for (LayerHistory& layer : session.now.layers) layer.ForgetLast();
    session.now.last_truncate.reset();
    session.SetFile(session.now);
  }
  session.generation = info.generation;
  session.now.GoOnWith(session.shape, NewSeed());
  session.added = ++added_;
  last_generation_ = std::max(last_generation_, info.generation);
  (*found)[id] = std::move(session);
}

void StoreDriver::Recover(const ModelSessions& before,
                          const std::map<std::string, std::int64_t>& durable) {
  const auto find = [](const ModelSessions& sessions, const std::string& id) {
    const auto it = sessions.find(id);
    return it == sessions.end() ? nullptr : &it->second;
  };
  last_generation_ = 0;
  ModelSessions found;
  for (const SessionInfo& info : store_->List("", 100, options_.name)) {
    const std::string& id = info.config->id;
    RecoverSession(info, find(before, id), find(sessions_, id), &found);
    const auto least = durable.find(id);
    if (least != durable.end()) {
      EXPECT_GE(info.committed_length, least->second) << id;
    }
    EXPECT_EQ(info.durable_length, info.committed_length);
  }
  for (const auto& [id, session] : sessions_) {
    const ModelSession* const old = find(before, id);
    const bool durable_all_along = session.has_file && old != nullptr && old->has_file;
    EXPECT_TRUE(!durable_all_along || found.contains(id)) << id << " was durable, and is gone";
  }
  sessions_ = std::move(found);
  ExpectList();
}

}  // namespace oscarkv
