// Memory for blocks of few sizes and long lives. Pages and window blocks come and go in turns; from
// a general heap they would leave holes that nothing fits (a third of all memory on a long append).
// Here blocks of one size share slabs, which lie in huge pages but for the first of each size.
//
// Memory of one size cannot serve another, so what is free goes back to the system but for a share:
//  - a slab without a piece in use goes back whole, but for one of a size that has others: a size
//    that goes to and fro at the edge of a slab does not ask the system at each turn;
//  - idle pieces (slab.h) are at most kIdleShare of those in use, and as many as a slab has. What
//    is above goes back, from the slab that is used least; that slab has small pages from then on,
//    until all of it is in use.
// So a size holds 1 + kIdleShare times its pieces in use, one slab, and what lies between pieces
// in pages that are held for both. Take prefers idle pieces, and of slabs the fuller ones, so that
// others empty.
//
// Thread-safety: all functions may be called at once.
//
// Invariants, under `mutex_`:
//  1. A slab is in the list of its size that its free pieces call for (ListOf).
//  2. No size is without a piece in use, and at most one slab of a size is.
//  3. A size has at most IdleLimit() idle pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <span>

#include "kernels/cpu/slab.h"

namespace oscarkv::cpu {

// One in so many.
inline constexpr std::int64_t kIdleShare = 4;

// Bytes, of all sizes.
struct SlabUse {
  std::int64_t in_use = 0;  // of pieces that are taken
  std::int64_t held = 0;    // of the system's memory, for pieces in use or not
  std::int64_t mapped = 0;  // of slabs, with what they were not yet or are no longer held for
};

class SlabPool {
 public:
  struct Member;
  // 64-byte aligned memory, and the slab that it is a piece of. data is null if there is no memory.
  struct Piece {
    std::byte* data = nullptr;
    Member* slab = nullptr;
  };

  SlabPool();
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // A piece of at least `bytes`, contents undefined. Does not throw: where there is no memory for
  // its own records either, the piece is null. REQUIRES: bytes > 0.
  Piece Take(std::int64_t bytes) noexcept;
  // Needs no memory. REQUIRES: the piece was taken from this pool, and not given back since.
  void Give(const Piece& piece) noexcept;

  SlabUse use() const;

 private:
  using Members = std::list<Member>;

  // Which list a slab is in; Take prefers the first that is not empty. With n pieces free and
  // others in use: bit_width(n) if some are idle, kAbsent + bit_width(n) if none is.
  static constexpr int kUnused = 31;  // no piece in use
  static constexpr int kAbsent = 32;
  static constexpr int kFull = 63;

  struct Size {
    std::int64_t piece_bytes = 0;
    std::int64_t slab_pieces = 0;
    std::int64_t in_use = 0;  // pieces
    std::int64_t idle = 0;    // pieces
    std::array<Members, kFull + 1> lists;
    std::uint64_t filled = 0;  // bit i: lists[i] is not empty

    std::int64_t IdleLimit() const { return in_use / kIdleShare + slab_pieces; }
    // The slab to take a piece from; null if none has a free one.
    Member* Best();
    // A slab that has idle pieces and least in use. REQUIRES: there is one with some of each, or
    // one that is unused.
    Member& LeastUsed();
  };

  // Memory of slabs that are to be split.
  using Broken = std::array<std::span<std::byte>, 2>;

  // A slab of the size with a free piece. Null if there is no memory.
  Member* MemberWithRoom(std::int64_t piece_bytes) noexcept;
  // Adds a slab to a new size, or to one without a free piece. Throws bad_alloc if there is no
  // memory.
  Size& AddSlab(std::int64_t piece_bytes);
  static int ListOf(const Slab& slab);
  // Puts a slab into the list where it belongs now.
  static void Place(Member& member);
  void Remove(Member& member);
  Broken GiveLocked(const Piece& piece) noexcept;
  // Gives back what is above the limit. Returns slabs that are to be split, at most two.
  Broken Trim(Size& size);

  mutable std::mutex mutex_;
  std::map<std::int64_t, Size> sizes_;  // by bytes of a piece
  SlabUse use_;
};

}  // namespace oscarkv::cpu
