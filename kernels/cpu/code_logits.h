// Dot products of queries with coded keys, to choose between codings: 16 bits of a query times its
// scales, where attention (kernels/cpu/page_attend.h) takes 8.
#pragma once

#include <cstdint>

#include "kernels/api/page_layout.h"

namespace oscarkv::cpu {

// The codes of the keys of a page and kv head.
struct KeyCodes {
  int dim = 0;                          // a multiple of kTileSide
  int group = kPageTokens;              // tokens that share params; a multiple of 32
  const AffineFP16* params = nullptr;   // [kPageTokens / group][dim]
  const std::uint8_t* codes = nullptr;  // [kPageTokens][dim], each below 16
};

// logits[num_queries][kPageTokens] = the dot products of queries[num_queries][dim] with
// scale * code + zero, to within 2^-16 of the largest |query * scale| times the sum of the codes,
// and the rounding of fp32. The same bits on every instruction set. Thread-safe.
void CodeLogits(const float* queries, int num_queries, const KeyCodes& keys, float* logits);

}  // namespace oscarkv::cpu
