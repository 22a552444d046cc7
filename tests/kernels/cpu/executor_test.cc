// The same promises, whichever implementation this build has.
#include "kernels/cpu/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace oscarkv::cpu {
namespace {

TEST(Executor, RunsEveryPieceOnce) {
  for (const int threads : {1, 2, 5}) {
    const auto executor = MakeExecutor(threads);
    EXPECT_EQ(executor->threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      executor->ParallelFor(count, [&](std::int64_t i) { ++runs[i]; });
      for (const auto& n : runs) EXPECT_EQ(n, 1);
    }
  }
}

TEST(Executor, ByDefaultUsesTheProcessorsOfThisProcess) {
  EXPECT_GE(MakeExecutor(0)->threads(), 1);
}

TEST(Executor, UsesNoMoreThreadsThanItWasGiven) {
  const auto executor = MakeExecutor(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  executor->ParallelFor(500, [&](std::int64_t) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_LE(threads.size(), 2U);
}

TEST(Executor, HasAllItsThreadsWhateverOthersThereAre) {
  const int processors = MakeExecutor(0)->threads();
  const std::vector<int> sizes = {processors + 3, 1, processors, 2 * processors + 5,
                                  processors + 1};
  std::vector<std::unique_ptr<Executor>> executors;
  for (const int size : sizes) executors.push_back(MakeExecutor(size));
  for (const auto& executor : executors) {
    // Every piece waits until all have begun, each on a thread of its own.
    const int threads = executor->threads();
    std::mutex mutex;
    std::condition_variable begun;
    int waiting = 0;
    std::atomic<int> alone = 0;
    executor->ParallelFor(threads, [&](std::int64_t) {
      std::unique_lock lock(mutex);
      ++waiting;
      begun.notify_all();
      const auto all = [&] { return waiting == threads; };
      if (!begun.wait_for(lock, std::chrono::seconds(20), all)) ++alone;
    });
    EXPECT_EQ(alone, 0) << threads << " threads on " << processors << " processors";
  }
}

TEST(Executor, PiecesMayUseItThemselves) {
  const auto executor = MakeExecutor(3);
  std::atomic<int> runs = 0;
  executor->ParallelFor(
      20, [&](std::int64_t) { executor->ParallelFor(20, [&](std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 400);
}

TEST(Executor, ManyThreadsMayCallAtOnce) {
  const auto executor = MakeExecutor(2);
  std::atomic<int> runs = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        executor->ParallelFor(17, [&](std::int64_t) { ++runs; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(runs, 6 * 50 * 17);
}

// Whoever throws, in the caller's thread or another: the caller gets it, when nothing runs any
// more.
TEST(Executor, PassesOnWhatAPieceThrows) {
  for (const int threads : {1, 2, 5}) {
    const auto executor = MakeExecutor(threads);
    for (const std::int64_t count : {1, 2, 100}) {
      for (std::int64_t thrower : {std::int64_t{0}, count / 2, count - 1}) {
        std::atomic<int> inside = 0;
        EXPECT_THROW(executor->ParallelFor(count,
                                           [&](std::int64_t i) {
                                             ++inside;
                                             std::this_thread::yield();
                                             --inside;
                                             if (i == thrower) throw std::bad_alloc();
                                           }),
                     std::bad_alloc);
        EXPECT_EQ(inside, 0);
      }
      // All may throw; and the executor works as before.
      EXPECT_THROW(
          executor->ParallelFor(count, [](std::int64_t) { throw std::length_error("long"); }),
          std::length_error);
      std::atomic<int> runs = 0;
      executor->ParallelFor(count, [&](std::int64_t) { ++runs; });
      EXPECT_EQ(runs, count);
    }
  }
}

TEST(Executor, PassesOnWhatAPieceOfAPieceThrows) {
  const auto executor = MakeExecutor(3);
  EXPECT_THROW(executor->ParallelFor(8,
                                     [&](std::int64_t) {
                                       executor->ParallelFor(8, [](std::int64_t i) {
                                         if (i == 5) throw std::bad_alloc();
                                       });
                                     }),
               std::bad_alloc);
}

// A thread that waits for its pieces never runs those of another call: they might want a lock that
// it holds.
TEST(Executor, WaitingThreadsTakeNoForeignPieces) {
  const auto executor = MakeExecutor(3);
  thread_local int call = 0;  // the call whose piece this thread is in
  std::atomic<int> foreign = 0;
  std::vector<std::thread> callers;
  for (int caller = 1; caller <= 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 20; ++round) {
        executor->ParallelFor(4, [&](std::int64_t) {
          const int before = call;
          if (before != 0 && before != caller) ++foreign;
          call = caller;
          executor->ParallelFor(8, [&](std::int64_t) {
            const int outer = call;
            if (outer != 0 && outer != caller) ++foreign;
            call = caller;
            std::this_thread::yield();
            call = outer;
          });
          call = before;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(foreign, 0);
}

}  // namespace
}  // namespace oscarkv::cpu
