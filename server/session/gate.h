// The gate of a session: requests go through it together; whoever changes the session as a whole
// goes through alone. Unlike a std::shared_mutex it never starves the latter: once one waits, new
// requests wait behind it.
//
// Invariants: alone_ implies users_ == 0. A thread must not go through a gate that it is in.
#pragma once

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace oscarkv {

class ABSL_LOCKABLE Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void EnterShared() ABSL_SHARED_LOCK_FUNCTION();
  void LeaveShared() ABSL_UNLOCK_FUNCTION();
  void EnterAlone() ABSL_EXCLUSIVE_LOCK_FUNCTION();
  void LeaveAlone() ABSL_UNLOCK_FUNCTION();
  // Enters alone where no one is inside or waits to be alone.
  bool TryEnterAlone() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true);

  // How many wait to go through alone, at this moment.
  int waiting_alone() const {
    MutexLock lock(&mutex_);
    return waiting_alone_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int users_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiting_alone_ ABSL_GUARDED_BY(mutex_) = 0;
  bool alone_ ABSL_GUARDED_BY(mutex_) = false;
};

class ABSL_SCOPED_LOCKABLE InGate {
 public:
  explicit InGate(Gate* gate) ABSL_SHARED_LOCK_FUNCTION(gate) : gate_(gate) {
    gate_->EnterShared();
  }
  ~InGate() ABSL_UNLOCK_FUNCTION() { gate_->LeaveShared(); }
  InGate(const InGate&) = delete;
  InGate& operator=(const InGate&) = delete;

 private:
  Gate* gate_;
};

class ABSL_SCOPED_LOCKABLE AloneInGate {
 public:
  explicit AloneInGate(Gate* gate) ABSL_EXCLUSIVE_LOCK_FUNCTION(gate) : gate_(gate) {
    gate_->EnterAlone();
  }
  ~AloneInGate() ABSL_UNLOCK_FUNCTION() { gate_->LeaveAlone(); }
  AloneInGate(const AloneInGate&) = delete;
  AloneInGate& operator=(const AloneInGate&) = delete;

 private:
  Gate* gate_;
};

// Alone in a gate that no one was in, or not at all. The compiler cannot follow what depends on
// which: functions that use it are not analyzed.
class TryAloneInGate {
 public:
  explicit TryAloneInGate(Gate* gate) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : gate_(gate->TryEnterAlone() ? gate : nullptr) {}
  ~TryAloneInGate() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (gate_) gate_->LeaveAlone();
  }
  TryAloneInGate(const TryAloneInGate&) = delete;
  TryAloneInGate& operator=(const TryAloneInGate&) = delete;

  bool alone() const { return gate_ != nullptr; }

 private:
  Gate* const gate_;
};

}  // namespace oscarkv
