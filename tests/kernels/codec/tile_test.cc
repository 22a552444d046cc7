#include "kernels/codec/tile.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace oscarkv {
namespace {

std::vector<std::uint8_t> RandomCodes(int rows, int columns, int bits) {
  std::mt19937 random(5);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows) * columns);
  for (auto& code : codes) code = static_cast<std::uint8_t>(random() % (1U << bits));
  return codes;
}

struct Shape {
  int rows, columns, bits;
};

class TileTest : public testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, TileTest,
                         testing::Values(Shape{16, 16, 2}, Shape{16, 16, 4}, Shape{128, 64, 2},
                                         Shape{128, 80, 4}, Shape{112, 128, 2},
                                         Shape{256, 128, 4}));

// Tiles of 64 bytes in [row tile][column tile]; in a tile one word a row, column c in byte c mod 4
// at bit 2 * (c / 4); the low plane whole, then the high one.
TEST_P(TileTest, EachCodeIsWhereTheFormatSays) {
  const auto [rows, columns, bits] = GetParam();
  const std::vector<std::uint8_t> codes = RandomCodes(rows, columns, bits);
  std::vector<std::byte> packed(CodeBytes(rows, columns, bits), std::byte{0xff});
  PackCodes(codes.data(), rows, columns, bits, packed.data());
  const int plane_bytes = rows * columns / 4;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const int tile = (row / 16) * (columns / 16) + column / 16;
      const int byte = 64 * tile + 4 * (row % 16) + (column % 16) % 4;
      const int shift = 2 * ((column % 16) / 4);
      int code = std::to_integer<int>(packed[byte]) >> shift & 3;
      if (bits == 4) code += 4 * (std::to_integer<int>(packed[plane_bytes + byte]) >> shift & 3);
      ASSERT_EQ(code, codes[row * columns + column]) << row << " " << column;
      ASSERT_EQ(CodeAt(packed.data(), rows, columns, bits, row, column), code);
    }
  }
}

}  // namespace
}  // namespace oscarkv
