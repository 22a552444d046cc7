#include "kernels/cpu/slab_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "kernels/api/page_layout.h"

namespace oscarkv::cpu {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAPieceEach = true;
#elif defined(__has_feature)
constexpr bool kAPieceEach = __has_feature(address_sanitizer);
#else
constexpr bool kAPieceEach = false;
#endif

constexpr std::align_val_t kAlignment{kPageAlignment};
// Huge pages of a slab: at least so many, and so many times the least for what leaves less.
constexpr std::int64_t kLeastPages = 2;
constexpr std::int64_t kMostTimes = 4;
constexpr std::int64_t kLittle = 100;  // one part of so many may be left

std::byte* Map(std::int64_t bytes) {
  void* const memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

void Unmap(std::byte* memory, std::int64_t bytes) {
  if (bytes == 0) return;
  // It may fail where a process has as many mappings as it may and one would become two; then at
  // least no memory stays behind the addresses.
  if (munmap(memory, static_cast<std::size_t>(bytes)) != 0) {
    madvise(memory, static_cast<std::size_t>(bytes), MADV_DONTNEED);
  }
}

std::int64_t BytesToHugePage(const std::byte* memory) {
  return -reinterpret_cast<std::intptr_t>(memory) & (kHugePageBytes - 1);
}

// Mappings that touch are one to the system, which also places the next one right below the last:
// so most are aligned as they come, and few mappings hold many slabs.
std::byte* MapAligned(std::int64_t bytes) {
  std::byte* const any = Map(bytes);
  if (any == nullptr || BytesToHugePage(any) == 0) return any;
  std::byte* const wide = Map(bytes + kHugePageBytes);
  if (wide == nullptr) return any;
  Unmap(any, bytes);
  const std::int64_t before = BytesToHugePage(wide);
  Unmap(wide, before);
  Unmap(wide + before + bytes, kHugePageBytes - before);
  return wide + before;
}

}  // namespace

SlabShape ShapeOfSlab(std::int64_t piece_bytes) {
  if (kAPieceEach) return {1, piece_bytes};
  const std::int64_t least =
      std::max(kLeastPages, (piece_bytes + kHugePageBytes - 1) / kHugePageBytes);
  SlabShape best{0, 1};
  for (std::int64_t pages = least; pages <= kMostTimes * least; ++pages) {
    const std::int64_t bytes = pages * kHugePageBytes;
    const SlabShape shape{bytes / piece_bytes, bytes};
    const double used = static_cast<double>(shape.pieces) / static_cast<double>(bytes);
    if (used > static_cast<double>(best.pieces) / static_cast<double>(best.bytes)) best = shape;
    if (bytes - shape.pieces * piece_bytes <= bytes / kLittle) return shape;
  }
  return best;
}

bool SlabsAreShared() { return !kAPieceEach; }

std::int64_t SmallPageBytes() {
  static const std::int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

std::byte* TakeSlabMemory(std::int64_t bytes, PageSize pages) noexcept {
  if (kAPieceEach) {
    return static_cast<std::byte*>(
        ::operator new(static_cast<std::size_t>(bytes), kAlignment, std::nothrow));
  }
  std::byte* const memory = MapAligned(bytes);
  if (memory != nullptr && pages == PageSize::kHuge) AdviseSlabMemory(memory, bytes, pages);
  return memory;
}

void AdviseSlabMemory([[maybe_unused]] std::byte* memory, [[maybe_unused]] std::int64_t bytes,
                      [[maybe_unused]] PageSize pages) noexcept {
#if defined(MADV_HUGEPAGE)
  // A system without them says no, and all is as it was.
  madvise(memory, static_cast<std::size_t>(bytes),
          pages == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
}

void DropSlabMemory(std::byte* memory, std::int64_t bytes) noexcept {
  madvise(memory, static_cast<std::size_t>(bytes), MADV_DONTNEED);
}

void SplitSlabMemory([[maybe_unused]] std::byte* memory,
                     [[maybe_unused]] std::int64_t bytes) noexcept {
#if defined(MADV_COLD)
  // The one advice that harms nothing and for which Linux splits huge pages of which a part is
  // gone.
  madvise(memory, static_cast<std::size_t>(bytes), MADV_COLD);
#endif
}

void GiveSlabMemory(std::byte* memory, std::int64_t bytes) noexcept {
  if (kAPieceEach) return ::operator delete(memory, kAlignment);
  Unmap(memory, bytes);
}

}  // namespace oscarkv::cpu
