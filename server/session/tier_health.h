// Whether the thread that keeps files up to date does so, and whether files can be written. Both
// may go wrong without any request noticing: what is appended is then in memory alone.
//
// Thread-safety: all functions may be called at once.
#pragma once

#include <chrono>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/heartbeat.h"
#include "server/base/mutex.h"

namespace oscarkv {

class TierHealth {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Passes that fail, and writes that fail, in a row; then there is something wrong.
  static constexpr int kPassesInARow = 5;
  static constexpr int kWritesInARow = 3;
  // Or fewer, if for so long none has succeeded.
  static constexpr std::chrono::seconds kUnwrittenFor{10};

  // `stalled_after`: how long the thread may go without a beat. A beat is a page that was written,
  // or less: a pass over many sessions, or a session that takes long, is no stall.
  explicit TierHealth(absl::Duration stalled_after) : stalled_after_(stalled_after) {}

  // The thread's; it is looked at from the first beat on.
  Heartbeat* heartbeat() { return &heartbeat_; }
  // A pass of the thread has ended.
  void NotePass(const absl::Status& status);
  // A checkpoint or an eviction that had something to write has ended. What tells nothing of files
  // (a full memory budget, a session that is gone) changes nothing.
  void NoteWrite(const absl::Status& status, Time now = std::chrono::steady_clock::now());
  // Files have all that sessions have: whatever failed, nothing is at risk.
  void NoteAllWritten();

  // UNAVAILABLE, with words for an operator, if something is wrong.
  absl::Status Check(Time now = std::chrono::steady_clock::now()) const;

 private:
  const absl::Duration stalled_after_;
  Heartbeat heartbeat_;

  mutable Mutex mutex_;                            // a leaf
  int failed_passes_ ABSL_GUARDED_BY(mutex_) = 0;  // in a row, as failed_writes_
  absl::Status pass_error_ ABSL_GUARDED_BY(mutex_);
  int failed_writes_ ABSL_GUARDED_BY(mutex_) = 0;
  Time failing_since_ ABSL_GUARDED_BY(mutex_);
  absl::Status write_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oscarkv
