// How sessions become files, and files sessions.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/kernel_status.h"
#include "server/session/session_export.h"
#include "server/session/session_import.h"
#include "server/session/session_store_impl.h"

namespace oscarkv {

absl::StatusOr<std::unique_ptr<SessionExport>> SessionStore::Impl::Export(
    std::string_view id, std::uint64_t generation) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  auto copy =
      std::make_shared<Session>(*session.config(), session.generation(), &budget_, &logical_bytes_);
  SessionFields fields{.config = *session.config(), .create_time = session.Info().create_time};
  SessionCommit commit;
  {
    session.NoteUse();
    const AloneInGate alone(&session.gate());
    if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
    if (absl::Status s = tiers_.Restore(&session); !s.ok()) return s;
    const auto share = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(session.gate()) {
      return session.Share(copy.get());
    };
    absl::Status s = tiers_.WithRoom(tiers_.usual_room(), Tiers::Wait::kForRoom, share);
    if (!s.ok()) return s;
    commit = session.CommitAt(absl::Now());
  }
  return SessionExport::Begin(std::move(fields), std::move(commit), std::move(copy), backend_);
}

std::unique_ptr<SessionImport> SessionStore::Impl::Import(ImportOptions options) {
  const std::optional<Retention> retention = options.retention;
  return std::make_unique<SessionImport>(
      std::move(options), std::make_unique<SessionLoader>(backend_, &pool_, &budget_),
      [this](absl::FunctionRef<absl::Status()> attempt) {
        return tiers_.WithRoom(tiers_.usual_room(), Tiers::Wait::kForRoom, attempt);
      },
      [this, retention](SessionConfig config, const SessionFileState& state,
                        SessionLoader* loader) {
        return PutImported(std::move(config), retention, state, loader);
      });
}

absl::StatusOr<SessionInfo> SessionStore::Impl::PutImported(
    SessionConfig config, const std::optional<Retention>& retention, const SessionFileState& state,
    SessionLoader* loader) {
  if (const auto other = sessions_.Find(config.id)) return Repeated(config, *other);
  if (absl::Status s = CheckUsable(config.id); !s.ok()) return s;
  const auto session =
      std::make_shared<Session>(std::move(config), NewGeneration(), &budget_, &logical_bytes_);
  if (absl::Status s = ReserveFor(session.get()); !s.ok()) return s;
  session->CountFor(tenants_.Of(session->config()->tenant));
  if (session->tenant()->is_full()) tiers_.KeepToQuotas({});
  if (absl::Status s = session->tenant()->Check(); !s.ok()) return s;
  absl::Status loaded = tiers_.WithRoom(tiers_.usual_room(), Tiers::Wait::kForRoom, [&] {
    const AloneInGate alone(&session->gate());
    return session->Load(state, loader);
  });
  if (!loaded.ok()) return loaded;
  if (retention) session->InitRetention(*retention);
  if (const auto other = sessions_.Insert(session)) return Repeated(*session->config(), *other);
  const InGate in_gate(&session->gate());
  if (!session->deleted()) prefixes_.Add(session);
  return session->Info();
}

void SessionStore::Impl::GoOnAbove(std::uint64_t generation) {
  if (next_generation_ > generation) return;
  // Not the next one: the server may have given out more since that file's last commit.
  constexpr std::uint64_t kBlock = 1 << 24;
  std::random_device device;
  next_generation_ = (generation / kBlock + 1 + device() % 65536) * kBlock + 1;
}

absl::StatusOr<RecoveryReport> SessionStore::Impl::Recover() {
  RecoveryReport report;
  absl::Status s = disk_->SyncFound();
  if (!s.ok()) return s;
  s = data_dir_->Scan([&](const ScannedFile& file) {
    if (file.found != FoundFile::kSession) {
      report.remarks.push_back(file.contents.ok() ? absl::StrCat(file.path, ": no session file")
                                                  : std::string(file.contents.status().message()));
      return;
    }
    const SessionFileContents& contents = *file.contents;
    if (contents.tail_bytes > 0) {
      report.remarks.push_back(absl::StrCat(file.path, ": ", contents.tail_bytes,
                                            " bytes behind the last commit are ignored"));
    }
    GoOnAbove(contents.state.last_commit()->generation);
    const auto session =
        std::make_shared<Session>(contents.state.config(), NewGeneration(), &budget_,
                                  &logical_bytes_, contents.state.fields().create_time);
    if (!session->ReserveOwnMemory()) {
      report.remarks.push_back(absl::StrCat(file.path, ": the memory budget has no room for it"));
      data_dir_->Withhold(session->config()->id,
                          OutOfMemory("the memory budget has no room for it"));
      return;
    }
    session->CountFor(tenants_.Of(session->config()->tenant));
    disk_->Adopt(contents, session.get());
    sessions_.Insert(session);
    prefixes_.Add(session);
    ++report.sessions;
  });
  if (!s.ok()) return s;
  tiers_.Start();
  return report;
}

absl::StatusOr<SessionInfo> SessionStore::Impl::Move(std::string_view id, std::uint64_t generation,
                                                     TierMove move) {
  if (!disk_) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "the server has no data directory; expected one, by --data-dir",
                     {.reason = "NO_DATA_DIR"});
  }
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  session.AwaitFile();
  {
    const AloneInGate alone(&session.gate());
    if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
    absl::Status s;
    if (move == TierMove::kEvict) s = tiers_.Evict(&session);
    if (move == TierMove::kRestore) s = tiers_.Restore(&session);
    if (!s.ok()) return s;
  }
  if (move == TierMove::kCheckpoint) {
    if (absl::Status s = tiers_.Checkpoint(&session); !s.ok()) return s;
  }
  return session.Info();
}

}  // namespace oscarkv
