#include "server/session/session_store.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/kernel_status.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/batch.h"
#include "server/session/disk_tier.h"
#include "server/session/item_check.h"
#include "server/session/prefix_index.h"
#include "server/session/preparer.h"
#include "server/session/session.h"
#include "server/session/session_export.h"
#include "server/session/session_import.h"
#include "server/session/session_table.h"
#include "server/session/settler.h"
#include "server/session/tiers.h"

namespace oscarkv {

namespace {

// Whether tokens of one are what the same tokens are in the other.
bool AreAlike(const SessionConfig& a, const SessionConfig& b) {
  return a.tenant == b.tenant && a.model == b.model && a.model_revision == b.model_revision &&
         a.rope_digest == b.rope_digest && a.storage == b.storage &&
         a.position_base == b.position_base && a.layers == b.layers &&
         a.value_folded == b.value_folded;
}

// For who is in the session's gate: whether it is there, and of that generation; 0: of any.
absl::Status CheckNamed(const Session& session, std::uint64_t generation) {
  if (session.deleted()) return SessionNotFound(session.config()->id);
  const std::uint64_t current = session.generation();
  if (generation == 0 || generation == current) return absl::OkStatus();
  return GenerationMismatch(generation, current, session.Info().committed_length);
}

}  // namespace

enum class TierMove : std::uint8_t { kEvict, kRestore, kCheckpoint };

// Members end in reverse order: the threads first, then the sessions, then what they stand on.
class SessionStore::Impl {
 public:
  Impl(Backend* backend, const StoreOptions& options)
      : backend_(backend),
        budget_(options.memory_budget_bytes),
        pool_(backend, &budget_),
        next_generation_(options.first_generation),
        disk_(options.data_dir ? std::make_unique<DiskTier>(options.data_dir, options.durability,
                                                            backend, &pool_, &budget_)
                               : nullptr),
        data_dir_(options.data_dir),
        tiers_(options, &sessions_, disk_.get(), &budget_),
        preparer_(backend, &pool_, &budget_, options.prepared_pages),
        settler_(context(), options.settle_after) {
    if (options.prepared_pages > 0) preparer_.Start();
  }

  absl::StatusOr<SessionInfo> Create(SessionConfig config);
  absl::StatusOr<std::shared_ptr<Session>> Find(std::string_view id) const;
  absl::Status Delete(std::string_view id, std::uint64_t generation);
  absl::StatusOr<SessionInfo> Truncate(std::string_view id, const TruncateRecord& asked);
  void Fork(std::span<ForkItem> items);
  absl::Status Read(const std::shared_ptr<const SessionConfig>& config, std::uint64_t generation,
                    int layer, const ReadItem& request);
  absl::StatusOr<std::unique_ptr<SessionExport>> Export(std::string_view id,
                                                        std::uint64_t generation);
  std::unique_ptr<SessionImport> Import(ImportOptions options);
  absl::StatusOr<RecoveryReport> Recover();
  absl::StatusOr<SessionInfo> Move(std::string_view id, std::uint64_t generation, TierMove move);
  absl::Status CheckpointAll() { return tiers_.CheckpointAll(); }
  void RunBatch(std::span<BatchItem* const> items, BatchKind kind);
  StoreTotals Totals() const;

  const SessionTable& sessions() const { return sessions_; }
  Settler& settler() { return settler_; }
  BatchContext context() {
    return {.sessions = &sessions_,
            .backend = backend_,
            .pool = &pool_,
            .budget = &budget_,
            .preparer = &preparer_,
            .tiers = disk_ ? &tiers_ : nullptr};
  }

 private:
  // The answer to a create of a session that is there.
  static absl::StatusOr<SessionInfo> Repeated(const SessionConfig& asked, const Session& other);
  absl::StatusOr<SessionInfo> PutImported(SessionConfig config, const SessionFileState& state,
                                          SessionLoader* loader);
  // Makes `session`, which is empty, a fork of the session with the longest prefix that it names.
  void ReusePrefix(Session* session);
  // The session that the item asks for, for nobody to find yet. Null: it is there, see item->info.
  absl::StatusOr<std::shared_ptr<Session>> MakeFork(ForkItem* item);
  absl::Status PutInPlace(std::shared_ptr<Session> fork, ForkItem* item);
  bool ReserveFor(Session* session) {
    return session->ReserveOwnMemory() ||
           (Tiers::Patience(&tiers_).TryAgain(tiers_.usual_room()) && session->ReserveOwnMemory());
  }
  absl::Status NoRoomForSession() const {
    return OutOfMemory(absl::StrCat("the memory budget of ", budget_.total(),
                                    " bytes has no room for another session"));
  }
  std::uint64_t NewGeneration() { return next_generation_.fetch_add(1); }
  // From now on all are above one that a file has: those of a file ascend.
  void GoOnAbove(std::uint64_t generation);

