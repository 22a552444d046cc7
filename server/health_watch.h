// Asks each second whether all is well, and tells when the answer has changed.
//
// Thread-safety: built and ended by one thread; the functions are called from a thread of its own,
// one at a time, and no more once it has ended.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"

namespace oscarkv {

class HealthWatch {
 public:
  using Check = std::function<absl::Status()>;
  using Tell = std::function<void(const absl::Status& status)>;

  // All is taken to be well at first. `tell`: of what is wrong, or that nothing is any more.
  HealthWatch(Check check, Tell tell);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

 private:
  void Loop();

  const Check check_;
  const Tell tell_;
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oscarkv
