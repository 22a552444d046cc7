// Sessions in files of a data directory: checkpoints, which survive the end of the process, and the
// place where sessions go whose memory is needed.
//
// A session's file is written under Session::file_mutex, which is taken after its gate and kept
// while the file is written: requests go on meanwhile. What is written are the layers as they are
// each, also in the middle of a step: nothing that was appended is lost, and a repeat is known.
//
// Thread-safety: all functions may be called at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/backend.h"
#include "server/base/mutex.h"
#include "server/file/data_dir.h"
#include "server/file/posix_file.h"
#include "server/file/session_file_writer.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/session.h"

namespace oscarkv {

class DiskTier {
 public:
  // REQUIRES: all outlive the tier.
  DiskTier(DataDir* dir, Durability durability, Backend* backend, BlockPool* pool,
           MemoryBudget* budget);

  // Writes to the session's file what it does not have yet. Requests wait for about as long as a
  // fork takes, or where memory has no room for the copy, until all is written. OK if the session
  // is deleted or superseded. Of one that is evicted only its retention is written. Errors: the
  // file's; after them what was durable still is, and the next checkpoint writes all that lacks.
  absl::Status Checkpoint(Session* session);
  // The same, and frees the session's memory; NOT_FOUND if it is superseded. REQUIRES: it is not
  // deleted.
  absl::Status Evict(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  // Truncates what the file has, before the session is truncated: tokens that were dropped must not
  // come back with a restart, where others may have their places by then. Costs nothing where the
  // file is no longer than that, and keys of prefixes are dropped there too. A file of which it is
  // not known what it has goes. After an error the file may be truncated or not.
  absl::Status Truncate(const TruncateRecord& asked, std::uint64_t new_generation, Session* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  // Brings an evicted session back; OK if it is not evicted. DATA_LOSS where its file is damaged.
  absl::Status Restore(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  // Removes the session's file, if it has one. To be called before the session is deleted.
  absl::Status Remove(Session* session);
  // Another session takes the place of one of its id: removes that one's file, and writes none for
  // it from now on; its id's file is the successor's. To be called before the successor is found.
  absl::Status Supersede(Session* old, const Session* successor);

  // That the session's file has of it, about.
  std::int64_t LiveBytes(Session* session) const;

  // Of session files, since the tier was made; what an error has cut short is not counted.
  std::int64_t written_bytes() const { return written_bytes_.load(); }
  std::int64_t read_bytes() const { return read_bytes_.load(); }

  // To be called before sessions are adopted, which count as durable then: a server that was killed
  // may have left what it had not synced yet.
  absl::Status SyncFound();
  // A session that was found in the directory: makes it one that is evicted. REQUIRES: nobody knows
  // it yet; `contents` are its file's.
  void Adopt(const SessionFileContents& contents, Session* session);

 private:
  // What a session has that its file lacks: taken for a commit, and given back if there is none.
  class Unsaved {
   public:
    explicit Unsaved(Session* session)
        : session_(session), unchanged_to_(session->TakeUnchangedTo()) {}
    ~Unsaved() {
      if (!saved_) session_->LowerUnchangedTo(unchanged_to_);
    }
    Unsaved(const Unsaved&) = delete;
    Unsaved& operator=(const Unsaved&) = delete;

    std::int64_t unchanged_to() const { return unchanged_to_; }
    void SetSaved() { saved_ = true; }

   private:
    Session* const session_;
    const std::int64_t unchanged_to_;
    bool saved_ = false;
  };

  // Of a session that is evicted.
  absl::Status SaveRetention(Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->gate());
  // Writes the layers, and commits. REQUIRES: the layers stay as they are.
  absl::Status Save(const std::vector<LayerState*>& layers, const SessionCommit& commit,
                    Unsaved* unsaved, Session* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->file_mutex());
  absl::Status Write(const std::vector<LayerState*>& layers, const SessionCommit& commit,
                     std::int64_t unchanged_to, Session* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->file_mutex());
  // Adds records to the session's file, and commits. If it fails, the file is as it was, or it is
  // not known what it has. Errors as OpenBehindCommit's. REQUIRES: it has a state.
  absl::Status Extend(const SessionCommit& commit,
                      absl::FunctionRef<absl::Status(SessionFileWriter*)> add, Session* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->file_mutex());
  absl::Status WriteNewFile(const std::vector<LayerState*>& layers, const SessionCommit& commit,
                            Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->file_mutex());
  absl::StatusOr<SessionFileState> WriteTemporary(const std::string& path,
                                                  const std::vector<LayerState*>& layers,
                                                  const SessionCommit& commit,
                                                  const Session& session);
  void CountWritten(std::uint64_t bytes) {
    written_bytes_.fetch_add(static_cast<std::int64_t>(bytes));
  }
  absl::Status Publish(const Session& session);
  // The session's file, to be gone on with behind its last commit. NOT_FOUND if it is not there, or
  // shorter than that: then nothing of the session is durable any more. REQUIRES: it has a state.
  absl::StatusOr<std::unique_ptr<PosixFile>> OpenBehindCommit(Session* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->file_mutex());
  bool IsSuperseded(const Session& session);
  // Removes the session's file, if it may have one; its id's file is the successor's then, if that
  // is not null.
  absl::Status RemoveOwned(Session* session, const Session* successor)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->file_mutex());

  DataDir* const dir_;
  const Durability durability_;
  Backend* const backend_;
  BlockPool* const pool_;
  MemoryBudget* const budget_;
  std::atomic<std::int64_t> written_bytes_{0};
  std::atomic<std::int64_t> read_bytes_{0};

  // Whose the file of an id is, where it has one, or will be: a fork may take the place of a
  // session of its id, which may be about to be written, and whose end must not take the fork's
  // file away. A leaf, but for the directory's own work.
  Mutex owners_mutex_;
  absl::btree_map<std::string, const Session*> owners_ ABSL_GUARDED_BY(owners_mutex_);
};

}  // namespace oscarkv
