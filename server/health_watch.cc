#include "server/health_watch.h"

#include <chrono>
#include <utility>

namespace oscarkv {

HealthWatch::HealthWatch(Check check, Tell tell)
    : check_(std::move(check)), tell_(std::move(tell)), thread_([this] { Loop(); }) {}

HealthWatch::~HealthWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stop_.SignalAll();
  thread_.join();
}

void HealthWatch::Loop() {
  bool well = true;
  while (true) {
    const absl::Status status = check_();
    if (status.ok() != well) tell_(status);
    well = status.ok();
    MutexLock lock(&mutex_);
    if (!stopping_) stop_.WaitFor(&mutex_, std::chrono::seconds(1));
    if (stopping_) return;
  }
}

}  // namespace oscarkv
