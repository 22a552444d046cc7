// Executor on oneTBB.
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

#include "kernels/cpu/executor.h"

namespace oscarkv::cpu {
namespace {

class TbbExecutor : public Executor {
 public:
  explicit TbbExecutor(int threads)
      : threads_(threads),
        // oneTBB counts processors; more threads than these must be allowed.
        allowed_(tbb::global_control::max_allowed_parallelism,
                 std::max(threads, tbb::info::default_concurrency())),
        arena_(threads) {}

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
  const tbb::global_control allowed_;
  tbb::task_arena arena_;
};

}  // namespace

std::unique_ptr<Executor> MakeExecutor(int threads) {
  if (threads <= 0) threads = tbb::info::default_concurrency();
  return std::make_unique<TbbExecutor>(threads);
}

}  // namespace oscarkv::cpu
