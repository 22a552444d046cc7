// One session: its configuration, its generation, its layers and their locks.
//
// Locks, in the order in which they are taken (server/session/INVARIANTS.md):
//   1. the gate: together by requests on layers, alone by truncate and delete;
//   2. a layer's mutex, inside the gate: whoever reads or changes the layer's state;
//   3. published_mutex_, a leaf: what others may know at any time without waiting for a layer.
//
// Invariants: generation and deletion change only under the gate, alone, and so stay as they are
// for whoever is in the gate. What is published of a layer is its state after its last change.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/mutex.h"
#include "server/file/commit.h"
#include "server/pages/memory_budget.h"
#include "server/session/gate.h"
#include "server/session/layer_state.h"
#include "server/session/repeat_records.h"
#include "server/session/retention.h"
#include "server/session/session_loader.h"
#include "server/session/session_store.h"
#include "server/session/step_memory.h"
#include "server/session/tenants.h"

namespace oscarkv {

class Session {
 public:
  struct Layer {
    Layer(const LayerSpec* spec, const SessionConfig& config, MemoryBudget* budget)
        : state(spec, config.position_base, budget, config.rollback_tokens) {}
    Mutex mutex;
    LayerState state ABSL_GUARDED_BY(mutex);
  };

  // `all_logical_bytes`: the sum over all sessions. REQUIRES: it and budget outlive the session.
  Session(SessionConfig config, std::uint64_t generation, MemoryBudget* budget,
          std::atomic<std::int64_t>* all_logical_bytes, absl::Time create_time = absl::Now());

  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Counts what the session takes before its first token, until it is deleted; an estimate. False
  // if the budget has less left.
  [[nodiscard]] bool ReserveOwnMemory();

  // Its resident bytes are counted there from now on. REQUIRES: nobody knows it yet.
  void CountFor(std::shared_ptr<TenantUse> tenant);
  // Null: nobody is told what it takes.
  const TenantUse* tenant() const { return tenant_.get(); }

  const std::shared_ptr<const SessionConfig>& config() const { return config_; }
  std::size_t layer_count() const { return layers_.size(); }
  // Index of the layer with this global id, if the session has it.
  std::optional<std::size_t> IndexOf(int layer) const { return config_->IndexOf(layer); }
  Layer& layer(std::size_t index) { return *layers_[index]; }
  Gate& gate() ABSL_LOCK_RETURNED(gate_) { return gate_; }

  std::uint64_t generation() const;
  bool deleted() const;
  // Its tokens are in its file alone: the layers are empty, and what is published of them is what
  // the file has.
  bool evicted() const;
  SessionInfo Info() const;
  // What metrics tell of it: cheap, also with many layers.
  struct Glance {
    std::int64_t committed_length = 0;
    std::int64_t tried_length = 0;  // that the last checkpoint had, or was to have
    std::int64_t resident_bytes = 0;
    Retention retention;
    std::int64_t pages_sealed_without_queries = 0;
    bool evicted = false;
  };
  Glance LookAt() const;
  Retention retention() const;
  // Counts as a use, and as a change that its file lacks.
  void SetRetention(const Retention& retention) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // The same of one that nobody knows yet; its file, if it has one, says so already.
  void InitRetention(const Retention& retention);
  // What it takes before its first token; 0 once it is deleted.
  std::int64_t own_bytes() const { return own_bytes_.load(); }
  // Whether all layers have the same length, that is, no step is under way.
  bool StepIsComplete() const;

  void Publish(std::size_t index, const LayerStats& stats);
  LayerStats Published(std::size_t index) const;
  std::vector<LayerStats> Published() const;

  // Memory for the step under way.
  StepMemory& step_memory() { return step_memory_; }
  // Whether one is under way whose last append is not longer ago than `lease`.
  bool StepIsUnderWay(absl::Duration lease) const;
  // Releases the memory of a step, whether done or not, whose last append is longer ago.
  void EndOldStep(absl::Duration lease);

