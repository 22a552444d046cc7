// Seals a page in three steps, so that a backend can spread heads over threads:
//
//   1. per kv head: SumSquares of its keys (kernels/cpu/encode_steps.h), if HasNorms(spec);
//   2. once: WritePageStart, which needs the sums of all heads;
//   3. per kv head, in any order and at the same time: EncodeHead.
//
// Together they write every byte of the page, padding as zeros. The bytes depend on nothing but the
// arguments.
//
// Thread-safety: the functions keep no state. EncodeHead of different heads of a page touch
// different bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/backend.h"
#include "kernels/api/layer_spec.h"
#include "kernels/cpu/encode_steps.h"

namespace oscarkv::cpu {

// One kv head of a page to be sealed. Queries and direction are values of the storage dtype, as
// fp32.
struct HeadTokens {
  TokenRows keys;          // [kPageTokens][key_dim]
  TokenRows values;        // [kPageTokens][value_dim]
  TokenRows context_keys;  // [context][key_dim], the tokens after the page
  int context = 0;
  // The sampled rows of the query heads of this kv head, in any fixed order; read under kAuto only.
  const float* queries = nullptr;    // [num_queries][key_dim]
  int num_queries = 0;               // rows; 0: rotated, kVariance
  const float* direction = nullptr;  // [key_dim] unit vector; null: no residual is kept
};

// Whether pages of such layers hold token norms.
bool HasNorms(const LayerSpec& spec);

// Writes what lies before the heads' regions: zeroes the header and writes the token norms.
// `square_sums`: [kv_heads][kPageTokens] from SumSquares; may be null if !HasNorms(spec).
// Returns the norm imbalance: the largest over the median norm (kPerHead: of the worst head), 1
// without norms.
float WritePageStart(const LayerSpec& spec, const double* square_sums, std::byte* page);

// Writes the header record and the region of `head`; says what it chose and how exact it is.
// REQUIRES: WritePageStart(spec, ..., page) is done.
SealedHead EncodeHead(const LayerSpec& spec, int head, const HeadTokens& tokens, std::byte* page);

}  // namespace oscarkv::cpu
