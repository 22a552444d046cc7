#include "kernels/codec/tile.h"

#include <bit>
#include <cstring>

namespace oscarkv {
namespace {

static_assert(std::endian::native == std::endian::little, "words of tiles are little-endian");

constexpr std::uint32_t kLowBits = 0x03030303;  // the low code of each byte

// The word of one row of a tile: codes 0-3, 4-7, 8-11 and 12-15 interleave byte by byte.
// `plane`: 0 for the low two bits of each code, 1 for the next two.
std::uint32_t PackRow(const std::uint8_t* codes, int plane) {
  std::uint32_t word = 0;
  for (int quarter = 0; quarter < 4; ++quarter) {
    std::uint32_t four;
    std::memcpy(&four, codes + 4 * quarter, sizeof(four));
    word |= ((four >> (2 * plane)) & kLowBits) << (2 * quarter);
  }
  return word;
}

}  // namespace

void PackCodes(const std::uint8_t* codes, int rows, int columns, int bits, std::byte* out) {
  for (int plane = 0; plane < bits / 2; ++plane) {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; column += kTileSide) {
        const std::uint32_t word =
            PackRow(codes + static_cast<std::ptrdiff_t>(row) * columns + column, plane);
        const std::int64_t offset = PositionInPlane(row, column, columns).offset;
        std::memcpy(out + plane * PlaneBytes(rows, columns) + offset, &word, sizeof(word));
      }
    }
  }
}

int CodeAt(const std::byte* packed, int rows, int columns, int bits, int row, int column) {
  const TilePosition at = PositionInPlane(row, column, columns);
  int code = 0;
  for (int plane = 0; plane < bits / 2; ++plane) {
    const auto byte = std::to_integer<int>(packed[plane * PlaneBytes(rows, columns) + at.offset]);
    code |= ((byte >> at.shift) & 3) << (2 * plane);
  }
  return code;
}

}  // namespace oscarkv
