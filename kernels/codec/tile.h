// Tiles of 2-bit codes, and matrices of codes made of them (kernels/PAGE_FORMAT.md).
//
// A tile is 16 rows x 16 columns in sixteen little-endian 32-bit words, one per row; column c sits
// in byte c mod 4, at bit 2 * (c / 4) of that byte. A plane is a [rows][columns] matrix as tiles
// in the order [row tile][column tile]. 4-bit codes are two planes, code = 4 * high + low, the low
// plane whole, then the high one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/page_layout.h"

namespace oscarkv {

// Where the 2-bit code (row, column) of a plane sits: bits [shift, shift + 2) of byte `offset`.
struct TilePosition {
  std::int64_t offset;
  int shift;
};

constexpr TilePosition PositionInPlane(int row, int column, int columns) {
  const std::int64_t tile =
      static_cast<std::int64_t>(row / kTileSide) * (columns / kTileSide) + column / kTileSide;
  const int in_row = column % kTileSide;
  return {tile * kTileBytes + (row % kTileSide) * 4 + in_row % 4, 2 * (in_row / 4)};
}

constexpr std::int64_t PlaneBytes(int rows, int columns) { return CodeBytes(rows, columns, 2); }

// codes[rows][columns], one a byte, each below 2^bits, to CodeBytes(rows, columns, bits) bytes.
// REQUIRES here and below: bits is 2 or 4; rows and columns are multiples of kTileSide.
void PackCodes(const std::uint8_t* codes, int rows, int columns, int bits, std::byte* out);

// One code of a packed matrix.
int CodeAt(const std::byte* packed, int rows, int columns, int bits, int row, int column);

}  // namespace oscarkv