  // Drops tokens at positions >= asked.length from every layer, and begins a new generation.
  void Truncate(TruncateRecord asked, std::uint64_t new_generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // Whether the last truncate was this one.
  bool IsRepeat(const TruncateRecord& asked) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_) {
    return !asked.request_id.empty() && asked == last_truncate_;
  }
  // Makes of `fork`, which no one else knows and which is empty, what this session would be after a
  // truncate to `length`. Errors as LayerState::Fork's; then it is empty. REQUIRES: equal
  // layers, and `length` tokens of each.
  absl::Status Fork(std::int64_t length, Session* fork) ABSL_SHARED_LOCKS_REQUIRED(gate_);
  // Whether the tokens are here that the session's key for a prefix of `length` was given for.
  bool HoldsPrefix(std::int64_t length) const ABSL_SHARED_LOCKS_REQUIRED(gate_) {
    return length <= prefix_limit_ && length <= Info().committed_length;
  }
  // Fork, for a session that is created. REQUIRES: as Fork.
  absl::Status LendPrefix(std::int64_t length, Session* fork) ABSL_SHARED_LOCKS_REQUIRED(gate_);

  // Makes of `copy`, which no one else knows and which is empty, what this session is now. Errors
  // as LayerState::Share's; then it is empty. REQUIRES: equal layers.
  absl::Status Share(Session* copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // All layers, for as long as one is alone in the gate.
  std::vector<LayerState*> Layers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // What a file commits of it, at `time`.
  SessionCommit CommitAt(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // Makes of the session, which is empty, what its file has at the last commit. If it fails, the
  // session is empty. REQUIRES: as SessionLoader::Load.
  absl::Status Load(const SessionFileState& state, SessionLoader* loader)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // What a commit says of the session itself; for one that is found in its file.
  void TakeCommit(const SessionCommit& commit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // Frees all tokens, which the file has at its last commit. Of a session that a server finds in
  // its directory when it starts, the layers are empty already.
  void Evict(const SessionFileState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);

  // What is known of its file: taken after the gate, and kept while the file is written.
  struct File {
    // At the last commit. None: there is no file, or after an error it is not known what it has.
    std::optional<SessionFileState> state;
  };
  Mutex& file_mutex() ABSL_LOCK_RETURNED(file_mutex_) { return file_mutex_; }
  // Waits until what is being written now is. For who needs the file next, alone in the gate:
  // whoever waits there keeps all others out.
  void AwaitFile() ABSL_LOCKS_EXCLUDED(file_mutex_) { MutexLock lock(&file_mutex_); }
  bool FileIsBusy() ABSL_LOCKS_EXCLUDED(file_mutex_) {
    if (!file_mutex_.TryLock()) return true;
    file_mutex_.Unlock();
    return false;
  }
  File& file() ABSL_EXCLUSIVE_LOCKS_REQUIRED(file_mutex_) { return file_; }
  // Tokens before it are as at the last commit. Taking it, for a commit, sets it to all; a commit
  // that fails lowers it again.
  std::int64_t TakeUnchangedTo() { return unchanged_to_.exchange(kPositionLimit); }
  void LowerUnchangedTo(std::int64_t position);
  // Of the last commit; 0 without one.
  void SetDurableLength(std::int64_t length) { durable_length_.store(length); }

  // Frees everything; later requests find the session deleted.
  void Delete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);

  // Whether its file lacks something.
  bool unsaved() const { return changes_.load() != durable_changes_.load(); }
  // When the oldest change came, about, that its file lacks; nullopt if it lacks none.
  std::optional<std::chrono::steady_clock::time_point> unsaved_since() const;
  // Its file has what changes() was when someone began to write it, at `began`.
  void NoteSaved(std::int64_t changes, std::chrono::steady_clock::time_point began);
  // When it was last tried, as far as that tells when to try again.
  std::chrono::steady_clock::time_point last_checkpoint() const;
  // `length`: committed_length then.
  void SetLastCheckpoint(std::chrono::steady_clock::time_point when, std::int64_t length);
  // When it last went to its file; the clock's epoch: never.
  std::chrono::steady_clock::time_point last_eviction() const;
  void NoteEviction();

  // When a request was last inside.
  void NoteUse();
  void SetLastUse(std::chrono::steady_clock::time_point when);
  std::chrono::steady_clock::time_point last_use() const;
  // How often tokens have come or gone.
  std::int64_t changes() const { return changes_.load(); }
  // For the settler: when tokens last came or went, and whether something may be due since.
  void NoteChange();
  std::chrono::steady_clock::time_point last_change() const;
  bool TakeUnsettled() { return unsettled_.exchange(false); }
  void SetUnsettled() { unsettled_.store(true); }

 private:
  void Replace(LayerStats* published, const LayerStats& stats)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(published_mutex_);
  // Makes the layers of `other`, which no one else knows, of those of this session. `alone`: in
  // the gate, and so without locks.
  absl::Status ShareLayers(Session* other,
                           absl::FunctionRef<absl::Status(LayerState* from, LayerState* to)> share,
                           bool alone) ABSL_SHARED_LOCKS_REQUIRED(gate_);
  absl::Status ShareEachLayer(
      Session* other, absl::FunctionRef<absl::Status(LayerState* from, LayerState* to)> share,
      bool alone) ABSL_SHARED_LOCKS_REQUIRED(gate_);
  // What they are afterwards is not published yet: nobody is to see it without what goes with it.
  std::vector<LayerStats> CutLayers(std::int64_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  void PublishAll(const std::vector<LayerStats>& stats)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(published_mutex_);
  void TruncateLayers(std::int64_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);
  // That the file lacks something, as of now.
  void NoteUnsaved();
  // After published_ has changed.
  void SumUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(published_mutex_);

  const std::shared_ptr<const SessionConfig> config_;
  const absl::Time create_time_;
  std::atomic<std::int64_t>* const all_logical_bytes_;
  std::shared_ptr<TenantUse> tenant_;
  std::vector<std::unique_ptr<Layer>> layers_;  // as config_->layers
  std::int64_t reused_length_ = 0;
  Gate gate_;
  // Keys of longer prefixes are of tokens that a truncate has dropped.
  std::int64_t prefix_limit_ ABSL_GUARDED_BY(gate_) = kPositionLimit;
  std::optional<TruncateRecord> last_truncate_ ABSL_GUARDED_BY(gate_);
  MemoryReservation own_memory_ ABSL_GUARDED_BY(gate_);
  std::atomic<std::int64_t> own_bytes_{0};  // of own_memory_
  StepMemory step_memory_;

  mutable Mutex published_mutex_;
  std::uint64_t generation_ ABSL_GUARDED_BY(published_mutex_);
  bool deleted_ ABSL_GUARDED_BY(published_mutex_) = false;
  bool evicted_ ABSL_GUARDED_BY(published_mutex_) = false;
  std::vector<LayerStats> published_ ABSL_GUARDED_BY(published_mutex_);
  Retention retention_ ABSL_GUARDED_BY(published_mutex_);
  std::int64_t committed_length_ ABSL_GUARDED_BY(published_mutex_) = 0;  // of published_
  std::int64_t resident_bytes_ ABSL_GUARDED_BY(published_mutex_) = 0;    // the same
  std::int64_t blind_pages_ ABSL_GUARDED_BY(published_mutex_) = 0;       // the same

  Mutex file_mutex_;
  File file_ ABSL_GUARDED_BY(file_mutex_);
  std::atomic<std::int64_t> unchanged_to_{kPositionLimit};
  std::atomic<std::int64_t> durable_length_{0};
  std::atomic<std::int64_t> tried_length_{0};

  std::atomic<std::int64_t> changes_{0};
  std::atomic<std::int64_t> durable_changes_{-1};
  std::atomic<std::chrono::steady_clock::rep> unsaved_since_;  // 0: nothing is
  std::atomic<std::chrono::steady_clock::rep> last_checkpoint_{0};
  std::atomic<std::chrono::steady_clock::rep> last_eviction_{0};
  std::atomic<std::chrono::steady_clock::rep> last_use_;
  std::atomic<std::chrono::steady_clock::rep> last_change_{0};
  std::atomic<bool> unsettled_{false};
};

// A request's stay in the gate of a session, together with others, and with one layer's lock held.
// When it ends, the session is told what the layer looks like.
// Which locks a batch holds is known only when it runs, so the compiler cannot follow them: this
// class is the one place where its analysis is off.
class LayerLease {
 public:
  LayerLease(std::shared_ptr<Session> session, std::size_t index) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  ~LayerLease() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  LayerLease(const LayerLease&) = delete;
  LayerLease& operator=(const LayerLease&) = delete;

  Session& session() const { return *session_; }
  std::size_t index() const { return index_; }
  LayerState& state() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return session_->layer(index_).state; }

 private:
  const std::shared_ptr<Session> session_;
  const std::size_t index_;
};

}  // namespace oscarkv
