#include "kernels/cpu/slab_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/api/page_layout.h"
#include "kernels/cpu/slab_pool.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::cpu {
namespace {

bool IsAligned(const std::byte* memory, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(bytes) == 0;
}

// Whether huge pages were asked for at this address; nothing where the system does not tell.
std::optional<bool> WantsHugePages(const std::byte* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream file("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> begin >> dash >> end && dash == '-') {
      found = begin <= address && address < end;
    } else if (found && line.rfind("VmFlags:", 0) == 0) {
      return (line + " ").find(" hg ") != std::string::npos;
    }
  }
  return std::nullopt;
}

bool SystemHasHugePages() {
  return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
}

TEST(SlabMemory, ASlabLeavesLittle) {
  for (std::int64_t bytes = 64; bytes < (64 << 20); bytes += AlignUp(1 + bytes / 50)) {
    const SlabShape shape = ShapeOfSlab(bytes);
    ASSERT_GE(shape.pieces, 1);
    const std::int64_t left = shape.bytes - shape.pieces * bytes;
    ASSERT_GE(left, 0);
    if (!SlabsAreShared()) {
      ASSERT_EQ(left, 0);
      continue;
    }
    EXPECT_EQ(shape.bytes % kHugePageBytes, 0) << bytes;
    // Small ones a hundredth, others what the best of a few shapes leaves.
    EXPECT_LE(left, shape.bytes / (bytes <= 65'536 ? 100 : 8)) << bytes;
    EXPECT_LE(shape.bytes, 4 * std::max(2 * kHugePageBytes, bytes + kHugePageBytes)) << bytes;
  }
  // The whole address space of a process would not hold more.
  EXPECT_EQ(ShapeOfSlab(std::int64_t{1} << 40).pieces, 1);
}

TEST(SlabMemory, IsAlignedAndApart) {
  std::vector<std::byte*> slabs;
  constexpr std::int64_t kBytes = 3 * kHugePageBytes;
  for (int i = 0; i < 9; ++i) {
    slabs.push_back(TakeSlabMemory(kBytes, i % 2 == 0 ? PageSize::kHuge : PageSize::kSmall));
    ASSERT_NE(slabs.back(), nullptr);
    EXPECT_TRUE(IsAligned(slabs.back(), SlabsAreShared() ? kHugePageBytes : kPageAlignment));
    std::memset(slabs.back(), i, kBytes);
  }
  for (int i = 0; i < 9; i += 2) GiveSlabMemory(slabs[i], kBytes);
  for (int i = 1; i < 9; i += 2) {
    EXPECT_EQ(std::to_integer<int>(slabs[i][0]), i);
    EXPECT_EQ(std::to_integer<int>(slabs[i][kBytes - 1]), i);
    GiveSlabMemory(slabs[i], kBytes);
  }
}

TEST(SlabMemory, WhatDoesNotFitTheAddressSpaceIsRefused) {
  if (!SlabsAreShared()) GTEST_SKIP() << "memory comes from the sanitizer";
  if (::oscarkv::testing::Emulated()) GTEST_SKIP() << "an emulated system does not keep limits";
  std::int64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) GTEST_SKIP() << "the system does not tell";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  constexpr std::int64_t kBytes = 64 * kHugePageBytes;
  std::byte* exact = nullptr;
  std::byte* none = nullptr;
  {
    // Room for one, but not for the more that aligning it may take.
    rlimit low = before;
    low.rlim_cur = static_cast<rlim_t>(pages * 4096 + kBytes + kHugePageBytes / 2);
    ASSERT_EQ(setrlimit(RLIMIT_AS, &low), 0);
    exact = TakeSlabMemory(kBytes, PageSize::kSmall);
    none = TakeSlabMemory(kBytes, PageSize::kSmall);
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  }
  ASSERT_NE(exact, nullptr);
  EXPECT_EQ(none, nullptr);
  std::memset(exact, 1, kBytes);
  GiveSlabMemory(exact, kBytes);
}

// One slab of a size may hold little, and is not to take two megabytes for it.
TEST(SlabMemory, HugePagesFromTheSecondSlabOn) {
  if (!SlabsAreShared()) GTEST_SKIP() << "memory comes from the sanitizer";
  if (::oscarkv::testing::Emulated()) GTEST_SKIP() << "an emulated system does not tell";
  if (!SystemHasHugePages()) GTEST_SKIP() << "the system has no huge pages";
  constexpr std::int64_t kPiece = 131'072;
  SlabPool pool;
  std::vector<SlabPool::Piece> pieces(ShapeOfSlab(kPiece).pieces + 1);
  for (SlabPool::Piece& piece : pieces) {
    piece = pool.Take(kPiece);
    ASSERT_NE(piece.data, nullptr);
  }
  const std::optional<bool> first = WantsHugePages(pieces.front().data);
  if (!first.has_value()) GTEST_SKIP() << "the system does not tell";
  EXPECT_FALSE(*first);
  EXPECT_EQ(WantsHugePages(pieces.back().data), true);
  for (const SlabPool::Piece& piece : pieces) pool.Give(piece);
}

}  // namespace
}  // namespace oscarkv::cpu
