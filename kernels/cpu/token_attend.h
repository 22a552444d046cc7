// Attention of a tile of queries over tokens in 16 bits: window and sinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/query_tile.h"

namespace oscarkv::cpu {

// A block of 16-bit tokens: room for `capacity` of them, the first of which sits at position
// `begin`; the first `tokens` are valid.
struct TokenBlock {
  const std::byte* bytes;
  int capacity;
  std::int64_t begin;
  int tokens;
};

// Counts the blocks in `state`, in their order.
void AttendTokens(const LayerMemory& layer, std::span<const TokenBlock> blocks,
                  const QueryTile& queries, TileState& state);

}  // namespace oscarkv::cpu
