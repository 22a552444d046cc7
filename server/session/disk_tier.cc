#include "server/session/disk_tier.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/session/item_check.h"
#include "server/session/session_loader.h"
#include "server/session/session_saver.h"

namespace oscarkv {
namespace {

// A file is written anew once so much of it counts no more.
bool IsWorthCompacting(const SessionFileState& state) {
  constexpr std::uint64_t kSlack = 1 << 20;
  return state.committed_end() > 2 * state.live_bytes() + kSlack;
}

// Whether the file's last commit says the same; at whatever time.
bool IsSameCommit(const SessionFileState& state, SessionCommit commit) {
  if (!state.last_commit()) return false;
  commit.time = state.last_commit()->time;
  return commit == *state.last_commit();
}

std::int64_t CommittedLength(const SessionCommit& commit) {
  const auto least = std::min_element(
      commit.layers.begin(), commit.layers.end(),
      [](const LayerCommit& a, const LayerCommit& b) { return a.length < b.length; });
  return least == commit.layers.end() ? 0 : least->length;
}

absl::Status SaveLayers(const std::vector<LayerState*>& layers, std::int64_t unchanged_to,
                        Backend* backend, SessionFileWriter* writer) {
  return SessionSaver({layers.begin(), layers.end()}, unchanged_to, backend, writer).All();
}

}  // namespace

DiskTier::DiskTier(DataDir* dir, Durability durability, Backend* backend, BlockPool* pool,
                   MemoryBudget* budget)
    : dir_(dir), durability_(durability), backend_(backend), pool_(pool), budget_(budget) {}

// Not analyzed: the file's lock outlives the stay in the gate, in which it is taken.
absl::Status DiskTier::Checkpoint(Session* session) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::atomic<std::int64_t> not_counted{0};  // the same tokens as the session's
  Session copy(*session->config(), session->generation(), budget_, &not_counted);
  SessionCommit commit;
  std::optional<MutexLock> file_lock;
  std::optional<Unsaved> unsaved;
  session->AwaitFile();
  {
    const AloneInGate alone(&session->gate());
    if (session->deleted()) return absl::OkStatus();
    if (session->evicted()) return SaveRetention(session);
    file_lock.emplace(&session->file_mutex());
    if (IsSuperseded(*session)) return absl::OkStatus();
    const absl::Status shared = session->Share(&copy);
    commit = session->CommitAt(absl::Now());
    unsaved.emplace(session);
    // Without memory for the copy, requests wait until all is written.
    if (absl::IsResourceExhausted(shared)) {
      return Save(session->Layers(), commit, &*unsaved, session);
    }
    if (!shared.ok()) return shared;
  }
  return Save(copy.Layers(), commit, &*unsaved, session);
}

absl::Status DiskTier::SaveRetention(Session* session) {
  MutexLock file_lock(&session->file_mutex());
  std::optional<SessionFileState>& state = session->file().state;
  if (!state || state->last_commit()->retention == session->retention()) return absl::OkStatus();
  SessionCommit commit = *state->last_commit();
  commit.generation = session->generation();
  commit.time = absl::Now();
  commit.retention = session->retention();
  // Whatever becomes of the commit, the tokens are where this says: the session has them nowhere
  // else.
  SessionFileState before = *state;
  absl::Status s = Extend(
      commit, [](SessionFileWriter*) { return absl::OkStatus(); }, session);
  if (!state) state = std::move(before);
  return s;
}

absl::Status DiskTier::Evict(Session* session) {
  if (session->evicted()) return absl::OkStatus();
  MutexLock file_lock(&session->file_mutex());
  if (IsSuperseded(*session)) return SessionNotFound(session->config()->id);
  Unsaved unsaved(session);
  absl::Status s = Save(session->Layers(), session->CommitAt(absl::Now()), &unsaved, session);
  if (s.ok()) session->Evict(*session->file().state);
  return s;
}

