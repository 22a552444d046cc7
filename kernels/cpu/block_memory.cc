#include "kernels/cpu/block_memory.h"

#include <new>
#include <string>

namespace oscarkv::cpu {
namespace {

BlockId MakeId(std::uint32_t slot, std::uint32_t tag) {
  return BlockId{(static_cast<std::uint64_t>(tag) << 32) | slot};
}

std::uint32_t SlotOf(BlockId id) { return static_cast<std::uint32_t>(id); }
std::uint32_t TagOf(BlockId id) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id) >> 32);
}

}  // namespace

BlockMemory::BlockMemory() : chunks_(new std::atomic<Chunk*>[kChunks]()) {}

BlockMemory::~BlockMemory() {
  for (std::uint32_t i = 0; i < kChunks; ++i) {
    Chunk* chunk = chunks_[i].load(std::memory_order_relaxed);
    if (chunk == nullptr) break;
    delete chunk;
  }
}

BlockMemory::Slot* BlockMemory::SlotAt(std::uint32_t index) const {
  const std::uint32_t chunk_index = index / kChunkSlots;
  if (chunk_index >= kChunks) return nullptr;
  Chunk* chunk = chunks_[chunk_index].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : &(*chunk)[index % kChunkSlots];
}

bool BlockMemory::TakeSlots(std::size_t count, std::vector<std::uint32_t>& slots) {
  slots.reserve(count);
  const std::lock_guard lock(mutex_);
  while (free_slots_.size() < count) {
    const std::uint32_t chunk_index = slots_ / kChunkSlots;
    if (chunk_index >= kChunks) return false;
    free_slots_.reserve(slots_ + kChunkSlots);
    Chunk* chunk = new (std::nothrow) Chunk();
    if (chunk == nullptr) return false;
    chunks_[chunk_index].store(chunk, std::memory_order_release);
    for (std::uint32_t i = kChunkSlots; i-- > 0;) free_slots_.push_back(slots_ + i);
    slots_ += kChunkSlots;
  }
  slots.assign(free_slots_.end() - static_cast<std::ptrdiff_t>(count), free_slots_.end());
  free_slots_.resize(free_slots_.size() - count);
  return true;
}

KernelStatus BlockMemory::Allocate(std::int64_t bytes, std::span<BlockId> blocks) {
  if (bytes <= 0) return KernelStatus::InvalidArgument("a block needs at least one byte");
  std::vector<std::uint32_t> slots;
  if (!TakeSlots(blocks.size(), slots)) {
    return KernelStatus::ResourceExhausted("no room for more blocks");
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const SlabPool::Piece piece = pool_.Take(bytes);
    if (piece.data == nullptr) {
      Free(blocks.first(i));
      const std::lock_guard lock(mutex_);
      free_slots_.insert(free_slots_.end(), slots.begin() + static_cast<std::ptrdiff_t>(i),
                         slots.end());
      return KernelStatus::ResourceExhausted("no memory for " + std::to_string(blocks.size()) +
                                             " blocks of " + std::to_string(bytes) + " bytes");
    }
    Slot* slot = SlotAt(slots[i]);
    slot->slab = piece.slab;
    slot->data.store(piece.data, std::memory_order_relaxed);
    slot->bytes.store(bytes, std::memory_order_release);
    blocks[i] = MakeId(slots[i], slot->tag.load(std::memory_order_relaxed));
  }
  return KernelStatus::Ok();
}

void BlockMemory::Free(std::span<const BlockId> blocks) noexcept {
  for (const BlockId id : blocks) {
    if (Find(id).data == nullptr) continue;
    Slot* slot = SlotAt(SlotOf(id));
    // Tag 0 is never given out: kNoBlock stays unknown.
    const std::uint32_t tag = TagOf(id) + 1 == 0 ? 1 : TagOf(id) + 1;
    slot->tag.store(tag, std::memory_order_relaxed);
    slot->bytes.store(0, std::memory_order_relaxed);
    pool_.Give({slot->data.exchange(nullptr, std::memory_order_relaxed), slot->slab});
    const std::lock_guard lock(mutex_);
    free_slots_.push_back(SlotOf(id));
  }
}

Block BlockMemory::Find(BlockId id) const {
  const Slot* slot = SlotAt(SlotOf(id));
  if (slot == nullptr) return {};
  const std::int64_t bytes = slot->bytes.load(std::memory_order_acquire);
  if (bytes == 0 || slot->tag.load(std::memory_order_relaxed) != TagOf(id)) return {};
  return {slot->data.load(std::memory_order_relaxed), bytes};
}

}  // namespace oscarkv::cpu
