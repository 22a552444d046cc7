#include "server/pages/block_pool.h"

#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "server/base/kernel_status.h"
#include "server/base/reserve.h"

namespace oscarkv {

BlockRef::BlockRef(const BlockRef& other) noexcept : block_(other.block_) {
  if (block_) block_->refs.fetch_add(1, std::memory_order_relaxed);
}

void BlockRef::Drop() noexcept {
  if (block_ && block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    block_->pool->Free(block_);
  }
  block_ = nullptr;
}

absl::Status BlockPool::Allocate(MemoryKind kind, std::int64_t bytes, std::size_t count,
                                 std::vector<BlockRef>* blocks, Purpose purpose,
                                 MemoryReservation* promise) {
  if (count == 0) return absl::OkStatus();
  const std::int64_t all = bytes * static_cast<std::int64_t>(count);
  MemoryReservation reserved(budget_, kind);
  if (!reserved.Grow(all, purpose, promise)) {
    return OutOfMemory(
        absl::StrCat("the memory budget of ", budget_->total(), " bytes has no ", all, " left"));
  }
  // All records first: once the backend has the blocks, nothing can fail.
  std::vector<BlockId> ids(count, kNoBlock);
  std::vector<std::unique_ptr<BlockRef::Block>> records(count);
  for (std::unique_ptr<BlockRef::Block>& record : records) {
    record.reset(new BlockRef::Block{.pool = this, .kind = kind, .id = kNoBlock, .bytes = bytes});
  }
  ReserveMore(count, blocks);
  if (const KernelStatus status = backend_->Allocate(bytes, ids); !status.ok()) {
    return FromKernelStatus(status);
  }
  reserved.Detach();  // each block releases its own
  blocks_.fetch_add(static_cast<std::int64_t>(count), std::memory_order_relaxed);
  for (std::size_t i = 0; i < count; ++i) {
    records[i]->id = ids[i];
    blocks->push_back(BlockRef(records[i].release()));
  }
  return absl::OkStatus();
}

void BlockPool::Free(BlockRef::Block* block) noexcept {
  backend_->Free(std::span(&block->id, 1));
  budget_->Release(block->kind, block->bytes);
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  delete block;
}

}  // namespace oscarkv
