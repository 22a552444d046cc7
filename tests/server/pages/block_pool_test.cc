#include "server/pages/block_pool.h"

#include <gtest/gtest.h>

#include <new>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/faulty_backend.h"

namespace oscarkv {
namespace {

class BlockPoolTest : public ::testing::Test {
 protected:
  FakeBackend backend_;
  FaultyBackend faulty_{&backend_};
  MemoryBudget budget_{1000};
  BlockPool pool_{&faulty_, &budget_};
};

TEST_F(BlockPoolTest, FreesABlockWithItsLastRef) {
  std::vector<BlockRef> blocks;
  ASSERT_TRUE(pool_.Allocate(MemoryKind::kPages, 100, 2, &blocks).ok());
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(budget_.used(MemoryKind::kPages), 200);
  EXPECT_FALSE(blocks[0].shared());

  BlockRef other = blocks[0];
  EXPECT_TRUE(blocks[0].shared());
  EXPECT_EQ(other.id(), blocks[0].id());
  blocks.clear();
  EXPECT_EQ(backend_.blocks(), 1);
  EXPECT_FALSE(other.shared());

  BlockRef moved = std::move(other);
  other = moved;
  moved = BlockRef();
  EXPECT_EQ(backend_.blocks(), 1);
  other = BlockRef();
  EXPECT_EQ(backend_.blocks(), 0);
  EXPECT_EQ(pool_.blocks(), 0);
  EXPECT_EQ(budget_.used(), 0);
  EXPECT_EQ(other.id(), kNoBlock);
}

TEST_F(BlockPoolTest, AllocatesAllOrNothing) {
  std::vector<BlockRef> blocks;
  const absl::Status over = pool_.Allocate(MemoryKind::kWindow, 400, 3, &blocks);
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailsOf(over)->reason, "OUT_OF_MEMORY");

  faulty_.FailCall(0, KernelStatus::ResourceExhausted("device is full"));
  const absl::Status full = pool_.Allocate(MemoryKind::kWindow, 400, 2, &blocks);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);

  EXPECT_TRUE(blocks.empty());
  EXPECT_EQ(budget_.used(), 0);
  EXPECT_EQ(pool_.blocks(), 0);
  EXPECT_TRUE(pool_.Allocate(MemoryKind::kWindow, 400, 2, &blocks).ok());
}

// Whichever allocation fails, the pool's or the backend's before it has made a block.
TEST_F(BlockPoolTest, WithoutMemoryForRecordsThereIsNoBlock) {
  int failed = 0;
  for (int n = 0;; ++n) {
    std::vector<BlockRef> blocks;
    bool struck = false;
    {
      const testing::FailingNew failing(n);
      try {
        (void)pool_.Allocate(MemoryKind::kPages, 100, 3, &blocks);
      } catch (const std::bad_alloc&) {
      }
      struck = failing.struck();
    }
    if (!struck || backend_.blocks() > 0) break;  // the backend's own allocations are not its
    ++failed;
    EXPECT_TRUE(blocks.empty());
    EXPECT_EQ(budget_.used(), 0);
    EXPECT_EQ(pool_.blocks(), 0);
  }
  EXPECT_GE(failed, 6);  // ids, records, three blocks, the refs
}

}  // namespace
}  // namespace oscarkv
