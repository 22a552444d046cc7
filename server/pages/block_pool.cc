#include "server/pages/block_pool.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "server/base/kernel_status.h"

namespace oscarkv {

BlockRef::BlockRef(const BlockRef& other) : block_(other.block_) {
  if (block_) block_->refs.fetch_add(1, std::memory_order_relaxed);
}

void BlockRef::Drop() {
  if (block_ && block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    block_->pool->Free(block_);
  }
  block_ = nullptr;
}

absl::Status BlockPool::Allocate(MemoryKind kind, std::int64_t bytes, std::size_t count,
                                 std::vector<BlockRef>* blocks) {
  if (count == 0) return absl::OkStatus();
  const std::int64_t all = bytes * static_cast<std::int64_t>(count);
  if (!budget_->Reserve(kind, all)) {
    return OutOfMemory(
        absl::StrCat("the memory budget of ", budget_->total(), " bytes has no ", all, " left"));
  }
  std::vector<BlockId> ids(count, kNoBlock);
  if (const KernelStatus status = backend_->Allocate(bytes, ids); !status.ok()) {
    budget_->Release(kind, all);
    return FromKernelStatus(status);
  }
  blocks_.fetch_add(static_cast<std::int64_t>(count), std::memory_order_relaxed);
  blocks->reserve(blocks->size() + count);
  for (const BlockId id : ids) {
    blocks->push_back(
        BlockRef(new BlockRef::Block{.pool = this, .kind = kind, .id = id, .bytes = bytes}));
  }
  return absl::OkStatus();
}

void BlockPool::Free(BlockRef::Block* block) {
  backend_->Free(std::span(&block->id, 1));
  budget_->Release(block->kind, block->bytes);
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  delete block;
}

}  // namespace oscarkv
