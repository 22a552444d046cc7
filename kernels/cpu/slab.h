// A slab: memory from the system, cut into pieces of one size.
//
// A piece is in use, or idle: free, with the memory that it had; or absent: free, and no memory
// behind it. All are absent at first. What memory the system holds for a slab follows from that: a
// page of it (huge, or small once parts were given back) is held if it touches a piece that is not
// absent.
//
// Thread-safety: none.
//
// Invariants:
//  1. in_use() + idle() + absent() == pieces(), and `absent_` has a bit for each absent piece.
//  2. `held_pages_` is the number of pages of `page_bytes_` that touch a piece that is not absent.
//  3. A slab with `has_gaps_` asks for no huge pages, and has absent pieces; its pages are small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/slab_memory.h"

namespace oscarkv::cpu {

class Slab {
 public:
  // Without memory yet. Throws bad_alloc where there is none for its own records.
  // REQUIRES: 0 < piece_bytes <= 2^40, a multiple of kPageAlignment.
  explicit Slab(std::int64_t piece_bytes);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  // False if there is no memory. Once, before all that follows.
  bool Map(PageSize pages) noexcept;

  // The idle piece that was given last. Contents undefined. REQUIRES: idle() > 0.
  std::byte* TakeIdle() noexcept {
    const std::int64_t piece = idle_.back();
    idle_.pop_back();
    return memory_ + piece * piece_bytes_;
  }
  // The first absent piece. Contents undefined. REQUIRES: absent() > 0.
  std::byte* TakeAbsent() noexcept;
  // REQUIRES: taken, and not given since.
  void Give(const std::byte* piece) noexcept {
    idle_.push_back(static_cast<std::int32_t>((piece - memory_) / piece_bytes_));
  }
  // Makes idle pieces absent. REQUIRES: SlabsAreShared(), idle() > 0.
  // True if its pages were huge and are no longer: SplitSlabMemory(memory(), bytes()) is to follow.
  bool DropIdle() noexcept;

  std::int64_t pieces() const { return shape_.pieces; }
  std::int64_t in_use() const { return shape_.pieces - idle() - absent(); }
  std::int64_t idle() const { return static_cast<std::int64_t>(idle_.size()); }
  std::int64_t absent() const { return absent_pieces_; }
  bool is_full() const { return idle_.empty() && absent_pieces_ == 0; }
  // Whether parts of it were given back, and not all are in use again.
  bool has_gaps() const { return has_gaps_; }

  std::byte* memory() const { return memory_; }
  std::int64_t bytes() const { return shape_.bytes; }
  // What the system holds for it, up to bytes().
  std::int64_t held_bytes() const { return held_pages_ * page_bytes_; }

 private:
  bool IsAbsent(std::int64_t piece) const {
    return (absent_[static_cast<std::size_t>(piece / 64)] >> (piece % 64) & 1) != 0;
  }
  // Whether a piece other than `but` that touches the page is not absent.
  bool IsHeldBesides(std::int64_t page, std::int64_t but) const noexcept;
  // From now on pages are small; all that no piece holds is given back.
  void BreakUp() noexcept;
  // Gives back what lies behind absent pieces [begin, end) alone, from page `from` on. Returns one
  // past the last page that it looked at.
  std::int64_t Drop(std::int64_t begin, std::int64_t end, std::int64_t from) noexcept;

  const SlabShape shape_;
  const std::int64_t piece_bytes_;
  std::byte* memory_ = nullptr;
  std::int64_t page_bytes_ = 0;
  std::int64_t held_pages_ = 0;
  std::int64_t absent_pieces_;
  std::size_t absent_from_ = 0;  // no word of absent_ before this one has a bit
  std::vector<std::uint64_t> absent_;
  std::vector<std::int32_t> idle_;  // with room for all pieces; the last was given last
  bool has_gaps_ = false;
};

}  // namespace oscarkv::cpu
