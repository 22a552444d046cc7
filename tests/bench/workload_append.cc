#include <algorithm>
#include <cstring>

#include "kernels/api/page_layout.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/workload.h"

namespace oscarkv::bench {
namespace {

// Tokens of all sessions of a call into window blocks: each call into blocks of its own, or, where
// they leave room, into the slots after those of the call before. The baseline is what a BF16 cache
// of [kv_head][token][head_dim] does: it copies rows.
class AppendWorkload : public Workload {
 public:
  AppendWorkload(Environment& environment, const Row& row)
      : backend_(environment.backend(row.threads)),
        executor_(environment.executor(row.threads)),
        row_(row),
        spec_(row.spec()),
        blocks_per_session_((row.context + kWindowBlockTokens - 1) / kWindowBlockTokens),
        calls_per_block_(std::max<std::int64_t>(1, kWindowBlockTokens / row.context)),
        calls_(environment.InstancesOf(row.bf16_bytes())),
        blocks_(BlockSets() * row.batch * blocks_per_session_, kNoBlock),
        cache_(BlockSets() * SetBytes()) {
    status_ = backend_.Allocate(TokenBlockLayout(spec_, kWindowBlockTokens).bytes, blocks_);
    keys_ = reinterpret_cast<const std::uint16_t*>(environment.arena());
    ours = {calls_, [this](std::int64_t call) { return Append(call); }};
    bf16 = {calls_, [this](std::int64_t call) {
              CopyRows(call);
              return KernelStatus::Ok();
            }};
  }
  ~AppendWorkload() override {
    if (status_.ok()) backend_.Free(blocks_);
  }

  const KernelStatus& status() const { return status_; }

 private:
  // A set: blocks for the tokens of a call, in which those of calls_per_block_ calls have room.
  std::int64_t BlockSets() const { return (calls_ + calls_per_block_ - 1) / calls_per_block_; }
  std::int64_t SetBytes() const {
    return row_.batch * blocks_per_session_ * TokenBlockLayout(spec_, kWindowBlockTokens).bytes;
  }
  std::int64_t SetOf(std::int64_t call) const { return call / calls_per_block_; }
  std::int64_t SlotOf(std::int64_t call) const { return call % calls_per_block_ * row_.context; }
  const std::uint16_t* Rows(std::int64_t call) const {
    return keys_ + call * (row_.bf16_bytes() / 2);
  }

  KernelStatus Append(std::int64_t call) {
    std::vector<AppendItem> items;
    const std::int64_t width = std::int64_t{1} * row_.kv_heads * row_.head_dim;
    for (int session = 0; session < row_.batch; ++session) {
      const BlockId* const blocks =
          blocks_.data() + (SetOf(call) * row_.batch + session) * blocks_per_session_;
      const std::uint16_t* const keys = Rows(call) + session * 2 * row_.context * width;
      for (std::int64_t token = 0; token < row_.context; token += kWindowBlockTokens) {
        AppendItem item;
        item.spec = &spec_;
        item.block = blocks[token / kWindowBlockTokens];
        item.slot = static_cast<std::int32_t>(SlotOf(call));
        item.tokens = static_cast<std::int32_t>(
            std::min<std::int64_t>(kWindowBlockTokens, row_.context - token));
        item.keys = keys + token * width;
        item.values = keys + (row_.context + token) * width;
        items.push_back(item);
      }
    }
    return backend_.Append(items);
  }

  void CopyRows(std::int64_t call) {
    const std::int64_t dim = row_.head_dim;
    const std::int64_t tokens = row_.context;
    const std::int64_t capacity = blocks_per_session_ * kWindowBlockTokens;
    // A piece: keys or values of one kv head of one session.
    executor_.ParallelFor(2LL * row_.batch * row_.kv_heads, [&](std::int64_t piece) {
      const std::int64_t tensor = piece / row_.kv_heads;
      const std::int64_t head = piece % row_.kv_heads;
      const std::uint16_t* const from = Rows(call) + tensor * tokens * row_.kv_heads * dim;
      std::uint16_t* const to = cache_.as<std::uint16_t>() + SetOf(call) * SetBytes() / 2 +
                                (piece * capacity + SlotOf(call)) * dim;
      for (std::int64_t token = 0; token < tokens; ++token) {
        std::memcpy(to + token * dim, from + (token * row_.kv_heads + head) * dim, 2 * dim);
      }
    });
  }

  Backend& backend_;
  cpu::Executor& executor_;
  const Row row_;
  const LayerSpec spec_;
  const std::int64_t blocks_per_session_;
  const std::int64_t calls_per_block_;
  const std::int64_t calls_;
  std::vector<BlockId> blocks_;
  HugeBuffer cache_;
  const std::uint16_t* keys_ = nullptr;
  KernelStatus status_;
};

}  // namespace

WorkloadResult MakeAppendWorkload(Environment& environment, const Row& row) {
  return MakeWorkloadOf<AppendWorkload>(environment, row);
}

}  // namespace oscarkv::bench
