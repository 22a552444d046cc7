// Memory of slabs: from the system and back to it, in huge pages where it has them.
//
// Thread-safety: all functions may be called at once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscarkv::cpu {

inline constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

// How many pieces of one size a slab holds, and its bytes, whole huge pages of which the pieces
// leave little. Under the address sanitizer, which looks between allocations only, a slab is one
// piece and no more.
struct SlabShape {
  std::int64_t pieces;
  std::int64_t bytes;
};

// REQUIRES: 0 < piece_bytes <= 2^40.
SlabShape ShapeOfSlab(std::int64_t piece_bytes);
// Whether slabs come from the system and may hold several pieces: not under the address sanitizer.
bool SlabsAreShared();

// Bytes of the pages that the system gives where they are not huge.
std::int64_t SmallPageBytes();

// Whether the system is asked for huge pages. They are resident whole from the first byte that is
// written on: that is for those who will fill them.
enum class PageSize : std::uint8_t { kSmall, kHuge };

// `bytes` of zeros or anything, aligned to 64 bytes, and to kHugePageBytes where there is room for
// that; null if there is no memory. REQUIRES: bytes of a SlabShape.
std::byte* TakeSlabMemory(std::int64_t bytes, PageSize pages) noexcept;

// Asks for huge pages from now on, or for none any more: what is resident stays as it is.
// REQUIRES: SlabsAreShared(), and a whole slab.
void AdviseSlabMemory(std::byte* memory, std::int64_t bytes, PageSize pages) noexcept;

// Gives the memory behind the addresses back, which stay: they read as zeros, and take memory again
// once written on. REQUIRES: SlabsAreShared(); whole small pages of a slab.
void DropSlabMemory(std::byte* memory, std::int64_t bytes) noexcept;

// What was dropped of a huge page stays with the rest of it until the system runs short. This takes
// such pages apart, for a millisecond or so, and changes nothing that the program sees, even where
// the slab was given back meanwhile. REQUIRES: SlabsAreShared(), and a whole slab.
void SplitSlabMemory(std::byte* memory, std::int64_t bytes) noexcept;

// REQUIRES: from TakeSlabMemory, with the same bytes, and not given back since.
void GiveSlabMemory(std::byte* memory, std::int64_t bytes) noexcept;

}  // namespace oscarkv::cpu