absl::Status DiskTier::Truncate(const TruncateRecord& asked, std::uint64_t new_generation,
                                Session* session) {
  MutexLock file_lock(&session->file_mutex());
  const std::optional<SessionFileState>& state = session->file().state;
  if (!state) return RemoveOwned(session, nullptr);
  const SessionCommit& last = *state->last_commit();
  const auto is_longer = [&asked](const FileLayer& layer) { return layer.length() > asked.length; };
  const auto is_dropped = [&](const PrefixKey& prefix) {
    return asked.length < prefix.length && prefix.length <= last.prefix_limit;
  };
  const std::vector<PrefixKey>& prefixes = session->config()->prefix_keys;
  if (std::none_of(state->layers().begin(), state->layers().end(), is_longer) &&
      std::none_of(prefixes.begin(), prefixes.end(), is_dropped)) {
    return absl::OkStatus();
  }
  SessionCommit commit{.generation = new_generation,
                       .time = absl::Now(),
                       .retention = session->retention(),
                       .prefix_limit = std::min(last.prefix_limit, asked.length)};
  if (!asked.request_id.empty()) commit.last_truncate = asked;
  for (const LayerCommit& layer : last.layers) {
    commit.layers.push_back({.length = std::min(layer.length, asked.length)});
  }
  session->SetDurableLength(CommittedLength(commit));  // also if it fails: it may be on the disk
  absl::Status s = Extend(
      commit,
      [&](SessionFileWriter* writer) {
        absl::Status added;
        for (std::size_t i = 0; added.ok() && i < writer->state().layers().size(); ++i) {
          if (is_longer(writer->state().layers()[i])) added = writer->Truncate(i, asked.length);
        }
        return added;
      },
      session);
  return absl::IsNotFound(s) ? RemoveOwned(session, nullptr) : s;
}

absl::Status DiskTier::Restore(Session* session) {
  if (!session->evicted()) return absl::OkStatus();
  MutexLock file_lock(&session->file_mutex());
  if (!session->file().state) return SessionNotFound(session->config()->id);  // superseded
  const SessionFileState& state = *session->file().state;
  const std::string path = dir_->PathOf(session->config()->id);
  absl::StatusOr<std::unique_ptr<PosixFile>> file = PosixFile::Open(path, dir_->calls());
  if (absl::IsNotFound(file.status())) return FileDamaged(0, "no file", path);
  if (!file.ok()) return file.status();
  SessionLoader loader(backend_, pool_, budget_);
  if (absl::Status s = loader.TakeAll(**file, state); !s.ok()) return s;
  read_bytes_.fetch_add(static_cast<std::int64_t>(state.live_bytes()));
  return session->Load(state, &loader);
}

absl::Status DiskTier::Remove(Session* session) {
  MutexLock file_lock(&session->file_mutex());
  return RemoveOwned(session, nullptr);
}

absl::Status DiskTier::Supersede(Session* old, const Session* successor) {
  MutexLock file_lock(&old->file_mutex());
  return RemoveOwned(old, successor);
}

absl::Status DiskTier::RemoveOwned(Session* session, const Session* successor) {
  const std::string& id = session->config()->id;
  const auto forget = [session]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    session->file().state.reset();
    session->SetDurableLength(0);
  };
  // If it fails, the file may be gone or not, and the session, which stays, needs another; but one
  // that is evicted has nothing else.
  if (!session->evicted()) {
    forget();
    session->NoteChange();
  }
  absl::Status s;
  {
    MutexLock lock(&owners_mutex_);
    const auto owner = owners_.find(id);
    const bool owns = owner != owners_.end() && owner->second == session;
    if (owns) s = dir_->Remove(id, durability_);
    if (absl::IsNotFound(s)) s = absl::OkStatus();
    if (s.ok() && successor) {
      owners_[id] = successor;
    } else if (s.ok() && owns) {
      owners_.erase(owner);
    }
  }
  if (s.ok()) forget();
  return s;
}

bool DiskTier::IsSuperseded(const Session& session) {
  MutexLock lock(&owners_mutex_);
  const auto owner = owners_.find(session.config()->id);
  return owner != owners_.end() && owner->second != &session;
}

std::int64_t DiskTier::LiveBytes(Session* session) const {
  MutexLock file_lock(&session->file_mutex());
  const std::optional<SessionFileState>& state = session->file().state;
  return state ? static_cast<std::int64_t>(state->live_bytes()) : 0;
}

absl::Status DiskTier::SyncFound() {
  return durability_ == Durability::kSynced ? dir_->SyncAll() : absl::OkStatus();
}

void DiskTier::Adopt(const SessionFileContents& contents, Session* session) {
  const AloneInGate alone(&session->gate());
  MutexLock file_lock(&session->file_mutex());
  session->file().state = contents.state;
  session->TakeCommit(*contents.state.last_commit());
  session->Evict(contents.state);
  session->SetDurableLength(CommittedLength(*contents.state.last_commit()));
  session->NoteSaved(session->changes(), std::chrono::steady_clock::now());
  const SessionCommit& commit = *contents.state.last_commit();
  // It was in use then; clocks may have been set since.
  const absl::Duration idle = std::max(absl::Now() - commit.time, absl::ZeroDuration());
  session->SetLastUse(std::chrono::steady_clock::now() - absl::ToChronoNanoseconds(idle));
  MutexLock lock(&owners_mutex_);
  owners_[session->config()->id] = session;
}

absl::Status DiskTier::Save(const std::vector<LayerState*>& layers, const SessionCommit& commit,
                            Unsaved* unsaved, Session* session) {
  absl::Status s = Write(layers, commit, unsaved->unchanged_to(), session);
  if (!s.ok()) return s;
  unsaved->SetSaved();
  session->SetDurableLength(CommittedLength(commit));
  return s;
}

