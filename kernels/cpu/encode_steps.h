// The steps of encoding a kv head of a page, but for fits, at the speed of the processor. Sums run
// in an order of their own, so that the bits are the same on every instruction set. Thread-safe:
// free functions on the memory they are given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/dtype.h"
#include "kernels/api/page_layout.h"
#include "kernels/cpu/scratch.h"

namespace oscarkv::cpu {

// Keys or values of one kv head as a window holds them: rows of `dim` numbers of 16 bits, in blocks
// of kWindowBlockTokens tokens.
struct TokenRows {
  DType storage = DType::kBF16;
  int dim = 0;
  const void* const* blocks = nullptr;

  const std::uint16_t* Row(int token) const {
    return static_cast<const std::uint16_t*>(blocks[token / kWindowBlockTokens]) +
           static_cast<std::ptrdiff_t>(token % kWindowBlockTokens) * dim;
  }
};

// out[count] = the 16-bit numbers at `from`. REQUIRES: count is a multiple of 16.
void Widen(DType storage, const void* from, std::size_t count, float* out);

// out[tokens][dim] = the first `tokens` rows. REQUIRES here and below: dim is a multiple of 16.
void WidenRows(const TokenRows& rows, int tokens, float* out);

// sums[t] = the sum over c of rows[t][c]^2, in double.
void SumSquares(const TokenRows& rows, int tokens, double* sums);

// Numbers that are x * factor * 2^exponent: x * factor is of a magnitude that fits can take.
struct Scaled {
  Scratch<float> x;
  float factor = 1;  // a power of two
  int exponent = 0;  // in [-126, 127]
};

// x[kPageTokens][dim] of the rows of a page, over their norms (bf16; null: no norms), times H
// (kernels/codec/hadamard.h) if `rotated`. The largest magnitude of x * factor is in [2^8, 2^9):
// smaller only where the exponent would leave its range, or if all are zero. `next`: rows of a page
// that are needed after these, which memory may bring meanwhile; may be null.
Scaled ScaleRows(const TokenRows& rows, const std::uint16_t* norms, bool rotated,
                 const TokenRows* next = nullptr);

// out[dim][tokens] = x[tokens][dim], transposed. REQUIRES: both are multiples of 16.
void TransposeRows(const float* x, int tokens, int dim, float* out);

// As oscarkv::PackCodes (kernels/codec/tile.h).
void PackCodes(const std::uint8_t* codes, int rows, int columns, int bits, std::byte* out);

}  // namespace oscarkv::cpu
