// Blocks of the backend's memory, taken under a budget and given back when nobody holds them.
//
// Thread-safety: all functions of BlockPool may be called at once. A BlockRef is a value, like a
// shared_ptr: two threads may hold refs to one block, but not use one ref at once.
//
// Invariants: a block is in the budget for as long as it is allocated; it is freed exactly once,
// when its last BlockRef goes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "server/pages/memory_budget.h"

namespace oscarkv {

class BlockPool;

// A counted reference to a block, or to none.
class BlockRef {
 public:
  BlockRef() = default;
  ~BlockRef() { Drop(); }
  BlockRef(const BlockRef& other) noexcept;
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }

  explicit operator bool() const { return block_ != nullptr; }
  BlockId id() const { return block_ ? block_->id : kNoBlock; }
  std::int64_t bytes() const { return block_ ? block_->bytes : 0; }

  // Whether someone else holds the block too, so that it must be copied before it is written.
  // False stays false for as long as this ref is not copied; what others did is then visible.
  bool shared() const { return block_ && block_->refs.load(std::memory_order_acquire) > 1; }

 private:
  friend class BlockPool;
  struct Block {
    BlockPool* pool;
    MemoryKind kind;
    BlockId id;
    std::int64_t bytes;
    std::atomic<std::int64_t> refs{1};
  };
  explicit BlockRef(Block* block) : block_(block) {}
  void Drop() noexcept;

  Block* block_ = nullptr;
};

class BlockPool {
 public:
  // REQUIRES: both outlive the pool, and the pool all its blocks.
  BlockPool(Backend* backend, MemoryBudget* budget) : backend_(backend), budget_(budget) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Adds `count` new blocks of `bytes` each to `blocks`: all, or none and an error, which is
  // RESOURCE_EXHAUSTED where budget or device have too little left. None also if it throws
  // bad_alloc. `promise`: as MemoryBudget::Reserve's; after an error some of it may be gone.
  absl::Status Allocate(MemoryKind kind, std::int64_t bytes, std::size_t count,
                        std::vector<BlockRef>* blocks, Purpose purpose = Purpose::kKeep,
                        MemoryReservation* promise = nullptr);

  // Blocks allocated and not freed.
  std::int64_t blocks() const { return blocks_.load(std::memory_order_relaxed); }

 private:
  friend class BlockRef;
  void Free(BlockRef::Block* block) noexcept;

  Backend* const backend_;
  MemoryBudget* const budget_;
  std::atomic<std::int64_t> blocks_{0};
};

}  // namespace oscarkv
