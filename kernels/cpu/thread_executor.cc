// Executor on plain threads.
//
// Thread-safety: as Executor. Invariants, all under `mutex_`:
//  1. `jobs_` holds the calls that may still have pieces to hand out, oldest first.
//  2. A job lives on the stack of its ParallelFor, which leaves only after it has taken the job off
//     `jobs_` and `job.helpers` is 0: no worker keeps a pointer to it.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/cpu/executor.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace oscarkv::cpu {
namespace {

int AvailableProcessors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

class ThreadExecutor : public Executor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }

  ~ThreadExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const override { return threads_; }

  void ParallelFor(std::int64_t count, const std::function<void(std::int64_t)>& piece) override {
    if (count <= 0) return;
    if (count == 1 || workers_.empty()) {
      for (std::int64_t i = 0; i < count; ++i) piece(i);
      return;
    }
    Job job{count, &piece};
    std::unique_lock lock(mutex_);
    jobs_.push_back(&job);
    changed_.notify_all();
    TakePieces(job, lock);
    std::erase(jobs_, &job);
    job.left.wait(lock, [&] { return job.helpers == 0; });
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  struct Job {
    std::int64_t count;
    const std::function<void(std::int64_t)>* piece;
    std::int64_t next = 0;
    int helpers = 0;
    std::exception_ptr failure{};  // the first
    std::condition_variable left{};
  };

  // Runs pieces of `job` until none is left to take; one that throws is the last. REQUIRES: `lock`
  // holds mutex_; it does again on return.
  static void TakePieces(Job& job, std::unique_lock<std::mutex>& lock) {
    while (job.next < job.count) {
      const std::int64_t i = job.next++;
      lock.unlock();
      std::exception_ptr failure;
      try {
        (*job.piece)(i);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (!failure) continue;
      job.next = job.count;
      if (!job.failure) job.failure = failure;
    }
  }

  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      Job& job = *jobs_.front();
      ++job.helpers;
      TakePieces(job, lock);
      std::erase(jobs_, &job);
      if (--job.helpers == 0) job.left.notify_one();
    }
  }

  const int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job*> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Executor> MakeExecutor(int threads) {
  return std::make_unique<ThreadExecutor>(threads > 0 ? threads : AvailableProcessors());
}

}  // namespace oscarkv::cpu
