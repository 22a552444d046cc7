#include "kernels/cpu/encode_steps.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/residual.h"
#include "tests/kernels/support/each_target.h"

namespace oscarkv::cpu {
namespace {

TEST(EncodeStepsTest, SumsSquaresInDouble) {
  for (const int dim : {8, 64, 80, 256}) {
    std::mt19937 random(dim);
    std::vector<float> x(static_cast<std::size_t>(3) * dim);
    for (float& value : x) value = std::ldexp(static_cast<float>(random() % 1000), 60);
    double sums[3];
    SumSquares(x.data(), 3, dim, sums);
    for (int t = 0; t < 3; ++t) {
      long double expected = 0;
      for (int c = 0; c < dim; ++c) {
        const long double value = x[t * dim + c];
        expected += value * value;
      }
      EXPECT_NEAR(sums[t] / static_cast<double>(expected), 1, 1e-14);
    }
  }
}

TEST(EncodeStepsTest, ColumnsAreRotatedAsOneAloneToTheBit) {
  ::oscarkv::testing::ForEachTarget([] {
    for (const int dim : kHeadDims) {
      for (const int count : {16, 48, 128}) {
        std::mt19937 random(dim);
        std::normal_distribution<float> normal;
        std::vector<float> columns(static_cast<std::size_t>(dim) * count);
        for (float& x : columns) x = normal(random);
        std::vector<float> one_by_one = columns;
        std::vector<float> one(dim);
        for (int i = 0; i < count; ++i) {
          for (int c = 0; c < dim; ++c) one[c] = one_by_one[c * count + i];
          Rotate(one.data(), dim);
          for (int c = 0; c < dim; ++c) one_by_one[c * count + i] = one[c];
        }
        RotateColumns(columns.data(), dim, count);
        ASSERT_EQ(columns, one_by_one) << dim << " x " << count;
      }
    }
  });
}

// Adding the coded errors back leaves an error across the direction only.
TEST(EncodeStepsTest, TakesTheErrorAlongTheDirection) {
  for (const int dim : {64, 80, 128, 256}) {
    std::mt19937 random(dim);
    std::normal_distribution<float> normal;
    std::vector<float> keys(128 * static_cast<std::size_t>(dim));
    std::vector<float> decoded(keys.size());
    std::vector<float> direction(dim);
    for (float& x : keys) x = normal(random);
    for (std::size_t i = 0; i < keys.size(); ++i) decoded[i] = keys[i] + 0.3F * normal(random);
    double squares = 0;
    for (float& x : direction) squares += std::pow(x = normal(random), 2);
    for (float& x : direction) x = static_cast<float>(x / std::sqrt(squares));
    std::vector<double> c(128);
    ProjectErrors(keys.data(), decoded.data(), direction.data(), 128, dim, c.data());
    for (int t = 0; t < 128; ++t) {
      double expected = 0;
      for (int i = 0; i < dim; ++i) {
        expected += direction[i] * (double{keys[t * dim + i]} - decoded[t * dim + i]);
      }
      ASSERT_NEAR(c[t], expected, 1e-9);
    }
    std::vector<std::int8_t> codes(128);
    const ResidualScale scale = EncodeResiduals(c.data(), 128, codes.data());
    AddResiduals(codes.data(), scale.Step(), direction.data(), 128, dim, decoded.data());
    std::vector<double> left(128);
    ProjectErrors(keys.data(), decoded.data(), direction.data(), 128, dim, left.data());
    for (int t = 0; t < 128; ++t) ASSERT_LE(std::abs(left[t]), 0.57 * scale.Step());
  }
}

TEST(EncodeStepsTest, RescaleBringsTheLargestMagnitudeToWhereFitsAreSafe) {
  for (const float largest : {1e-30F, 3e-5F, 1.0F, 511.9F, 512.0F, 65504.0F, 1e30F}) {
    float x[] = {largest / 3, -largest, 0};
    int exponent = 3;
    Rescale(x, 3, exponent);
    EXPECT_GE(-x[1], 256) << largest;
    EXPECT_LT(-x[1], 512) << largest;
    EXPECT_EQ(std::ldexp(x[1], exponent - 3), -largest);
  }
}

TEST(EncodeStepsTest, RescaleLeavesZerosAlone) {
  float x[] = {0, 0};
  int exponent = 7;
  Rescale(x, 2, exponent);
  EXPECT_EQ(exponent, 7);
  EXPECT_EQ(x[0], 0);
}

}  // namespace
}  // namespace oscarkv::cpu