  Backend* const backend_;
  MemoryBudget budget_;
  BlockPool pool_;
  std::atomic<std::uint64_t> next_generation_;
  std::atomic<std::int64_t> logical_bytes_{0};  // of all sessions
  SessionTable sessions_;
  PrefixIndex prefixes_;
  const std::unique_ptr<DiskTier> disk_;
  DataDir* const data_dir_;
  Tiers tiers_;
  Preparer preparer_;
  Settler settler_;
};

absl::StatusOr<SessionInfo> SessionStore::Impl::Create(SessionConfig config) {
  // A repeat needs no memory.
  if (const auto other = sessions_.Find(config.id)) return Repeated(config, *other);
  const auto session =
      std::make_shared<Session>(std::move(config), NewGeneration(), &budget_, &logical_bytes_);
  if (!ReserveFor(session.get())) return NoRoomForSession();
  ReusePrefix(session.get());
  if (const auto other = sessions_.Insert(session)) return Repeated(*session->config(), *other);
  const InGate in_gate(&session->gate());  // where it is not deleted meanwhile
  if (!session->deleted()) prefixes_.Add(session);
  return session->Info();
}

void SessionStore::Impl::ReusePrefix(Session* session) {
  const SessionConfig& config = *session->config();
  for (auto prefix = config.prefix_keys.rbegin(); prefix != config.prefix_keys.rend(); ++prefix) {
    for (const auto& holder : prefixes_.Find(config.tenant, prefix->key)) {
      if (!AreAlike(*holder->config(), config)) continue;
      // Cheaper than to compute the prefix again.
      if (!tiers_.EnsureResident(holder.get()).ok()) continue;
      const InGate in_gate(&holder->gate());
      if (holder->deleted() || holder->evicted() || !holder->HoldsPrefix(prefix->length)) continue;
      if (holder->LendPrefix(prefix->length, session)) return;
    }
  }
}

absl::StatusOr<SessionInfo> SessionStore::Impl::Repeated(const SessionConfig& asked,
                                                         const Session& other) {
  const SessionConfig& there = *other.config();
  if (asked.request_id == there.request_id && asked.content_digest == there.content_digest) {
    return other.Info();
  }
  return MakeError(
      absl::StatusCode::kAlreadyExists,
      absl::StrCat("session \"", asked.id, "\" exists, made by another request"),
      {.reason = "SESSION_EXISTS", .metadata = {{"field", "session"}, {"value", asked.id}}});
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::Impl::Find(std::string_view id) const {
  std::shared_ptr<Session> session = sessions_.Find(id);
  if (!session) return SessionNotFound(id);
  return session;
}

absl::Status SessionStore::Impl::Delete(std::string_view id, std::uint64_t generation) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  const AloneInGate alone(&session.gate());
  if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
  if (disk_) {
    if (absl::Status s = disk_->Remove(&session); !s.ok()) return s;
  }
  session.Delete();
  prefixes_.Remove(session);
  sessions_.Erase(session);  // a fork may have taken its place
  return absl::OkStatus();
}

absl::StatusOr<SessionInfo> SessionStore::Impl::Truncate(std::string_view id,
                                                         const TruncateRecord& asked) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  const AloneInGate alone(&session.gate());
  if (session.deleted()) return SessionNotFound(id);
  const SessionInfo info = session.Info();
  if (session.IsRepeat(asked)) return info;
  if (asked.generation != info.generation) {
    return GenerationMismatch(asked.generation, info.generation, info.committed_length);
  }
  std::int64_t longest = 0;
  for (const LayerStats& layer : info.layers) longest = std::max(longest, layer.length);
  absl::Status status = CheckKept(asked.length, longest, info);
  if (status.ok()) status = tiers_.Restore(&session);
  const std::uint64_t new_generation = NewGeneration();
  if (status.ok() && disk_) status = disk_->Truncate(asked, new_generation, &session);
  if (!status.ok()) return status;
  session.Truncate(asked, new_generation);
  session.NoteChange();
  return session.Info();
}

