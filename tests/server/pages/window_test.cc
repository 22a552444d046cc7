#include "server/pages/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/server/support/fake_backend.h"

namespace oscarkv {
namespace {

using ::testing::ElementsAreArray;

class WindowTest : public ::testing::Test {
 protected:
  std::vector<BlockRef> Blocks(std::size_t count) {
    std::vector<BlockRef> blocks;
    EXPECT_TRUE(pool_.Allocate(MemoryKind::kWindow, 64, count, &blocks).ok());
    return blocks;
  }
  Window Filled(std::size_t count) {
    Window window(4);
    for (BlockRef& block : Blocks(count)) window.PushBack(std::move(block));
    return window;
  }

  FakeBackend backend_;
  MemoryBudget budget_{100000};
  BlockPool pool_{&backend_, &budget_};
};

TEST_F(WindowTest, PopFrontIsUndoneByPushFront) {
  Window window = Filled(6);
  const std::vector<BlockId> before(window.ids().begin(), window.ids().end());
  std::vector<BlockRef> taken;
  window.PopFront(4, &taken);
  EXPECT_EQ(window.begin(), 4 + kPageTokens);
  EXPECT_EQ(window.bytes(), 2 * 64);
  EXPECT_THAT(window.ids(), ElementsAreArray({before[4], before[5]}));
  window.PushFront(&taken);
  EXPECT_EQ(window.begin(), 4);
  EXPECT_EQ(window.bytes(), 6 * 64);
  EXPECT_THAT(window.ids(), ElementsAreArray(before));
}

TEST_F(WindowTest, TruncateKeepsBlocksWithATokenLeft) {
  for (std::int64_t length = 4; length <= 4 + 3 * kWindowBlockTokens; ++length) {
    Window window = Filled(3);
    window.Truncate(length);
    const std::int64_t blocks = (length - 4 + kWindowBlockTokens - 1) / kWindowBlockTokens;
    ASSERT_EQ(window.size(), static_cast<std::size_t>(blocks)) << length;
    ASSERT_EQ(backend_.blocks(), blocks);
  }
}

TEST_F(WindowTest, ReplaceReturnsTheOldBlock) {
  Window window = Filled(2);
  const BlockId before = window.ids()[1];
  BlockRef fresh = Blocks(1)[0];
  const BlockId after = fresh.id();
  const BlockRef old = window.Replace(1, std::move(fresh));
  EXPECT_EQ(old.id(), before);
  EXPECT_EQ(window.ids()[1], after);
}

TEST_F(WindowTest, RestartsEmpty) {
  Window window = Filled(3);
  window.Restart(77);
  EXPECT_EQ(window.begin(), 77);
  EXPECT_EQ(window.capacity_end(), 77);
  EXPECT_EQ(window.bytes(), 0);
  EXPECT_EQ(backend_.blocks(), 0);
}

}  // namespace
}  // namespace oscarkv
