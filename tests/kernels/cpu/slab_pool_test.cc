#include "kernels/cpu/slab_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cpu/slab_memory.h"

namespace oscarkv::cpu {
namespace {

TEST(SlabPool, PiecesAreAlignedAndApart) {
  SlabPool pool;
  std::map<std::byte*, SlabPool::Piece> taken;
  for (const std::int64_t bytes : {1, 64, 100, 75'072, 5 << 20}) {
    for (int i = 0; i < 9; ++i) {
      const SlabPool::Piece piece = pool.Take(bytes);
      ASSERT_NE(piece.data, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(piece.data) % 64, 0U);
      std::memset(piece.data, 7, static_cast<std::size_t>(bytes));
      const auto [place, fresh] = taken.emplace(piece.data, piece);
      ASSERT_TRUE(fresh);
      if (place != taken.begin()) {
        EXPECT_GE(place->first - std::prev(place)->first, 64);
      }
    }
  }
  for (const auto& [data, piece] : taken) pool.Give(piece);
  EXPECT_EQ(pool.use().mapped, 0);
}

TEST(SlabPool, RefusesWhatNoHostHas) {
  SlabPool pool;
  EXPECT_EQ(pool.Take(INT64_MAX).data, nullptr);
  EXPECT_EQ(pool.Take(std::int64_t{1} << 50).data, nullptr);
}

// Pages are kept, window blocks come and go between them: what is lost stays within a slab a size.
TEST(SlabPool, KeepsNoHoles) {
  constexpr std::int64_t kPage = 75'072;
  constexpr std::int64_t kBlock = 131'072;
  SlabPool pool;
  std::vector<SlabPool::Piece> pages;
  std::vector<SlabPool::Piece> window;
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 4; ++k) window.push_back(pool.Take(kBlock));
    pages.push_back(pool.Take(kPage));
    if (i < 4) continue;
    for (int k = 0; k < 4; ++k) {
      pool.Give(window.front());
      window.erase(window.begin());
    }
  }
  const std::int64_t in_use = 1000 * kPage + std::ssize(window) * kBlock;
  EXPECT_LE(pool.use().mapped, in_use + in_use / 50 + (8 << 20));
  for (const SlabPool::Piece& piece : pages) pool.Give(piece);
  for (const SlabPool::Piece& piece : window) pool.Give(piece);
  EXPECT_EQ(pool.use().mapped, 0);
}

// What a size may hold: pieces in use and the share of them that may be idle, one slab of those,
// and for each piece what it shares a page with; a slab that was just begun has a huge page of its
// own.
std::int64_t MostHeld(std::int64_t piece_bytes, std::int64_t in_use) {
  const SlabShape shape = ShapeOfSlab(piece_bytes);
  const std::int64_t pieces = in_use + in_use / kIdleShare + shape.pieces;
  return pieces * (piece_bytes + 2 * SmallPageBytes()) + kHugePageBytes;
}

// Most pieces of one size are freed, none of their slabs is wholly free; then another size grows.
TEST(SlabPool, WhatIsFreedOfOneSizeIsThereForAnother) {
  constexpr std::int64_t kPage = 75'072;
  constexpr std::int64_t kBlock = 131'072;
  constexpr int kPages = 1600;
  SlabPool pool;
  std::vector<SlabPool::Piece> pages;
  for (int i = 0; i < kPages; ++i) {
    pages.push_back(pool.Take(kPage));
    std::memset(pages.back().data, i % 251, kPage);
  }
  EXPECT_EQ(pool.use().in_use, kPages * kPage);
  std::int64_t in_use = kPages;
  for (int i = 0; i < kPages; ++i) {
    if (i % 32 == 0) continue;
    pool.Give(pages[i]);
    --in_use;
    ASSERT_EQ(pool.use().in_use, in_use * kPage);
    ASSERT_LE(pool.use().held, SlabsAreShared() ? MostHeld(kPage, in_use) : in_use * kPage);
  }
  if (SlabsAreShared()) {
    EXPECT_LE(pool.use().held, in_use * kPage * 5 / 4 + (6 << 20));
  }
  std::vector<SlabPool::Piece> blocks(900);
  for (SlabPool::Piece& block : blocks) block = pool.Take(kBlock);
  EXPECT_LE(pool.use().held, MostHeld(kPage, in_use) + MostHeld(kBlock, std::ssize(blocks)));
  for (int i = 0; i < kPages; i += 32) {
    for (std::int64_t k = 0; k < kPage; ++k) {
      ASSERT_EQ(std::to_integer<int>(pages[i].data[k]), i % 251);
    }
    pool.Give(pages[i]);
  }
  for (const SlabPool::Piece& block : blocks) pool.Give(block);
  EXPECT_EQ(pool.use().held, 0);
  EXPECT_EQ(pool.use().mapped, 0);
}

// Random use of several sizes that grow and shrink in turns.
TEST(SlabPool, HoldsNoMoreThanItsBound) {
  constexpr std::array<std::int64_t, 4> kBytes = {1024, 4928, 75'072, 1'500'032};
  SlabPool pool;
  std::mt19937 random(7);
  std::array<std::vector<SlabPool::Piece>, 4> taken;
  const int steps = SlabsAreShared() ? 200'000 : 10'000;
  for (int i = 0; i < steps; ++i) {
    const std::size_t size = random() % 4;
    std::vector<SlabPool::Piece>& pieces = taken[size];
    const bool grow = (i * 10 / steps + size) % 2 == 0;
    const bool few = std::ssize(pieces) * kBytes[size] < (64 << 20);
    if (pieces.empty() || (few && random() % 8 < (grow ? 5U : 3U))) {
      pieces.push_back(pool.Take(kBytes[size]));
      ASSERT_NE(pieces.back().data, nullptr);
    } else {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      pool.Give(pieces.back());
      pieces.pop_back();
    }
    std::int64_t in_use = 0;
    std::int64_t most = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      in_use += std::ssize(taken[k]) * kBytes[k];
      most += MostHeld(kBytes[k], std::ssize(taken[k]));
    }
    const SlabUse use = pool.use();
    ASSERT_EQ(use.in_use, in_use);
    ASSERT_GE(use.held, in_use);
    ASSERT_LE(use.held, SlabsAreShared() ? most : in_use);
    ASSERT_LE(use.held, use.mapped);
  }
  for (const std::vector<SlabPool::Piece>& pieces : taken) {
    for (const SlabPool::Piece& piece : pieces) pool.Give(piece);
  }
  EXPECT_EQ(pool.use().held, 0);
  EXPECT_EQ(pool.use().mapped, 0);
}

// A size that goes to and fro at the edge of a slab keeps it; one without pieces keeps nothing.
TEST(SlabPool, KeepsOneUnusedSlabOfASizeInUse) {
  if (!SlabsAreShared()) GTEST_SKIP() << "memory comes from the sanitizer";
  constexpr std::int64_t kPage = 75'072;
  const SlabShape shape = ShapeOfSlab(kPage);
  SlabPool pool;
  std::vector<SlabPool::Piece> pieces(static_cast<std::size_t>(shape.pieces));
  for (SlabPool::Piece& piece : pieces) piece = pool.Take(kPage);
  EXPECT_EQ(pool.use().mapped, shape.bytes);
  const std::byte* place = nullptr;
  for (int i = 0; i < 10; ++i) {
    const SlabPool::Piece more = pool.Take(kPage);
    EXPECT_EQ(pool.use().mapped, 2 * shape.bytes);
    EXPECT_TRUE(place == nullptr || more.data == place);
    place = more.data;
    pool.Give(more);
    EXPECT_EQ(pool.use().mapped, 2 * shape.bytes);
  }
  // A second unused slab goes.
  std::vector<SlabPool::Piece> others(static_cast<std::size_t>(2 * shape.pieces));
  for (SlabPool::Piece& piece : others) piece = pool.Take(kPage);
  EXPECT_EQ(pool.use().mapped, 3 * shape.bytes);
  for (const SlabPool::Piece& piece : others) pool.Give(piece);
  EXPECT_EQ(pool.use().mapped, 2 * shape.bytes);
  for (const SlabPool::Piece& piece : pieces) pool.Give(piece);
  EXPECT_EQ(pool.use().mapped, 0);
}

// Slabs that are used little are left to empty.
TEST(SlabPool, FillsTheFullerSlabsFirst) {
  if (!SlabsAreShared()) GTEST_SKIP() << "memory comes from the sanitizer";
  constexpr std::int64_t kPage = 75'072;
  const std::int64_t per_slab = ShapeOfSlab(kPage).pieces;
  SlabPool pool;
  std::vector<SlabPool::Piece> pieces(static_cast<std::size_t>(4 * per_slab));
  for (SlabPool::Piece& piece : pieces) piece = pool.Take(kPage);
  const SlabPool::Member* const fuller = pieces[0].slab;
  const SlabPool::Member* const other = pieces.back().slab;
  ASSERT_NE(fuller, other);
  for (int i = 0; i < 3; ++i) pool.Give(pieces[i]);
  for (int i = 0; i < 20; ++i) pool.Give(pieces[pieces.size() - 1 - i]);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pool.Take(kPage).slab, fuller);
  EXPECT_EQ(pool.Take(kPage).slab, other);
}