void SessionStore::Impl::Fork(std::span<ForkItem> items) {
  std::vector<std::shared_ptr<Session>> forks(items.size());
  absl::btree_set<std::string> ids;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!ids.insert(items[i].session).second) {
      items[i].status =
          InvalidField("session", items[i].session, "an id that no other item of the request has");
      continue;
    }
    absl::StatusOr<std::shared_ptr<Session>> fork = MakeFork(&items[i]);
    items[i].status = fork.status();
    if (fork.ok()) forks[i] = *std::move(fork);
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (forks[i]) items[i].status = PutInPlace(std::move(forks[i]), &items[i]);
  }
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::Impl::MakeFork(ForkItem* item) {
  // What tells it from other requests, where its id is taken.
  const std::string digest =
      absl::StrCat("fork ", item->source, " ", item->generation, " ", item->length.value_or(-1));
  if (const auto other = sessions_.Find(item->session)) {
    SessionConfig asked;
    asked.id = item->session;
    asked.request_id = item->request_id;
    asked.content_digest = digest;
    absl::StatusOr<SessionInfo> info = Repeated(asked, *other);
    if (info.ok()) {
      item->info = *std::move(info);
      return nullptr;
    }
    if (!item->replace) return info.status();
  }

  const absl::StatusOr<std::shared_ptr<Session>> found = Find(item->source);
  if (!found.ok()) return found.status();
  Session& source = **found;
  SessionConfig config = *source.config();
  config.id = item->session;
  config.request_id = item->request_id;
  config.content_digest = digest;
  config.prefix_keys = {};
  auto fork =
      std::make_shared<Session>(std::move(config), NewGeneration(), &budget_, &logical_bytes_);
  if (!ReserveFor(fork.get())) return NoRoomForSession();

  const AloneInGate alone(&source.gate());
  if (source.deleted()) return SessionNotFound(item->source);
  const SessionInfo info = source.Info();
  if (item->generation != info.generation) {
    return GenerationMismatch(item->generation, info.generation, info.committed_length);
  }
  const std::int64_t length = item->length.value_or(info.committed_length);
  absl::Status status = CheckKept(length, info.committed_length, info);
  if (status.ok()) status = tiers_.Restore(&source);
  if (!status.ok()) return status;
  status = source.Fork(length, fork.get());
  if (!status.ok()) return status;
  fork->NoteChange();
  return fork;
}

absl::Status SessionStore::Impl::PutInPlace(std::shared_ptr<Session> fork, ForkItem* item) {
  item->info = fork->Info();
  if (!item->replace) {
    const auto other = sessions_.Insert(fork);
    if (!other) return absl::OkStatus();
    absl::StatusOr<SessionInfo> info = Repeated(*fork->config(), *other);
    if (info.ok()) item->info = *info;
    return info.status();
  }
  const std::shared_ptr<Session> known = sessions_.Find(item->session);
  if (known && disk_) {
    if (absl::Status s = disk_->Supersede(known.get(), fork.get()); !s.ok()) return s;
  }
  const std::shared_ptr<Session> old = sessions_.Replace(std::move(fork));
  if (!old) return absl::OkStatus();
  const AloneInGate alone(&old->gate());
  prefixes_.Remove(*old);
  if (old->deleted()) return absl::OkStatus();
  old->Delete();
  return disk_ ? disk_->Remove(old.get()) : absl::OkStatus();
}

