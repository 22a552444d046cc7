#include "kernels/codec/residual.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/dtype.h"

namespace oscarkv {
namespace {

std::vector<double> Random(int count, double size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, size);
  std::vector<double> x(count);
  for (double& value : x) value = normal(random);
  return x;
}

TEST(ResidualTest, CodesAreWithinHalfAStep) {
  for (const double size : {1e-30, 1e-3, 1.0, 7.0, 1e5, 1e30, 1e37}) {
    const std::vector<double> c = Random(128, size, 3);
    std::vector<std::int8_t> codes(128);
    const ResidualScale scale = EncodeResiduals(c.data(), 128, codes.data());
    const double step = scale.Step();
    double largest = 0;
    for (const double x : c) largest = std::max(largest, std::abs(x));
    EXPECT_NEAR(step * 127 / largest, 1, 1.0 / 2048);
    EXPECT_GE(FromFP16(scale.step), 1);
    EXPECT_LE(FromFP16(scale.step), 2);
    for (int t = 0; t < 128; ++t) {
      // Half a step, and what rounding the step to fp16 may take from the largest.
      ASSERT_LE(std::abs(c[t] - step * codes[t]), step * (0.5 + 127.0 / 2048)) << t;
      ASSERT_GE(codes[t], -127);
    }
  }
}

TEST(ResidualTest, ZerosHaveNoStep) {
  const std::vector<double> c(128, 0.0);
  std::vector<std::int8_t> codes(128, 77);
  const ResidualScale scale = EncodeResiduals(c.data(), 128, codes.data());
  EXPECT_EQ(scale.step, 0);
  EXPECT_EQ(scale.exponent, 0);
  EXPECT_EQ(scale.Step(), 0);
  EXPECT_EQ(codes, std::vector<std::int8_t>(128, 0));
}

TEST(ResidualTest, DenormalStepsDoNoHarm) {
  std::vector<double> c(128, 0.0);
  c[0] = std::ldexp(1.0, -149);
  std::vector<std::int8_t> codes(128);
  const ResidualScale scale = EncodeResiduals(c.data(), 128, codes.data());
  EXPECT_TRUE(std::isfinite(scale.Step()));
  EXPECT_GE(scale.exponent, -126);
}

}  // namespace
}  // namespace oscarkv