absl::Status DiskTier::Write(const std::vector<LayerState*>& layers, const SessionCommit& commit,
                             std::int64_t unchanged_to, Session* session) {
  const std::optional<SessionFileState>& state = session->file().state;
  // The file is of a later generation where a truncate got no further than there.
  if (!state || state->last_commit()->generation > commit.generation) {
    return WriteNewFile(layers, commit, session);
  }
  if (IsWorthCompacting(*state)) {
    absl::Status s = WriteNewFile(layers, commit, session);
    // The disk may have no room for two, but for what is new.
    if (!absl::IsResourceExhausted(s) || !state) return s;
  }
  absl::Status s = Extend(
      commit,
      [&](SessionFileWriter* writer) { return SaveLayers(layers, unchanged_to, backend_, writer); },
      session);
  return absl::IsNotFound(s) ? WriteNewFile(layers, commit, session) : s;
}

absl::Status DiskTier::Extend(const SessionCommit& commit,
                              absl::FunctionRef<absl::Status(SessionFileWriter*)> add,
                              Session* session) {
  std::optional<SessionFileState>& state = session->file().state;
  auto file = OpenBehindCommit(session);
  if (!file.ok()) return file.status();
  SessionFileWriter writer(*state, file->get());
  const std::uint64_t end = state->committed_end();
  // Until it is known how this ends it is not known what the file has.
  std::optional<SessionFileState> before;
  before.swap(state);
  absl::Status s = add(&writer);
  if (s.ok() && writer.size() == end && IsSameCommit(*before, commit)) {
    before.swap(state);
    return s;
  }
  s.Update(writer.Commit(commit, durability_));
  if (s.ok()) s = (*file)->Close();
  if (s.ok()) {
    CountWritten(writer.size() - end);
    state = std::move(writer).TakeState();
    return s;
  }
  // What was written may be a commit that nobody is told of, and takes room: away with it.
  absl::Status cut = (*file)->Cut(end);
  if (cut.ok() && durability_ == Durability::kSynced) cut = (*file)->Sync();
  if (cut.ok()) before.swap(state);
  return s;
}

absl::StatusOr<std::unique_ptr<PosixFile>> DiskTier::OpenBehindCommit(Session* session) {
  const std::uint64_t end = session->file().state->committed_end();
  auto file = PosixFile::Open(dir_->PathOf(session->config()->id), dir_->calls());
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::uint64_t> size = (*file)->Size();
  if (!size.ok()) return size.status();
  if (*size < end) return absl::NotFoundError((*file)->path());
  // Behind the last commit there may be what a checkpoint that failed has left.
  if (absl::Status s = (*file)->Cut(end); !s.ok()) return s;
  return file;
}

absl::Status DiskTier::WriteNewFile(const std::vector<LayerState*>& layers,
                                    const SessionCommit& commit, Session* session) {
  const std::string path = dir_->TemporaryPathOf(session->config()->id);
  absl::Status s = RemoveFile(path, dir_->calls());  // of one that failed
  if (!s.ok() && !absl::IsNotFound(s)) return s;
  absl::StatusOr<SessionFileState> written = WriteTemporary(path, layers, commit, *session);
  s = written.status();
  if (s.ok()) {
    session->file().state.reset();  // if publishing fails it is not known which file has the name
    s = Publish(*session);
  }
  if (s.ok()) {
    session->file().state = *std::move(written);
  } else {
    RemoveFile(path, dir_->calls()).IgnoreError();  // it takes room
  }
  return s;
}

absl::StatusOr<SessionFileState> DiskTier::WriteTemporary(const std::string& path,
                                                          const std::vector<LayerState*>& layers,
                                                          const SessionCommit& commit,
                                                          const Session& session) {
  auto file = PosixFile::Create(path, dir_->calls());
  if (!file.ok()) return file.status();
  SessionFields fields{.config = *session.config(), .create_time = session.Info().create_time};
  auto writer = SessionFileWriter::Create(std::move(fields), dir_->NewFileId(), file->get());
  if (!writer.ok()) return writer.status();
  absl::Status s = SaveLayers(layers, 0, backend_, writer->get());
  s.Update((*writer)->Commit(commit, durability_));
  s.Update((*file)->Close());
  if (!s.ok()) return s;
  CountWritten((*writer)->size());
  return std::move(**writer).TakeState();
}

absl::Status DiskTier::Publish(const Session& session) {
  MutexLock lock(&owners_mutex_);
  owners_[session.config()->id] = &session;  // also if it fails: the file may have its name by then
  return dir_->Publish(session.config()->id, durability_);
}

}  // namespace oscarkv
