#include "kernels/cpu/slab_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

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
  EXPECT_EQ(pool.slab_bytes(), 0);
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
  EXPECT_LE(pool.slab_bytes(), in_use + in_use / 50 + (8 << 20));
  for (const SlabPool::Piece& piece : pages) pool.Give(piece);
  for (const SlabPool::Piece& piece : window) pool.Give(piece);
  EXPECT_EQ(pool.slab_bytes(), 0);
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
  EXPECT_EQ(pool.slab_bytes(), 0);
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
  EXPECT_EQ(pool.slab_bytes(), 0);
}

}  // namespace
}  // namespace oscarkv::cpu