absl::Status SessionStore::Impl::Read(const std::shared_ptr<const SessionConfig>& config,
                                      std::uint64_t generation, int layer,
                                      const ReadItem& request) {
  absl::StatusOr<std::shared_ptr<Session>> found = Find(config->id);
  if (!found.ok()) return found.status();
  if ((*found)->config() != config) {
    const SessionInfo info = (*found)->Info();
    return GenerationMismatch(generation, info.generation, info.committed_length);
  }
  const std::optional<std::size_t> index = (*found)->IndexOf(layer);
  if (!index) return LayerNotFound(config->id, layer);
  (*found)->NoteUse();
  if (absl::Status s = tiers_.EnsureResident(found->get()); !s.ok()) return s;
  const LayerLease lease(*std::move(found), *index);
  if (lease.session().deleted()) return SessionNotFound(config->id);
  if (lease.session().evicted()) {
    return MakeError(absl::StatusCode::kUnavailable, "the session was evicted meanwhile",
                     {.reason = "SESSION_EVICTED", .retry_after = absl::Milliseconds(10)});
  }
  const std::uint64_t current = lease.session().generation();
  const std::int64_t length = lease.state().length();
  if (generation != current) return GenerationMismatch(generation, current, length);
  if (request.begin < 0 || request.begin > length) {
    return InvalidField("begin", absl::StrCat(request.begin), absl::StrCat("0 to ", length));
  }
  if (request.tokens < 0 || request.tokens > length - request.begin) {
    return InvalidField("num_tokens", absl::StrCat(request.tokens),
                        absl::StrCat("0 to ", length - request.begin));
  }
  if (request.tokens == 0) return absl::OkStatus();
  const std::int64_t kept_from = lease.state().kept_from();
  if (request.begin < kept_from &&
      request.begin + request.tokens > lease.state().spec().codec.sinks) {
    return TokensFreed("begin", request.begin, kept_from);
  }
  ReadItem item = request;
  item.layer = lease.state().View();
  return FromKernelStatus(backend_->ReadTokens(std::span(&item, 1)));
}

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
    const AloneInGate alone(&session.gate());
    if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
    if (absl::Status s = tiers_.Restore(&session); !s.ok()) return s;
    if (absl::Status s = session.Share(copy.get()); !s.ok()) return s;
    commit = session.CommitAt(absl::Now());
  }
  return SessionExport::Begin(std::move(fields), std::move(commit), std::move(copy), backend_);
}

std::unique_ptr<SessionImport> SessionStore::Impl::Import(ImportOptions options) {
  return std::make_unique<SessionImport>(
      std::move(options), std::make_unique<SessionLoader>(backend_, &pool_, &budget_),
      [this](SessionConfig config, const SessionFileState& state, SessionLoader* loader) {
        return PutImported(std::move(config), state, loader);
      });
}

absl::StatusOr<SessionInfo> SessionStore::Impl::PutImported(SessionConfig config,
                                                            const SessionFileState& state,
                                                            SessionLoader* loader) {
  if (const auto other = sessions_.Find(config.id)) return Repeated(config, *other);
  const auto session =
      std::make_shared<Session>(std::move(config), NewGeneration(), &budget_, &logical_bytes_);
  if (!ReserveFor(session.get())) return NoRoomForSession();
  {
    const AloneInGate alone(&session->gate());
    if (absl::Status s = session->Load(state, loader); !s.ok()) return s;
  }
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
  absl::Status s = data_dir_->Scan([&](const ScannedFile& file) {
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
      return;
    }
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
  {
    const AloneInGate alone(&session.gate());
    if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
    absl::Status s;
    if (move == TierMove::kEvict) s = disk_->Evict(&session);
    if (move == TierMove::kRestore) s = tiers_.Restore(&session);
    if (!s.ok()) return s;
  }
  if (move == TierMove::kCheckpoint) {
    if (absl::Status s = tiers_.Checkpoint(&session); !s.ok()) return s;
  }
  return session.Info();
}

void SessionStore::Impl::RunBatch(std::span<BatchItem* const> items, BatchKind kind) {
  Batch(context(), items, kind).Run();
  if (!disk_) return;
  Tiers::Patience patience(&tiers_);
  std::vector<BatchItem*> refused;
  while (true) {
    refused.clear();
    for (BatchItem* item : items) {
      if (absl::IsResourceExhausted(item->status)) refused.push_back(item);
    }
    if (refused.empty() || !patience.TryAgain(tiers_.usual_room())) return;
    Batch(context(), refused, kind).Run();
  }
}

StoreTotals SessionStore::Impl::Totals() const {
  const BackendInfo backend = backend_->Info();
  std::int64_t evicted = 0;
  for (const std::shared_ptr<Session>& session : sessions_.All()) {
    evicted += session->evicted() ? 1 : 0;
  }
  return {.sessions = static_cast<std::int64_t>(sessions_.size()),
          .budget_bytes = budget_.total(),
          .resident_bytes = budget_.used(),
          .logical_bytes = logical_bytes_.load(std::memory_order_relaxed),
          .block_bytes = backend.block_bytes,
          .held_bytes = backend.held_bytes,
          .evicted_sessions = evicted,
          .evictions = tiers_.evictions(),
          .restores = tiers_.restores(),
          .checkpoints = tiers_.checkpoints(),
          .tier_failures = tiers_.failures(),
          .settle_failures = settler_.failures(),
          .pages_prepared = preparer_.pages(),
          .prepare_failures = preparer_.failures()};
}

std::optional<std::size_t> SessionConfig::IndexOf(int layer) const {
  const auto it =
      std::lower_bound(layers.begin(), layers.end(), layer,
                       [](const LayerSpec& spec, int wanted) { return spec.layer < wanted; });
  if (it == layers.end() || it->layer != layer) return std::nullopt;
  return static_cast<std::size_t>(it - layers.begin());
}

SessionStore::SessionStore(Backend* backend, const StoreOptions& options)
    : impl_(std::make_unique<Impl>(backend, options)) {}
SessionStore::~SessionStore() = default;

absl::StatusOr<SessionInfo> SessionStore::Create(SessionConfig config) {
  return impl_->Create(std::move(config));
}

absl::StatusOr<SessionInfo> SessionStore::Get(std::string_view id) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = impl_->Find(id);
  if (!session.ok()) return session.status();
  return (*session)->Info();
}

