// Attention of a tile of queries over tokens in 16 bits: window, sinks, and 16-bit sides of pages.
// All arithmetic is fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/query_tile.h"

namespace oscarkv::cpu {

// logits[row][token] = query . key, for keys [tokens][key_dim] in the storage dtype. Rows of
// `logits` are `tokens` apart. Soft cap not applied.
void DenseLogits(const LayerSpec& spec, const QueryTile& queries, const std::byte* keys, int tokens,
                 float* logits);

// state.out(row) += sum over tokens of weights[row][token] * value, for values [tokens][value_dim]
// in the storage dtype.
void AddDenseValues(const LayerSpec& spec, const std::byte* values, int tokens,
                    const float* weights, TileState& state);

// logits[count] = softcap * tanh(logits / softcap); as they are if softcap is 0.
void ApplySoftcap(float softcap, int count, float* logits);

// Counts a block of 16-bit tokens in `state`: room for `capacity` tokens, the first of which sits
// at position `begin`; the first `tokens` are valid.
void AttendTokens(const LayerMemory& layer, const std::byte* block, int capacity,
                  std::int64_t begin, int tokens, const QueryTile& queries, TileState& state);

}  // namespace oscarkv::cpu
