#include "server/session/gate.h"

namespace oscarkv {

void Gate::EnterShared() {
  MutexLock lock(&mutex_);
  while (alone_ || waiting_alone_ > 0) changed_.Wait(&mutex_);
  ++users_;
}

void Gate::LeaveShared() {
  MutexLock lock(&mutex_);
  if (--users_ == 0) changed_.SignalAll();
}

void Gate::EnterAlone() {
  MutexLock lock(&mutex_);
  ++waiting_alone_;
  while (alone_ || users_ > 0) changed_.Wait(&mutex_);
  --waiting_alone_;
  alone_ = true;
}

bool Gate::TryEnterAlone() {
  MutexLock lock(&mutex_);
  if (alone_ || users_ > 0 || waiting_alone_ > 0) return false;
  alone_ = true;
  return true;
}

void Gate::LeaveAlone() {
  MutexLock lock(&mutex_);
  alone_ = false;
  changed_.SignalAll();
}

}  // namespace oscarkv
