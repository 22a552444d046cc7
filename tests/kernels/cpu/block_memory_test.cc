#include "kernels/cpu/block_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

namespace oscarkv::cpu {
namespace {

TEST(BlockMemory, BlocksAreAlignedAndApart) {
  BlockMemory memory;
  std::vector<BlockId> blocks(100);
  ASSERT_TRUE(memory.Allocate(100, blocks).ok());
  std::set<BlockId> ids(blocks.begin(), blocks.end());
  EXPECT_EQ(ids.size(), blocks.size());
  EXPECT_EQ(ids.count(kNoBlock), 0U);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block block = memory.Find(blocks[i]);
    ASSERT_NE(block.data, nullptr);
    EXPECT_EQ(block.bytes, 100);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % 64, 0U);
    std::memset(block.data, static_cast<int>(i), 100);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(memory.Find(blocks[i]).data[99]), static_cast<int>(i));
  }
}

TEST(BlockMemory, FreedIdsStayUnknown) {
  BlockMemory memory;
  std::set<BlockId> seen;
  for (int round = 0; round < 1000; ++round) {
    BlockId block = kNoBlock;
    ASSERT_TRUE(memory.Allocate(64, {&block, 1}).ok());
    EXPECT_TRUE(seen.insert(block).second);
    memory.Free({&block, 1});
    EXPECT_EQ(memory.Find(block).data, nullptr);
    memory.Free({&block, 1});
  }
}

TEST(BlockMemory, UnknownIdsAreNotFound) {
  BlockMemory memory;
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32,
                                 (std::uint64_t{1} << 32) | 0xFFFFFFFFu, ~std::uint64_t{0}}) {
    EXPECT_EQ(memory.Find(BlockId{id}).data, nullptr);
  }
}

TEST(BlockMemory, AllOrNone) {
  BlockMemory memory;
  BlockId blocks[3] = {kNoBlock, kNoBlock, kNoBlock};
  EXPECT_EQ(memory.Allocate(std::int64_t{1} << 61, blocks).code,
            KernelErrorCode::kResourceExhausted);
  EXPECT_EQ(memory.Allocate(INT64_MAX, blocks).code, KernelErrorCode::kResourceExhausted);
  EXPECT_TRUE(memory.Allocate(64, blocks).ok());
}

TEST(BlockMemory, GrowsBeyondItsFirstChunk) {
  BlockMemory memory;
  std::vector<BlockId> blocks(40'000);
  ASSERT_TRUE(memory.Allocate(64, blocks).ok());
  for (const BlockId block : blocks) ASSERT_NE(memory.Find(block).data, nullptr);
  memory.Free(blocks);
  for (const BlockId block : blocks) ASSERT_EQ(memory.Find(block).data, nullptr);
}

TEST(BlockMemory, ManyThreadsMayUseIt) {
  BlockMemory memory;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&memory] {
      for (int round = 0; round < 300; ++round) {
        std::vector<BlockId> blocks(7);
        ASSERT_TRUE(memory.Allocate(64 + round, blocks).ok());
        for (const BlockId block : blocks) {
          ASSERT_EQ(memory.Find(block).bytes, 64 + round);
          std::memset(memory.Find(block).data, round, 64);
        }
        memory.Free(blocks);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace oscarkv::cpu
