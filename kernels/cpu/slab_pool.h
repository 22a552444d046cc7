// Memory for blocks of few sizes and long lives. Pages and window blocks come and go in turns; from
// a general heap they would leave holes that nothing fits (a third of all memory on a long append).
// Here blocks of one size share slabs, which lie in huge pages but for the first of each size, and
// a slab without blocks goes back to the system.
//
// Thread-safety: all functions may be called at once.
//
// Invariants, under `mutex_`:
//  1. A slab is in `with_room` of its size if a piece of it is free, else in `full`.
//  2. No slab is without a piece in use, and no size without a slab.
//  3. A piece that was given back holds the address of the one given back before it, or null: so
//     Give needs no memory and cannot fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>

namespace oscarkv::cpu {

class SlabPool {
 public:
  struct Slab;
  // 64-byte aligned memory, and the slab that it is a piece of. data is null if there is no memory.
  struct Piece {
    std::byte* data = nullptr;
    Slab* slab = nullptr;
  };

  SlabPool() = default;
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // A piece of at least `bytes`, contents undefined. Does not throw: where there is no memory for
  // its own records either, the piece is null. REQUIRES: bytes > 0.
  Piece Take(std::int64_t bytes) noexcept;
  // REQUIRES: the piece was taken from this pool, and not given back since.
  void Give(const Piece& piece) noexcept;

  // Bytes of all slabs, in use or not.
  std::int64_t slab_bytes() const;

 private:
  struct Size {
    std::list<Slab> with_room;
    std::list<Slab> full;
  };

  // The size's record, with a slab in its `with_room`. Null if there is no memory.
  Size* SizeWithRoom(std::int64_t piece_bytes) noexcept;
  // Puts a new slab in front of `with_room`. False if there is no memory; may throw bad_alloc, and
  // then nothing has changed either.
  bool AddSlab(std::int64_t piece_bytes, Size& size);

  mutable std::mutex mutex_;
  std::map<std::int64_t, Size> sizes_;  // by bytes of a piece
  std::int64_t slab_bytes_ = 0;
};

struct SlabPool::Slab {
  Size* size = nullptr;
  std::list<Slab>::iterator self;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  std::int64_t piece_bytes = 0;
  std::int32_t pieces = 0;
  std::int32_t untouched = 0;       // pieces from here on were never taken
  std::int32_t in_use = 0;          // taken and not given back
  std::byte* given_back = nullptr;  // the last one; the others follow from it

  bool is_full() const { return in_use == pieces; }
};

}  // namespace oscarkv::cpu
