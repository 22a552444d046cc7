// Executor on oneTBB.
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <mutex>
#include <optional>

#include "kernels/cpu/executor.h"

namespace oscarkv::cpu {
namespace {

// Lets oneTBB have so many threads, for good: by itself it has one a processor. One control serves
// the whole process, since of several the least counts. Thread-safe.
void AllowThreads(int threads) {
  static std::mutex mutex;
  static int most = tbb::info::default_concurrency();
  static std::optional<tbb::global_control> allowed;
  const std::lock_guard lock(mutex);
  if (threads <= most) return;
  most = threads;
  allowed.reset();
  allowed.emplace(tbb::global_control::max_allowed_parallelism, threads);
}

class TbbExecutor : public Executor {
 public:
  explicit TbbExecutor(int threads) : threads_(threads), arena_(threads) { AllowThreads(threads); }

  int threads() const override { return threads_; }

  // oneTBB itself stops at the first exception and throws it here once all pieces have returned.
  void ParallelFor(std::int64_t count, const std::function<void(std::int64_t)>& piece) override {
    if (count <= 0) return;
    if (count == 1) return piece(0);
    arena_.execute([&] {
      tbb::this_task_arena::isolate([&] {
        tbb::parallel_for(
            tbb::blocked_range<std::int64_t>(0, count, 1),
            [&](const tbb::blocked_range<std::int64_t>& range) {
              for (std::int64_t i = range.begin(); i != range.end(); ++i) piece(i);
            },
            tbb::simple_partitioner());
      });
    });
  }

 private:
  const int threads_;
  tbb::task_arena arena_;
};

}  // namespace

std::unique_ptr<Executor> MakeExecutor(int threads) {
  if (threads <= 0) threads = tbb::info::default_concurrency();
  return std::make_unique<TbbExecutor>(threads);
}

}  // namespace oscarkv::cpu
