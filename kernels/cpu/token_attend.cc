#include "kernels/cpu/token_attend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/token_attend.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/dense_tokens-inl.h"
#include "kernels/cpu/softmax_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Of at most kWindowBlockTokens tokens at a time. `next`: bytes from this run to the next.
void AttendRunOfTokens(const LayerSpec& spec, const std::byte* keys, const std::byte* values,
                       std::int64_t begin, int tokens, std::ptrdiff_t next,
                       const QueryTile& queries, TileState& state) {
  HWY_ALIGN float memory[kTileRows * kWindowBlockTokens];
  const Rows logits{memory, kWindowBlockTokens};
  DenseLogits(spec.storage, queries.plain(), queries.rows(), {keys, tokens, spec.key_dim, next},
              logits);
  const int padded = static_cast<int>(hwy::RoundUpTo(tokens, kGroup));
  for (int row = 0; row < queries.rows(); ++row) {
    std::fill(logits[row] + tokens, logits[row] + padded, 0.0F);
  }
  CountLogits(spec, queries, begin, tokens, padded, logits, state);
  AddDenseValues(spec.storage, logits, queries.rows(), {values, tokens, spec.value_dim, next},
                 {state.out(0), spec.value_dim});
}

void AttendTokenBlocks(const LayerMemory& layer, std::span<const TokenBlock> blocks,
                       const QueryTile& queries, TileState& state) {
  const LayerSpec& spec = *layer.spec;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const TokenBlock& block = blocks[i];
    const TokenBlockLayout layout(spec, block.capacity);
    const std::byte* keys = block.bytes + layout.head_bytes * queries.kv_head();
    const std::byte* values = keys + layout.value_offset;
    const bool fetch = i + 1 < blocks.size() && block.capacity == blocks[i + 1].capacity;
    for (int first = 0; first < block.tokens; first += kWindowBlockTokens) {
      const int tokens = std::min(kWindowBlockTokens, block.tokens - first);
      const std::int64_t begin = block.begin + first;
      if (!queries.SeesAny(begin, begin + tokens)) continue;
      AttendRunOfTokens(spec, keys + std::int64_t{2} * first * spec.key_dim,
                        values + std::int64_t{2} * first * spec.value_dim, begin, tokens,
                        fetch ? blocks[i + 1].bytes - block.bytes : 0, queries, state);
    }
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(AttendTokenBlocks);

void AttendTokens(const LayerMemory& layer, std::span<const TokenBlock> blocks,
                  const QueryTile& queries, TileState& state) {
  HWY_DYNAMIC_DISPATCH(AttendTokenBlocks)(layer, blocks, queries, state);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