std::optional<LayerStats> SessionStore::StatsOf(std::string_view id, int layer) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = impl_->Find(id);
  if (!session.ok()) return std::nullopt;
  const std::optional<std::size_t> index = (*session)->IndexOf(layer);
  if (!index) return std::nullopt;
  return (*session)->Published(*index);
}

std::vector<SessionInfo> SessionStore::List(std::string_view after, int limit,
                                            std::optional<std::string_view> tenant) const {
  std::vector<SessionInfo> infos;
  const auto most = static_cast<std::size_t>(std::max(limit, 0));
  for (const auto& session : impl_->sessions().List(after, most, tenant)) {
    infos.push_back(session->Info());
  }
  return infos;
}

absl::Status SessionStore::Delete(std::string_view id, std::uint64_t generation) {
  return impl_->Delete(id, generation);
}

absl::StatusOr<SessionInfo> SessionStore::Truncate(std::string_view id, std::string_view request_id,
                                                   std::uint64_t generation, std::int64_t length) {
  return impl_->Truncate(
      id, {.request_id = std::string(request_id), .generation = generation, .length = length});
}

void SessionStore::Fork(std::span<ForkItem> items) { impl_->Fork(items); }

absl::StatusOr<std::shared_ptr<const SessionConfig>> SessionStore::ConfigOf(
    std::string_view id) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = impl_->Find(id);
  if (!session.ok()) return session.status();
  return (*session)->config();
}

void SessionStore::Append(std::span<BatchItem* const> items) {
  impl_->RunBatch(items, BatchKind::kAppend);
}

void SessionStore::Attend(std::span<BatchItem* const> items) {
  impl_->RunBatch(items, BatchKind::kAttend);
}

absl::Status SessionStore::Read(const std::shared_ptr<const SessionConfig>& config,
                                std::uint64_t generation, int layer, std::int64_t begin,
                                std::int64_t tokens, std::uint16_t* keys,
                                std::uint16_t* values) const {
  return impl_->Read(
      config, generation, layer,
      {.layer = {}, .begin = begin, .tokens = tokens, .keys = keys, .values = values});
}

absl::StatusOr<std::unique_ptr<SessionExport>> SessionStore::Export(std::string_view id,
                                                                    std::uint64_t generation) {
  return impl_->Export(id, generation);
}

std::unique_ptr<SessionImport> SessionStore::Import(ImportOptions options) {
  return impl_->Import(std::move(options));
}

absl::StatusOr<RecoveryReport> SessionStore::Recover() { return impl_->Recover(); }

absl::StatusOr<SessionInfo> SessionStore::Evict(std::string_view id, std::uint64_t generation) {
  return impl_->Move(id, generation, TierMove::kEvict);
}

absl::StatusOr<SessionInfo> SessionStore::Restore(std::string_view id, std::uint64_t generation) {
  return impl_->Move(id, generation, TierMove::kRestore);
}

absl::StatusOr<SessionInfo> SessionStore::Checkpoint(std::string_view id,
                                                     std::uint64_t generation) {
  return impl_->Move(id, generation, TierMove::kCheckpoint);
}

absl::Status SessionStore::CheckpointAll() { return impl_->CheckpointAll(); }

void SessionStore::Settle() { impl_->settler().SettleAll(); }

StoreTotals SessionStore::Totals() const { return impl_->Totals(); }

}  // namespace oscarkv
