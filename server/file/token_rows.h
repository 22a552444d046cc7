// Blocks of 16-bit tokens as a session file keeps them: with the tokens that are there and no more.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/api/layer_spec.h"

namespace oscarkv {

// How many tokens a block of that many bytes has room for (TokenBlockLayout).
int TokenCapacity(const LayerSpec& spec, std::size_t block_bytes);

// The first `tokens` tokens of a block, in one with room for `capacity`; zero behind them.
// REQUIRES: both have room for them.
std::vector<std::byte> WithTokens(const LayerSpec& spec, std::span<const std::byte> block,
                                  int tokens, int capacity);

}  // namespace oscarkv
