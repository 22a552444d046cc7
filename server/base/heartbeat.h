// When a thread last got on with its work, for others to see that it does. Code deep below the
// thread's own beats by Heartbeat::BeatThisThread, without knowing on which thread it runs.
//
// Thread-safety: one thread beats, any may ask.
#pragma once

#include <atomic>
#include <chrono>

namespace oscarkv {

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  void Beat() { last_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed); }
  // The clock's epoch before the first beat.
  Clock::time_point last() const {
    return Clock::time_point(Clock::duration(last_.load(std::memory_order_relaxed)));
  }

  // Beats, if the thread that calls it has a heartbeat.
  static void BeatThisThread() {
    if (of_this_thread_ != nullptr) of_this_thread_->Beat();
  }

  // Makes a heartbeat that of the thread that calls it, for as long as it lives.
  class OfThisThread {
   public:
    explicit OfThisThread(Heartbeat* heartbeat) {
      of_this_thread_ = heartbeat;
      heartbeat->Beat();
    }
    ~OfThisThread() { of_this_thread_ = nullptr; }
    OfThisThread(const OfThisThread&) = delete;
    OfThisThread& operator=(const OfThisThread&) = delete;
  };

 private:
  static inline thread_local Heartbeat* of_this_thread_ = nullptr;
  std::atomic<Clock::rep> last_{0};
};

}  // namespace oscarkv
