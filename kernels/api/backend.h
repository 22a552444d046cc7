// The seam between sessions and arithmetic: blocks of memory and batched operations on them.
//
// Memory is handed out in blocks of bytes, named by id: pages (PageLayout) and blocks of 16-bit
// tokens (TokenBlockLayout). They live in the backend's own memory; callers hold ids and host
// pointers, never device pointers.
//
// Thread-safety: all functions may be called at once, as long as no block is written by one call
// and touched by another. A call returns when its work is done and its host pointers are free.
// Every function either does all of its work or returns an error and changes nothing that its
// caller can see, but for the contents of output blocks and output spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/api/dtype.h"
#include "kernels/api/layer_spec.h"
#include "kernels/api/status.h"

namespace oscarkv {

enum class BlockId : std::uint64_t {};
inline constexpr BlockId kNoBlock{0};

struct BackendInfo {
  std::string name;               // "cpu", "cuda"
  std::string device;             // for people, e.g. the processor's name and instruction set
  int threads = 0;                // host threads that compute
  std::int64_t memory_bytes = 0;  // of the device (CPU: of the host, or its cgroup's limit)
  std::int64_t block_bytes = 0;   // of blocks that are allocated, now
  std::int64_t held_bytes = 0;    // of the device's memory that is taken for blocks, now: theirs,
                                  // what lies between them, and what is kept for others
};

// A page as a session sees it: its first `tokens` tokens, from position `begin` on.
struct PageRef {
  BlockId block = kNoBlock;
  std::int64_t begin = 0;
  std::int32_t tokens = kPageTokens;
};

// One layer of one session. Positions count from the session's first token. Tokens lie, by
// position: [0, sinks) in the sinks block, then in pages, then [window_begin, length) in window
// blocks of kWindowBlockTokens, all full but the last.
struct LayerView {
  const LayerSpec* spec = nullptr;
  BlockId sinks = kNoBlock;                             // kNoBlock if codec.sinks == 0
  std::span<const std::span<const PageRef>> page_runs;  // one after the other
  std::span<const BlockId> window;
  std::int64_t window_begin = 0;
  std::int64_t length = 0;
  const float* directions = nullptr;  // residual directions [kv_heads][key_dim]; null: none yet
};

// Rows [0, tokens) of K and V go to slots [slot, slot + tokens) of a block of 16-bit tokens.
struct AppendItem {
  const LayerSpec* spec = nullptr;
  BlockId block = kNoBlock;
  std::int32_t block_tokens = kWindowBlockTokens;  // capacity of the block
  std::int32_t slot = 0;
  std::int32_t tokens = 0;
  DType dtype = DType::kBF16;    // of keys and values: the storage dtype, or fp32, which is rounded
  const void* keys = nullptr;    // [tokens][kv_heads][key_dim], packed, any alignment
  const void* values = nullptr;  // [tokens][kv_heads][value_dim]
};

struct AttendItem {
  LayerView layer;
  std::int32_t num_queries = 0;   // query tokens
  std::int64_t query_begin = 0;   // position of the first; may be negative or past the end
  DType dtype = DType::kBF16;     // of queries: any
  const void* queries = nullptr;  // [num_queries][query_heads][key_dim], packed, any alignment
  bool causal = true;             // false: every query sees the end of the cache
  bool count_sink_logits = true;  // false: learned sinks are counted by another shard
  float* outputs = nullptr;       // [num_queries][query_heads][value_dim]
  float* log_sum_exps = nullptr;  // [num_queries][query_heads]; natural log, after scale and
                                  // soft cap, over what the output covers, learned sink
                                  // included if counted; -inf (and output 0) where a query
                                  // sees nothing
};

// What sealing did to one kv head.
struct SealedHead {
  Rotation rotation = Rotation::kHadamard;
  Fit fit = Fit::kVariance;
  float key_error = 0;    // |K - decoded|_F / |K|_F over the page, residual included
  float value_error = 0;  // likewise
};

// A page, or some of its kv heads. A page may be sealed by several calls, one after the other; the
// first takes head 0 and writes what all heads share too. A call of one item and one head stays on
// its caller's thread, where threads of the host compute: so a page can be sealed in the background
// while others use those.
struct SealItem {
  const LayerSpec* spec = nullptr;
  std::span<const BlockId>
      tokens;                // window blocks: the page's kPageTokens tokens, then its context
  std::int32_t context = 0;  // tokens after the page that the choice of a plan looks at
  BlockId page = kNoBlock;   // written
  const std::uint16_t* queries =
      nullptr;                        // sample [num_queries][query_heads][key_dim], storage dtype
  std::int32_t num_queries = 0;       // query tokens in the sample; 0: none
  const float* directions = nullptr;  // [kv_heads][key_dim] or null: no residual is kept
  SealedHead* heads = nullptr;        // [kv_heads]; those that are sealed are written
  float norm_imbalance = 0;           // written with head 0: max over median of the page's token
                                      // norms, 1 without
  std::int32_t head_begin = 0;        // which kv heads are sealed
  std::int32_t head_end = 0;          // 0: all from head_begin on
};

// Tokens [begin, begin + tokens) decoded to the storage dtype.
struct ReadItem {
  LayerView layer;
  std::int64_t begin = 0;
  std::int64_t tokens = 0;
  std::uint16_t* keys = nullptr;    // [tokens][kv_heads][key_dim]
  std::uint16_t* values = nullptr;  // [tokens][kv_heads][value_dim]
};

struct CopyItem {
  BlockId from = kNoBlock;
  BlockId to = kNoBlock;
  std::int64_t bytes = 0;  // from the start of both
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendInfo Info() const = 0;

  // Fills `blocks` with new blocks of `bytes` each, 64-byte aligned, contents undefined. All or
  // none.
  virtual KernelStatus Allocate(std::int64_t bytes, std::span<BlockId> blocks) = 0;
  // kNoBlock is skipped.
  virtual void Free(std::span<const BlockId> blocks) = 0;

  virtual KernelStatus Append(std::span<const AppendItem> items) = 0;
  virtual KernelStatus Attend(std::span<const AttendItem> items) = 0;
  virtual KernelStatus Seal(std::span<SealItem> items) = 0;
  virtual KernelStatus ReadTokens(std::span<const ReadItem> items) = 0;

  virtual KernelStatus Copy(std::span<const CopyItem> items) = 0;
  virtual KernelStatus ReadBlock(BlockId block, std::span<std::byte> bytes) = 0;
  virtual KernelStatus WriteBlock(BlockId block, std::span<const std::byte> bytes) = 0;
};

}  // namespace oscarkv