// Random takes and gives against a model: no two pieces in use share an address.
TEST(SlabPool, RandomUse) {
  SlabPool pool;
  std::mt19937 random(1);
  std::vector<SlabPool::Piece> taken;
  std::set<std::byte*> addresses;
  for (int i = 0; i < 20'000; ++i) {
    if (taken.empty() || random() % 5 < (i < 10'000 ? 3U : 2U)) {
      taken.push_back(pool.Take(1 + random() % 8 * 40'000));
      ASSERT_TRUE(addresses.insert(taken.back().data).second);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      addresses.erase(taken.back().data);
      pool.Give(taken.back());
      taken.pop_back();
    }
  }
  for (const SlabPool::Piece& piece : taken) pool.Give(piece);
  EXPECT_EQ(pool.use().mapped, 0);
}

TEST(SlabPool, ManyThreadsMayUseIt) {
  SlabPool pool;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&pool, thread] {
      for (int round = 0; round < 200; ++round) {
        std::vector<SlabPool::Piece> pieces;
        for (int i = 0; i < 9; ++i) {
          pieces.push_back(pool.Take(1000 * (1 + i % 3)));
          std::memset(pieces.back().data, thread, 1000);
        }
        for (const SlabPool::Piece& piece : pieces) {
          ASSERT_EQ(std::to_integer<int>(piece.data[999]), thread);
          pool.Give(piece);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.use().mapped, 0);
}

}  // namespace
}  // namespace oscarkv::cpu
