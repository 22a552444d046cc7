#include "server/pages/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
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
    table.Reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      table.Push(blocks[i], 4 + static_cast<std::int64_t>(i) * kPageTokens, i % 2 == 0);
    }
    return table;
  }

  // Where pages are, and how long.
  static std::vector<std::pair<std::int64_t, std::int32_t>> Places(
      const std::vector<PageRef>& pages) {
    std::vector<std::pair<std::int64_t, std::int32_t>> places;
    for (const PageRef& page : pages) places.emplace_back(page.begin, page.tokens);
    return places;
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
  table.Reserve(1);
  table.Push(block[0], table.end(), false);
  EXPECT_EQ(table.tokens(), 2 * kPageTokens + 10);
  const std::vector<PageRef> pages = AllPages(table.runs());
  EXPECT_EQ(pages[1].tokens, 10);
  EXPECT_EQ(pages[2].begin, 4 + kPageTokens + 10);
  table.Pop(2);
  EXPECT_EQ(table.tokens(), kPageTokens);
  EXPECT_EQ(table.blind_pages(), 1);
}

// Tables that share pages go on for themselves; no page outlives the last table that needs it.
TEST_F(PageTableTest, SharedTablesAreTablesOfTheirOwn) {
  for (const std::size_t pages : {1U, 3U, 63U, 64U, 65U, 128U, 140U}) {
    PageTable table = Table(pages);
    const std::vector<PageRef> before = AllPages(table.runs());
    for (std::int64_t length = 0; length <= table.end(); length += 61) {
      PageTable fork = table.Share();
      EXPECT_EQ(fork.bytes(), table.bytes());
      fork.PrepareTruncate(length);
      EXPECT_EQ(Places(AllPages(fork.runs())), Places(before));
      fork.Truncate(length);
      PageTable twin = Table(pages);
      twin.Truncate(length);
      EXPECT_EQ(Places(AllPages(fork.runs())), Places(AllPages(twin.runs())));
      EXPECT_EQ(fork.tokens(), twin.tokens());
      EXPECT_EQ(fork.bytes(), twin.bytes());
      EXPECT_EQ(fork.blind_pages(), twin.blind_pages());
      if (length <= 4) continue;
      std::vector<BlockRef> block;
      ASSERT_TRUE(pool_.Allocate(MemoryKind::kPages, 64, 1, &block).ok());
      fork.Reserve(1);
      fork.Push(block[0], fork.end(), true);
      EXPECT_EQ(fork.tokens(), twin.tokens() + kPageTokens);
      EXPECT_EQ(Places(AllPages(table.runs())), Places(before));
    }
    EXPECT_EQ(backend_.blocks(), static_cast<std::int64_t>(pages));

    // What a fork has dropped goes with the table that it came from.
    PageTable fork = table.Share();
    fork.PrepareTruncate(4 + kPageTokens / 2);
    fork.Truncate(4 + kPageTokens / 2);
    table = PageTable();
    EXPECT_EQ(backend_.blocks(), 1);
  }
}

}  // namespace
}  // namespace oscarkv
