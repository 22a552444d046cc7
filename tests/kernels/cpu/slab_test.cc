#include "kernels/cpu/slab.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "kernels/api/page_layout.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::cpu {
namespace {

// What the system says that it holds of a slab; nothing where it does not tell.
std::optional<std::int64_t> ResidentBytes(const Slab& slab) {
  std::vector<unsigned char> pages(static_cast<std::size_t>(slab.bytes() / SmallPageBytes()));
  if (mincore(slab.memory(), static_cast<std::size_t>(slab.bytes()), pages.data()) != 0) {
    return std::nullopt;
  }
  std::int64_t resident = 0;
  for (const unsigned char page : pages) resident += page & 1;
  return resident * SmallPageBytes();
}

struct Taken {
  std::byte* data;
  int mark;
};

// Random use of a slab against a model: pieces keep their bytes, and the slab counts what the
// system holds.
void UseAtRandom(std::int64_t piece_bytes, PageSize pages, std::uint32_t seed) {
  SCOPED_TRACE(piece_bytes);
  const bool told = SlabsAreShared() && !::oscarkv::testing::Emulated();
  std::mt19937 random(seed);
  Slab slab(piece_bytes);
  ASSERT_TRUE(slab.Map(pages));
  EXPECT_EQ(slab.held_bytes(), 0);
  std::vector<Taken> taken;
  const auto check = [&] {
    for (const Taken& piece : taken) {
      ASSERT_EQ(std::to_integer<int>(piece.data[0]), piece.mark);
      ASSERT_EQ(std::to_integer<int>(piece.data[piece_bytes - 1]), piece.mark);
    }
    ASSERT_EQ(slab.in_use(), std::ssize(taken));
    ASSERT_LE(slab.held_bytes(), slab.bytes());
    // Huge pages are counted whole, which the system may not have given.
    const std::optional<std::int64_t> resident = told ? ResidentBytes(slab) : std::nullopt;
    if (!resident.has_value()) return;
    if (pages == PageSize::kSmall || slab.has_gaps()) {
      ASSERT_EQ(slab.held_bytes(), *resident);
    } else {
      ASSERT_GE(slab.held_bytes(), *resident);
    }
  };
  for (int round = 0; round < 60; ++round) {
    const auto wanted = static_cast<std::int64_t>(random() % (slab.pieces() + 1));
    // The small-page slab of the test never fills up: from then on it would ask for huge ones.
    const std::int64_t most = slab.pieces() - (pages == PageSize::kSmall ? 1 : 0);
    while (std::ssize(taken) < std::min(wanted, most)) {
      std::byte* const data = slab.idle() > 0 ? slab.TakeIdle() : slab.TakeAbsent();
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % kPageAlignment, 0U);
      taken.push_back({data, static_cast<int>(random() % 255) + 1});
      std::memset(data, taken.back().mark, static_cast<std::size_t>(piece_bytes));
    }
    while (std::ssize(taken) > wanted) {
      std::swap(taken[random() % taken.size()], taken.back());
      slab.Give(taken.back().data);
      taken.pop_back();
    }
    check();
    if (!SlabsAreShared() || slab.idle() == 0 || random() % 2 == 0) continue;
    const std::int64_t in_use = slab.in_use();
    if (slab.DropIdle()) SplitSlabMemory(slab.memory(), slab.bytes());
    EXPECT_EQ(slab.idle(), 0);
    EXPECT_TRUE(slab.has_gaps());
    // Each piece holds itself and what it shares a page with.
    EXPECT_LE(slab.held_bytes(), in_use * (piece_bytes + 2 * SmallPageBytes()));
    check();
  }
}

TEST(Slab, HoldsWhatItSays) {
  std::uint32_t seed = 0;
  for (const std::int64_t bytes : {1024, 2368, 4096, 4928, 16'384, 75'072, 131'072, 1'500'032}) {
    UseAtRandom(bytes, PageSize::kSmall, ++seed);
    UseAtRandom(bytes, PageSize::kHuge, ++seed);
  }
}

TEST(Slab, WhatWasGivenBackReadsAsZeros) {
  if (!SlabsAreShared()) GTEST_SKIP() << "memory comes from the sanitizer";
  constexpr std::int64_t kBytes = 16'384;
  Slab slab(kBytes);
  ASSERT_TRUE(slab.Map(PageSize::kHuge));
  std::vector<std::byte*> pieces(static_cast<std::size_t>(slab.pieces()));
  for (std::byte*& piece : pieces) {
    piece = slab.TakeAbsent();
    std::memset(piece, 1, kBytes);
  }
  EXPECT_TRUE(slab.is_full());
  EXPECT_EQ(slab.held_bytes(), slab.bytes());
  for (std::size_t i = 1; i < pieces.size(); i += 2) slab.Give(pieces[i]);
  EXPECT_TRUE(slab.DropIdle());
  EXPECT_EQ(slab.held_bytes(), slab.in_use() * kBytes);
  for (std::size_t i = 1; i < pieces.size(); i += 2) {
    EXPECT_TRUE(slab.has_gaps());
    const std::byte* const data = slab.TakeAbsent();
    EXPECT_EQ(data, pieces[i]);
    for (std::int64_t k = 0; k < kBytes; ++k) ASSERT_EQ(data[k], std::byte{0});
  }
  EXPECT_FALSE(slab.has_gaps());
  EXPECT_EQ(slab.held_bytes(), slab.bytes());
  // Full again: its pages count as huge from here on.
  slab.Give(pieces[0]);
  EXPECT_TRUE(slab.DropIdle());
}

}  // namespace
}  // namespace oscarkv::cpu
