// Which sessions are in memory, and which in their files alone: brings them back when they are
// needed, makes room when there is none, and in the background keeps files up to date and deletes
// sessions that have expired.
//
// Where room is made, no gate is waited for: a session that someone uses stays. So room may be made
// with gates held.
//
// Thread-safety: all functions may be called at once.
//
// Invariants: the thread ends with this object and at no other time; what fails is counted and
// tried again, and Health tells of it. room_mutex_ is taken after gates, and before
// Session::file_mutex.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/duration_histogram.h"
#include "server/base/mutex.h"
#include "server/session/disk_tier.h"
#include "server/session/eviction_policy.h"
#include "server/session/session.h"
#include "server/session/session_store.h"
#include "server/session/session_table.h"
#include "server/session/tier_health.h"

namespace oscarkv {

class Tiers {
 public:
  // Deletes a session, whose file may not be removable, for who is alone in its gate.
  using Drop = std::function<absl::Status(Session* session)>;
  // `disk`: null: there is none. REQUIRES: all outlive the tiers.
  Tiers(const StoreOptions& options, const SessionTable* sessions, DiskTier* disk,
        MemoryBudget* budget, Drop drop);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  // Starts the thread.
  void Start();

  // Whether there is anything that could make room.
  bool can_make_room() const { return disk_ != nullptr || options_.drop_when_full; }

  // Whether to make room, and to wait for it while sessions are in use. Who has layers locked does
  // neither: it keeps sessions in use that may be needed for it.
  enum class Wait : std::uint8_t { kForRoom, kForNothing };
  // Brings the session back if it is evicted; makes room for it if need be. Errors as
  // DiskTier::Restore's.
  absl::Status Restore(Session* session, Wait wait = Wait::kForRoom)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  // The same, for who is not in the session's gate.
  absl::Status EnsureResident(Session* session, Wait wait = Wait::kForRoom);

  // Moves sessions to their files, or drops them, until `wanted` bytes fit below the low watermark,
  // or into the budget at least.
  enum class Room : std::uint8_t {
    kMade,  // some memory was freed
    kBusy,  // none, but there will be: sessions are in use, or being written
    kNone,
  };
  Room MakeRoom(std::int64_t wanted);
  // For who was refused memory: whether to try again, now that there is room. Waits while sessions
  // are in use, until `patience` is over.
  class Patience {
   public:
    explicit Patience(Tiers* tiers) : tiers_(tiers) {}
    bool TryAgain(std::int64_t wanted);

   private:
    Tiers* const tiers_;
    std::int64_t times_ = 1;  // more is asked for each time: what is needed is only guessed
    // With half of the budget asked for. Others, who wait as well, may take what is free by then,
    // or the request is a batch whose items need the whole of it one after the other.
    int last_tries_ = 64;
    const std::chrono::steady_clock::time_point end_ =
        std::chrono::steady_clock::now() + std::chrono::seconds(2);
  };
  // Does what may be refused `wanted` bytes of memory, about; again, while room is made for it.
  absl::Status WithRoom(std::int64_t wanted, Wait wait, absl::FunctionRef<absl::Status()> attempt);
  // What a request needs is not known before it is tried.
  std::int64_t usual_room() const { return budget_->total() / 64; }

  // Moves the session to its file. Errors as DiskTier::Evict's.
  absl::Status Evict(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());

  // Errors as DiskTier::Checkpoint's.
  absl::Status Checkpoint(Session* session);
  // Checkpoints of all sessions that have changed since; the first error, after all were tried.
  absl::Status CheckpointAll();

  // Evicts sessions of tenants that are at their quotas, until they are below; none of `wanted`.
  // Whether it has evicted any.
  bool KeepToQuotas(std::span<const std::string_view> wanted);
  // Deletes what has expired.
  void Expire();
  std::int64_t expired() const { return expired_.load(); }
  std::int64_t dropped() const { return dropped_.load(); }

  // As TierHealth::Check.
  absl::Status Health() const { return health_.Check(); }

  // Moves of one kind, since the start.
  struct Moves {
    DurationHistogram times;  // of those that succeeded
    std::atomic<std::int64_t> failures{0};

    std::int64_t Successes() const;
    void Count(const absl::Status& status, std::chrono::steady_clock::time_point began);
  };
  const Moves& evictions() const { return evictions_; }
  const Moves& restores() const { return restores_; }
  const Moves& checkpoints() const { return checkpoints_; }
  std::int64_t restores_within_minute() const { return restores_within_minute_.load(); }
  std::int64_t passes() const { return passes_.load(); }
  std::int64_t failed_passes() const { return failed_passes_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Loop();
  void Pass() noexcept;
  void CheckpointDue();
  // Bytes in use from which on room is made.
  std::int64_t high() const {
    return static_cast<std::int64_t>(options_.high_watermark *
                                     static_cast<double>(budget_->total()));
  }
  EvictionInput Input(std::span<const std::string_view> wanted = {});
  // `room`: at most kBusy, if sessions are left out that are in use.
  std::vector<EvictionDecision> Plan(std::int64_t wanted, Room* room);
  // The next decisions, from `*at` on, that are about sessions of one group, or about one session;
  // `*at` is behind them then. Without sessions that are gone.
  struct Unit {
    std::vector<std::shared_ptr<Session>> sessions;
    EvictionAction action = EvictionAction::kSpill;
    EvictionReason reason = EvictionReason::kMemory;
  };
  Unit NextUnit(const std::vector<EvictionDecision>& plan, std::size_t* at) const;
  // All of them, or none where one is in use, was used since `planned`, or is pinned by now.
  Room CarryOut(const Unit& unit, Clock::time_point planned)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(room_mutex_);
  absl::Status DropOne(EvictionReason reason, Session* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  void TellOfFailure(std::string_view session, const absl::Status& status);
  absl::Status CheckpointIfChanged(Session* session);
  bool HasManyTokensToSave(const Session& session) const;

  const StoreOptions options_;
  const SessionTable* const sessions_;
  DiskTier* const disk_;
  MemoryBudget* const budget_;
  const Drop drop_;

  std::atomic<int> moving_{0};  // checkpoints and restores, which hold memory of no session
  Moves evictions_;
  Moves restores_;
  Moves checkpoints_;
  std::atomic<std::int64_t> expired_{0};
  std::atomic<std::int64_t> dropped_{0};
  std::atomic<std::int64_t> restores_within_minute_{0};
  std::atomic<std::int64_t> passes_{0};
  std::atomic<std::int64_t> failed_passes_{0};
  TierHealth health_;

  Mutex room_mutex_;  // one at a time makes room: who waits finds it made

  Mutex mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscarkv
