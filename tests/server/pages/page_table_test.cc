#include "server/pages/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/server/support/fake_backend.h"

namespace oscarkv {
namespace {

class PageTableTest : public ::testing::Test {
 protected:
  // A table of `count` pages from position 4 on, every other one sealed without queries.
  PageTable Table(std::size_t count) {
    std::vector<BlockRef> blocks;
    EXPECT_TRUE(pool_.Allocate(MemoryKind::kPages, 64, count, &blocks).ok());
    PageTable table;
    for (std::size_t i = 0; i < count; ++i) {
      table.Push(blocks[i], 4 + static_cast<std::int64_t>(i) * kPageTokens, i % 2 == 0);
    }
    return table;
  }

  FakeBackend backend_;
  MemoryBudget budget_{100000};
  BlockPool pool_{&backend_, &budget_};
};

TEST_F(PageTableTest, CountsWhatItHolds) {
  const PageTable table = Table(3);
  EXPECT_EQ(table.end(), 4 + 3 * kPageTokens);
  EXPECT_EQ(table.tokens(), 3 * kPageTokens);
  EXPECT_EQ(table.blind_pages(), 2);
  EXPECT_EQ(table.bytes(), 3 * 64);
  EXPECT_EQ(PageTable().end(), 0);
}

TEST_F(PageTableTest, TruncatesExactlyAtEveryLength) {
  for (std::int64_t length = 0; length <= 4 + 3 * kPageTokens + 5; ++length) {
    PageTable table = Table(3);
    table.Truncate(length);
    const std::int64_t kept = std::clamp<std::int64_t>(length - 4, 0, 3 * kPageTokens);
    ASSERT_EQ(table.tokens(), kept) << length;
    ASSERT_EQ(table.size(), static_cast<std::size_t>((kept + kPageTokens - 1) / kPageTokens));
    ASSERT_EQ(backend_.blocks(), static_cast<std::int64_t>(table.size()));
    ASSERT_EQ(table.bytes(), 64 * static_cast<std::int64_t>(table.size()));
    if (kept > 0) {
      ASSERT_EQ(table.end(), std::min(length, 4 + 3L * kPageTokens));
    }
  }
}

TEST_F(PageTableTest, GoesOnAfterATruncatedPage) {
  PageTable table = Table(2);
  table.Truncate(4 + kPageTokens + 10);
  std::vector<BlockRef> block;
  ASSERT_TRUE(pool_.Allocate(MemoryKind::kPages, 64, 1, &block).ok());
  table.Push(block[0], table.end(), false);
  EXPECT_EQ(table.tokens(), 2 * kPageTokens + 10);
  EXPECT_EQ(table.refs()[1].tokens, 10);
  EXPECT_EQ(table.refs()[2].begin, 4 + kPageTokens + 10);
  table.Pop(2);
  EXPECT_EQ(table.tokens(), kPageTokens);
  EXPECT_EQ(table.blind_pages(), 1);
}

}  // namespace
}  // namespace oscarkv
