// A backend whose pages lose nothing: Seal copies the tokens as they are and notes what it was
// given, so that tests of sessions can expect exact results. It also checks its arguments: a block
// that is not allocated, a view that contradicts itself, and tokens that were never written fail
// the test.
//
// Thread-safety: as Backend's. Blocks themselves are not guarded, so that thread sanitizer sees
// who touches one that another writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/api/backend.h"
#include "server/base/mutex.h"
#include "tests/server/support/plain_attention.h"

namespace oscarkv {

// The pages of all runs, one after the other.
std::vector<PageRef> AllPages(std::span<const std::span<const PageRef>> runs);

class FakeBackend : public Backend {
 public:
  BackendInfo Info() const override;
  KernelStatus Allocate(std::int64_t bytes, std::span<BlockId> blocks) override;
  void Free(std::span<const BlockId> blocks) override;
  KernelStatus Append(std::span<const AppendItem> items) override;
  KernelStatus Attend(std::span<const AttendItem> items) override;
  // The page's bytes are a digest of all that it was made of: tokens, context, queries, directions.
  // It must be the same for all of its heads.
  KernelStatus Seal(std::span<SealItem> items) override;
  KernelStatus ReadTokens(std::span<const ReadItem> items) override;
  KernelStatus Copy(std::span<const CopyItem> items) override;
  KernelStatus ReadBlock(BlockId block, std::span<std::byte> bytes) override;
  KernelStatus WriteBlock(BlockId block, std::span<const std::byte> bytes) override;

  std::int64_t blocks() const;  // allocated and not freed

  // While there is one, heads may be sealed again, as after a call that failed when it was done.
  class Forgiveness {
   public:
    explicit Forgiveness(FakeBackend* backend) : backend_(backend) { backend_->forgiving_ = true; }
    ~Forgiveness() { backend_->forgiving_ = false; }
    Forgiveness(const Forgiveness&) = delete;
    Forgiveness& operator=(const Forgiveness&) = delete;

   private:
    FakeBackend* const backend_;
  };

 private:
  struct Block {
    std::vector<std::byte> bytes;
    std::vector<std::uint16_t> sealed;  // pages only: [kPageTokens] rows as TokenRow's
    std::int32_t sealed_heads = 0;      // the first ones
  };

  std::shared_ptr<Block> Find(BlockId id);
  // Keys of all heads, then values of all heads, of one token in a block of 16-bit tokens.
  std::vector<std::uint16_t> TokenRow(const LayerSpec& spec, BlockId block, int block_tokens,
                                      std::int64_t slot);
  void CheckView(const LayerView& view);
  PlainTokens Gather(const LayerView& view, std::int64_t begin, std::int64_t end);

  std::atomic<bool> forgiving_{false};
  mutable Mutex mutex_;
  std::uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<BlockId, std::shared_ptr<Block>> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oscarkv
