#include "kernels/codec/scaled.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/api/dtype.h"

namespace oscarkv {
namespace {

TEST(PowerOfTwo, IsThatOfEveryExponentOfAHeader) {
  for (int exponent = -128; exponent <= 127; ++exponent) {
    EXPECT_EQ(PowerOfTwo(static_cast<std::int8_t>(exponent)), std::ldexp(1.0F, exponent));
  }
}

TEST(ScaledTest, ScaleExponentBringsTheLargestIntoRange) {
  EXPECT_EQ(ScaleExponent(0), 0);
  EXPECT_EQ(ScaleExponent(256), 0);
  EXPECT_EQ(ScaleExponent(511.9F), 0);
  EXPECT_EQ(ScaleExponent(512), 1);
  EXPECT_EQ(ScaleExponent(1), -8);
  EXPECT_EQ(ScaleExponent(std::numeric_limits<float>::max()), 119);
  EXPECT_EQ(ScaleExponent(std::numeric_limits<float>::denorm_min()), -126);
  for (float x = 1e-35F; x < 1e37F; x *= 3.7F) {
    const float scaled = std::ldexp(x, -ScaleExponent(x));
    EXPECT_GE(scaled, 256);
    EXPECT_LT(scaled, 512);
  }
}

TEST(ScaledTest, LargestMagnitudeAndSaturation) {
  const std::vector<float> x = {1, -7, 3, -0.0F};
  EXPECT_EQ(LargestMagnitude(x.data(), 4), 7);
  EXPECT_EQ(LargestMagnitude(x.data(), 0), 0);
  EXPECT_EQ(FromFP16(ToFP16Saturated(1e30F)), 65504);
  EXPECT_EQ(FromFP16(ToFP16Saturated(-65519.0F)), -65504);
  EXPECT_EQ(FromFP16(ToFP16Saturated(1.5F)), 1.5F);
}

}  // namespace
}  // namespace oscarkv
