// The inner loop of attention on codes: dot products of 2-bit and 4-bit codes with int8 vectors,
// on tiles as they lie in a page.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscarkv::cpu {

// A packed matrix of codes (kernels/codec/tile.h): [16 * row_tiles][16 * column_tiles].
struct CodeMatrix {
  const std::byte* codes;
  int bits;  // 2 or 4
  int row_tiles;
  int column_tiles;  // <= 16
};

// out[v][r] = sum over columns c of code(r, c) * x[v][c], exact, for the rows r of row tiles
// [first, first + count) and `vectors` vectors v. The rows of x and out are `x_stride` and
// `out_stride` elements apart; out is indexed by the row of the whole matrix.
void CodeDots(const CodeMatrix& matrix, int first, int count, const std::int8_t* x, int x_stride,
              int vectors, std::int32_t* out, int out_stride);

}  // namespace oscarkv::cpu
