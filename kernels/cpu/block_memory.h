// Blocks of host memory by id.
//
// Thread-safety: all functions may be called at once. Find takes no lock; the caller sees to it
// that the blocks it finds are not freed meanwhile.
//
// Invariants:
//  1. An id is a slot number and the slot's tag. A slot's tag changes at every Free, so the id of a
//     freed block is unknown until 2^32 blocks have used its slot.
//  2. Slots never move: they lie in chunks that are only ever added.
//  3. `free_slots_` has room for every slot, so that Free needs no memory.
//  4. A slot with bytes == 0 is free, and in `free_slots_` unless a call under way holds it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/api/backend.h"
#include "kernels/cpu/slab_pool.h"

namespace oscarkv::cpu {

// An address and a size; data is null if there is no such block.
struct Block {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

class BlockMemory {
 public:
  BlockMemory();
  ~BlockMemory();
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  // Fills `blocks` with new blocks of `bytes` each, 64-byte aligned. All or none.
  KernelStatus Allocate(std::int64_t bytes, std::span<BlockId> blocks);
  // kNoBlock and unknown ids are skipped.
  void Free(std::span<const BlockId> blocks) noexcept;
  Block Find(BlockId id) const;

  // What blocks take, and what the system holds for them.
  SlabUse use() const { return pool_.use(); }

 private:
  struct Slot {
    std::atomic<std::byte*> data{nullptr};
    std::atomic<std::int64_t> bytes{0};
    std::atomic<std::uint32_t> tag{1};
    SlabPool::Member* slab = nullptr;  // touched by who allocates or frees the block
  };
  static constexpr std::uint32_t kChunkSlots = 1u << 14;
  static constexpr std::uint32_t kChunks = 1u << 16;
  using Chunk = std::array<Slot, kChunkSlots>;

  Slot* SlotAt(std::uint32_t index) const;
  // Takes `count` free slots. False if there are none left; may throw bad_alloc, and then none is
  // taken either.
  bool TakeSlots(std::size_t count, std::vector<std::uint32_t>& slots);

  SlabPool pool_;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_slots_;  // guarded by mutex_
  std::uint32_t slots_ = 0;                // ever made; guarded by mutex_
  std::unique_ptr<std::atomic<Chunk*>[]> chunks_;
};

}  // namespace oscarkv::cpu
