#include "kernels/cpu/encode_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/api/layer_spec.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/tile.h"
#include "tests/kernels/support/each_target.h"
#include "tests/kernels/support/stored_rows.h"

namespace oscarkv::cpu {
namespace {

using ::oscarkv::testing::ForEachTarget;
using ::oscarkv::testing::StoredRows;

// Rounded to 16 bits.
std::vector<float> Numbers(DType storage, int rows, int dim, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows) * dim);
  for (float& value : x) value = FromBits16(storage, ToBits16(storage, size * normal(random)));
  return x;
}

TEST(EncodeStepsTest, SumsSquaresInDouble) {
  for (const int dim : kHeadDims) {
    const std::vector<float> x = Numbers(DType::kBF16, 40, dim, 0x1p60F, dim);
    double sums[40];
    SumSquares(StoredRows(DType::kBF16, dim, x).rows(), 40, sums);
    for (int t = 0; t < 40; ++t) {
      long double expected = 0;
      for (int c = 0; c < dim; ++c) {
        const long double value = x[t * dim + c];
        expected += value * value;
      }
      EXPECT_NEAR(sums[t] / static_cast<double>(expected), 1, 1e-14);
    }
  }
}

TEST(EncodeStepsTest, WidensRowsOfBlocksToTheBit) {
  for (const DType storage : {DType::kBF16, DType::kFP16}) {
    for (const int tokens : {1, 31, 32, 33, 128}) {
      const std::vector<float> x = Numbers(storage, 128, 80, 3, 1);
      std::vector<float> out(static_cast<std::size_t>(tokens) * 80);
      WidenRows(StoredRows(storage, 80, x).rows(), tokens, out.data());
      EXPECT_TRUE(std::equal(out.begin(), out.end(), x.begin()));
    }
  }
}

// What was scaled stands for the rows over their norms, rotated, and is of the size that it should
// be: on every instruction set, for rows of any size.
TEST(EncodeStepsTest, ScaledRowsStandForTheRows) {
  ForEachTarget([] {
    for (const int dim : kHeadDims) {
      for (const float size : {1e-39F, 1e-30F, 1.0F, 1e30F, 5e37F}) {
        const std::vector<float> x = Numbers(DType::kBF16, kPageTokens, dim, size, dim);
        const StoredRows stored(DType::kBF16, dim, x);
        std::vector<std::uint16_t> norms;
        for (int t = 0; t < kPageTokens; ++t) norms.push_back(ToBF16(size * std::exp2f(t % 7)));
        for (const bool normed : {false, true}) {
          for (const bool rotated : {false, true}) {
            SCOPED_TRACE(::testing::Message() << dim << " size " << size << " normed " << normed
                                              << " rotated " << rotated);
            const Scaled scaled =
                ScaleRows(stored.rows(), normed ? norms.data() : nullptr, rotated);
            float largest = 0;
            for (int t = 0; t < kPageTokens; ++t) {
              double dot = 0;  // with column 5 of H
              double size_of_row = 0;
              for (int c = 0; c < dim; ++c) {
                const double factor = rotated ? HadamardSign(dim, c, 5) / std::sqrt(dim) : c == 5;
                dot += factor * x[t * dim + c];
                size_of_row = std::max(size_of_row, std::abs(double{x[t * dim + c]}));
              }
              const double norm = normed ? FromBF16(norms[t]) : 1.0;
              const float at = scaled.x[static_cast<std::size_t>(t) * dim + 5] * scaled.factor;
              ASSERT_NEAR(std::ldexp(double{at}, scaled.exponent), dot / norm,
                          3e-6 * size_of_row / norm);
            }
            for (const float value : scaled.x) {
              largest = std::max(largest, std::abs(value * scaled.factor));
            }
            EXPECT_LT(largest, 512);
            EXPECT_TRUE(largest >= 256 || scaled.exponent == -126);
          }
        }
      }
    }
  });
}

TEST(EncodeStepsTest, PacksCodesAsTheFormatSays) {
  ForEachTarget([] {
    for (const int bits : {2, 4}) {
      for (const int columns : kHeadDims) {
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(kPageTokens) * columns);
        for (std::size_t i = 0; i < codes.size(); ++i) {
          codes[i] = static_cast<std::uint8_t>(i * i / 3 % (1U << bits));
        }
        std::vector<std::byte> expected(CodeBytes(kPageTokens, columns, bits));
        std::vector<std::byte> packed(expected.size());
        oscarkv::PackCodes(codes.data(), kPageTokens, columns, bits, expected.data());
        PackCodes(codes.data(), kPageTokens, columns, bits, packed.data());
        EXPECT_EQ(packed, expected);
      }
    }
  });
}

TEST(EncodeStepsTest, ScalingLeavesZerosAlone) {
  const std::vector<float> zeros(static_cast<std::size_t>(kPageTokens) * 64);
  for (const bool rotated : {false, true}) {
    const Scaled scaled = ScaleRows(StoredRows(DType::kFP16, 64, zeros).rows(), nullptr, rotated);
    EXPECT_EQ(scaled.exponent, 0);
    EXPECT_EQ(scaled.factor, 1);
    EXPECT_TRUE(std::equal(zeros.begin(), zeros.end(), scaled.x.begin()));
  }
}

}  // namespace
}  // namespace oscarkv::cpu
