#include "kernels/cpu/scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace oscarkv::cpu {
namespace {

bool Aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kPageAlignment == 0; }

TEST(Scratch, IsAlignedAndOfItsSize) {
  for (const std::size_t size : {1U, 15U, 16U, 17U, 1000U}) {
    Scratch<float> scratch(size);
    EXPECT_TRUE(Aligned(scratch.data()));
    EXPECT_EQ(scratch.size(), size);
    std::fill(scratch.begin(), scratch.end(), 1.0F);
    EXPECT_EQ(scratch[size - 1], 1.0F);
  }
}

TEST(Scratch, MemoryServesAgain) {
  const float* before = nullptr;
  {
    const Scratch<float> scratch(100);
    before = scratch.data();
  }
  const Scratch<float> again(64);
  EXPECT_EQ(again.data(), before);
}

TEST(Scratch, TwoAtOnceShareNothing) {
  Scratch<int> a(32);
  Scratch<int> b(32);
  std::fill(a.begin(), a.end(), 1);
  std::fill(b.begin(), b.end(), 2);
  EXPECT_EQ(a[31], 1);
  Scratch<int> c = std::move(a);
  EXPECT_EQ(c[0], 1);
  b = std::move(c);
  EXPECT_EQ(b[31], 1);
}

// More at once than a thread keeps: the rest is freed.
TEST(Scratch, AnyNumberMayBeHeldAtOnce) {
  for (int round = 0; round < 2; ++round) {
    std::vector<Scratch<int>> many;
    for (int i = 0; i < 200; ++i) {
      many.emplace_back(16 * (i + 1));
      std::fill(many.back().begin(), many.back().end(), i);
    }
    for (int i = 0; i < 200; ++i) EXPECT_EQ(many[i][16 * i], i);
  }
}

TEST(Scratch, EachThreadHasItsOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int round = 0; round < 100; ++round) {
        Scratch<int> scratch(64);
        std::fill(scratch.begin(), scratch.end(), i);
        EXPECT_EQ(scratch[63], i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace oscarkv::cpu
