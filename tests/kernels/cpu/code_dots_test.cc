// Integer dot products on tiles, against codes taken out one at a time.
#include "kernels/cpu/code_dots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/codec/tile.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::cpu {
namespace {

using ::oscarkv::testing::Random;

struct Case {
  int bits;
  int row_tiles;
  int column_tiles;
  int vectors;
};

void Check(const Case& test, int first, int count, std::vector<std::uint8_t> codes,
           const std::vector<std::int8_t>& x, int x_stride) {
  const int rows = test.row_tiles * 16;
  const int columns = test.column_tiles * 16;
  std::vector<std::byte> packed(CodeBytes(rows, columns, test.bits));
  PackCodes(codes.data(), rows, columns, test.bits, packed.data());
  const int out_stride = rows + 3;
  constexpr std::int32_t kUntouched = -123456789;
  std::vector<std::int32_t> out(static_cast<std::size_t>(test.vectors) * out_stride, kUntouched);
  CodeDots({packed.data(), test.bits, test.row_tiles, test.column_tiles}, first, count, x.data(),
           x_stride, test.vectors, out.data(), out_stride);
  for (int v = 0; v < test.vectors; ++v) {
    for (int row = 0; row < out_stride; ++row) {
      std::int32_t ought = 0;
      for (int c = 0; c < columns && row < rows; ++c) {
        ought += codes[row * columns + c] * x[v * x_stride + c];
      }
      const bool asked = row >= first * 16 && row < (first + count) * 16;
      ASSERT_EQ(out[v * out_stride + row], asked ? ought : kUntouched)
          << "vector " << v << " row " << row;
    }
  }
}

TEST(CodeDots, AreExactForAllShapes) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const Case test{random.Pick({2, 4}), static_cast<int>(random.Int(1, 16)),
                    static_cast<int>(random.Int(4, 16)), static_cast<int>(random.Int(1, 16))};
    std::vector<std::uint8_t> codes(test.row_tiles * 16 * test.column_tiles * 16);
    for (auto& code : codes) code = static_cast<std::uint8_t>(random.Int(0, (1 << test.bits) - 1));
    const int x_stride = test.column_tiles * 16 + static_cast<int>(random.Int(0, 5));
    std::vector<std::int8_t> x(static_cast<std::size_t>(test.vectors) * x_stride);
    for (auto& value : x) value = static_cast<std::int8_t>(random.Int(-127, 127));
    const int first = static_cast<int>(random.Int(0, test.row_tiles - 1));
    Check(test, first, static_cast<int>(random.Int(0, test.row_tiles - first)), codes, x, x_stride);
  }
}

// The largest sums that can arise do not overflow on the way.
TEST(CodeDots, AreExactAtTheExtremes) {
  for (const int bits : {2, 4}) {
    for (const int value : {-127, 127}) {
      const Case test{bits, 2, 16, 16};
      const std::vector<std::uint8_t> codes(32 * 256, static_cast<std::uint8_t>((1 << bits) - 1));
      const std::vector<std::int8_t> x(16 * 256, static_cast<std::int8_t>(value));
      Check(test, 0, 2, codes, x, 256);
    }
  }
}

}  // namespace
}  // namespace oscarkv::cpu
