// Integer dot products on tiles, against codes taken out one at a time, on every instruction set.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/code_matrix.h"
#include "kernels/cpu/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/code_dots_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/code_bytes-inl.h"

#ifdef OSCARKV_DOT_ATTRIBUTES
HWY_PUSH_ATTRIBUTES(OSCARKV_DOT_ATTRIBUTES)
namespace oscarkv::cpu::HWY_NAMESPACE::with_dot_instructions {
#include "kernels/cpu/code_dots.inc"
#include "tests/kernels/cpu/store_code_dots.inc"
}  // namespace oscarkv::cpu::HWY_NAMESPACE::with_dot_instructions
HWY_POP_ATTRIBUTES
#endif  // OSCARKV_DOT_ATTRIBUTES

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {
namespace plain {
#include "kernels/cpu/code_dots.inc"
#include "tests/kernels/cpu/store_code_dots.inc"
}  // namespace plain

// Into out[v][r].
void CodeDotsOfTarget(const CodeMatrix& matrix, int first, int count, const ColumnTiles& columns,
                      const std::int8_t* x, int x_stride, int vectors, std::int32_t* out,
                      int out_stride) {
#ifdef OSCARKV_DOT_ATTRIBUTES
  if (UseDotInstructions()) {
    with_dot_instructions::StoreCodeDots(matrix, first, count, columns, x, x_stride, vectors, out,
                                         out_stride);
    return;
  }
#endif
  plain::StoreCodeDots(matrix, first, count, columns, x, x_stride, vectors, out, out_stride);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/codec/tile.h"
#include "kernels/cpu/scratch.h"
#include "tests/kernels/support/each_target.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::cpu {
namespace {

HWY_EXPORT(CodeDotsOfTarget);

using ::oscarkv::testing::ForEachTarget;
using ::oscarkv::testing::Random;

struct Case {
  int bits;
  int row_tiles;
  int column_tiles;
  int vectors;
};

// `columns`: the only tiles whose codes are to count.
void Check(const Case& test, int first, int count, const ColumnTiles& columns,
           const std::vector<std::uint8_t>& codes, const std::vector<std::int8_t>& x,
           int x_stride) {
  const int rows = test.row_tiles * 16;
  const int width = test.column_tiles * 16;
  const auto bytes = static_cast<std::size_t>(CodeBytes(rows, width, test.bits));
  Scratch<std::byte> packed(bytes);
  PackCodes(codes.data(), rows, width, test.bits, packed.data());
  const int out_stride = rows + 3;
  constexpr std::int32_t kUntouched = -123456789;
  std::vector<std::int32_t> out(static_cast<std::size_t>(test.vectors) * out_stride, kUntouched);
  HWY_DYNAMIC_DISPATCH(CodeDotsOfTarget)
  ({packed.data(), test.bits, test.row_tiles, test.column_tiles, 0}, first, count, columns,
   x.data(), x_stride, test.vectors, out.data(), out_stride);
  for (int v = 0; v < test.vectors; ++v) {
    for (int row = 0; row < out_stride; ++row) {
      std::int32_t ought = 0;
      for (int i = 0; i < columns.count && row < rows; ++i) {
        for (int c = columns.index[i] * 16; c < (columns.index[i] + 1) * 16; ++c) {
          ought += codes[row * width + c] * x[v * x_stride + c];
        }
      }
      const bool asked = row >= first * 16 && row < (first + count) * 16;
      ASSERT_EQ(out[v * out_stride + row], asked ? ought : kUntouched)
          << "vector " << v << " row " << row;
    }
  }
}

TEST(CodeDots, AreExactForAllShapes) {
  ForEachTarget([] {
    Random random(1);
    for (int trial = 0; trial < 100; ++trial) {
      SCOPED_TRACE("trial " + std::to_string(trial));
      const Case test{random.Pick({2, 4}), static_cast<int>(random.Int(1, 16)),
                      static_cast<int>(random.Int(4, 16)), static_cast<int>(random.Int(1, 16))};
      std::vector<std::uint8_t> codes(test.row_tiles * 16 * test.column_tiles * 16);
      for (auto& code : codes) {
        code = static_cast<std::uint8_t>(random.Int(0, (1 << test.bits) - 1));
      }
      const int x_stride = test.column_tiles * 16 + static_cast<int>(random.Int(0, 5));
      std::vector<std::int8_t> x(static_cast<std::size_t>(test.vectors) * x_stride);
      for (auto& value : x) value = static_cast<std::int8_t>(random.Int(-127, 127));
      const int first = static_cast<int>(random.Int(0, test.row_tiles - 1));
      ColumnTiles columns = ColumnTiles::All(test.column_tiles);
      if (random.Int(0, 1) == 0) {
        columns.count = 0;
        for (int tile = 0; tile < test.column_tiles; ++tile) {
          if (random.Int(0, 2) != 0) columns.Add(tile);
        }
      }
      Check(test, first, static_cast<int>(random.Int(0, test.row_tiles - first)), columns, codes, x,
            x_stride);
    }
  });
}

// The largest sums that can arise do not overflow on the way.
TEST(CodeDots, AreExactAtTheExtremes) {
  ForEachTarget([] {
    for (const int bits : {2, 4}) {
      for (const int value : {-127, 127}) {
        const Case test{bits, 2, 16, 16};
        const std::vector<std::uint8_t> codes(32 * 256, static_cast<std::uint8_t>((1 << bits) - 1));
        const std::vector<std::int8_t> x(16 * 256, static_cast<std::int8_t>(value));
        Check(test, 0, 2, ColumnTiles::All(16), codes, x, 256);
      }
    }
  });
}

}  // namespace
}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
