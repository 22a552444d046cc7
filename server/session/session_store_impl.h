// The parts of a session store, and what it does with them. Private to session_store*.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/kernel_status.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/batch.h"
#include "server/session/disk_tier.h"
#include "server/session/prefix_index.h"
#include "server/session/preparer.h"
#include "server/session/session.h"
#include "server/session/session_store.h"
#include "server/session/session_table.h"
#include "server/session/settler.h"
#include "server/session/tenants.h"
#include "server/session/tiers.h"

namespace oscarkv {

enum class TierMove : std::uint8_t { kEvict, kRestore, kCheckpoint };

// Members end in reverse order: the threads first, then the sessions, then what they stand on.
class SessionStore::Impl {
 public:
  Impl(Backend* backend, const StoreOptions& options)
      : backend_(backend),
        budget_(options.memory_budget_bytes),
        pool_(backend, &budget_),
        next_generation_(options.first_generation),
        tenants_(options.quotas),
        disk_(options.data_dir ? std::make_unique<DiskTier>(options.data_dir, options.durability,
                                                            backend, &pool_, &budget_)
                               : nullptr),
        data_dir_(options.data_dir),
        tiers_(options, &sessions_, disk_.get(), &budget_,
               [this](Session* session)
                   ABSL_NO_THREAD_SAFETY_ANALYSIS { return DeleteFound(session); }),
        preparer_(backend, &pool_, &budget_, options.prepared_pages),
        settler_(context(), options.settle_after, options.step_lease) {
    if (options.prepared_pages > 0) preparer_.Start();
    if (!disk_) tiers_.Start();  // else with what the directory has
  }

  absl::StatusOr<SessionInfo> Create(SessionConfig config, const Retention& retention,
                                     const std::optional<ParentPrefix>& parent);
  absl::StatusOr<std::shared_ptr<Session>> Find(std::string_view id) const;
  absl::Status Delete(std::string_view id, std::uint64_t generation);
  absl::StatusOr<SessionInfo> SetRetention(std::string_view id, std::uint64_t generation,
                                           const Retention& retention);
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
  absl::Status Health() const { return tiers_.Health(); }

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
  // What the sessions are, all together.
  void AddSessions(StoreTotals* totals) const;
  // For who is in the session's gate: whether it is there, and of that generation; 0: of any.
  static absl::Status CheckNamed(const Session& session, std::uint64_t generation);
  absl::Status DeleteFound(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  // The answer to a create of a session that is there.
  static absl::StatusOr<SessionInfo> Repeated(const SessionConfig& asked, const Session& other);
  absl::StatusOr<SessionInfo> PutImported(SessionConfig config,
                                          const std::optional<Retention>& retention,
                                          const SessionFileState& state, SessionLoader* loader);
  // Makes `session`, which is empty, a fork of the session with the longest prefix that it names.
  void ReusePrefix(Session* session);
  // The same, of the session that it names.
  absl::Status BeginWith(const ParentPrefix& parent, Session* session);
  struct ForkRequest {
    std::uint64_t generation = 0;        // of the source; 0: any
    std::optional<std::int64_t> length;  // default: the source's committed length
    const char* field = "length";        // in errors
    bool create = false;                 // the tokens count as reused_length
  };
  // Makes `fork`, which is empty, what the source would be after a truncate. Returns what the
  // source was.
  absl::StatusOr<SessionInfo> ForkFrom(Session* source, const ForkRequest& request, Session* fork);
  // The session that the item asks for, for nobody to find yet. Null: it is there, see item->info.
  absl::StatusOr<std::shared_ptr<Session>> MakeFork(ForkItem* item);
  absl::Status PutInPlace(std::shared_ptr<Session> fork, ForkItem* item);
  // Whether a session of that id may have a file.
  absl::Status CheckUsable(std::string_view id) const {
    return data_dir_ ? data_dir_->CheckUsable(id) : absl::OkStatus();
  }
  // Of a batch: tries again what was refused, where `make_room` says so. Whether it was tried.
  bool TryAgain(std::span<BatchItem* const> refused, BatchKind kind,
                absl::FunctionRef<bool()> make_room);
  // What it takes before its first token; makes room for it if need be.
  absl::Status ReserveFor(Session* session);
  std::uint64_t NewGeneration() { return next_generation_.fetch_add(1); }
  // From now on all are above one that a file has: those of a file ascend.
  void GoOnAbove(std::uint64_t generation);

  // Made beforehand: copies of it need no memory.
  const absl::Status no_host_memory_ = OutOfMemory("the server has no memory left");
  Backend* const backend_;
  MemoryBudget budget_;
  BlockPool pool_;
  std::atomic<std::uint64_t> next_generation_;
  std::atomic<std::int64_t> logical_bytes_{0};  // of all sessions
  Tenants tenants_;
  SessionTable sessions_;
  PrefixIndex prefixes_;
  const std::unique_ptr<DiskTier> disk_;
  DataDir* const data_dir_;
  Tiers tiers_;
  Preparer preparer_;
  Settler settler_;
};

}  // namespace oscarkv
