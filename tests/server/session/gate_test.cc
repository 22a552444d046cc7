#include "server/session/gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace oscarkv {
namespace {

TEST(GateTest, WhoGoesAloneIsAlone) {
  Gate gate;
  std::atomic<int> inside{0};
  std::atomic<int> broken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 500; ++n) {
        if (i == 0) {
          const AloneInGate alone(&gate);
          if (inside.load() != 0) ++broken;
        } else {
          gate.EnterShared();
          ++inside;
          --inside;
          gate.LeaveShared();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(broken.load(), 0);
}

TEST(GateTest, RequestsWaitBehindWhoWaitsToGoAlone) {
  Gate gate;
  std::atomic<bool> was_alone{false};
  gate.EnterShared();
  std::thread alone([&] {
    const AloneInGate lock(&gate);
    was_alone = true;
  });
  while (gate.waiting_alone() == 0) std::this_thread::yield();
  std::thread next([&] {
    gate.EnterShared();
    EXPECT_TRUE(was_alone.load());
    gate.LeaveShared();
  });
  EXPECT_FALSE(was_alone.load());
  gate.LeaveShared();
  alone.join();
  next.join();
}

}  // namespace
}  // namespace oscarkv
