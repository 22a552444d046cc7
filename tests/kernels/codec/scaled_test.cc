#include "kernels/codec/scaled.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace oscarkv {
namespace {

TEST(PowerOfTwo, IsThatOfEveryExponentOfAHeader) {
  for (int exponent = -128; exponent <= 127; ++exponent) {
    EXPECT_EQ(PowerOfTwo(static_cast<std::int8_t>(exponent)), std::ldexp(1.0F, exponent));
  }
}

TEST(Rescale, BringsTheLargestMagnitudeToWhereFitsAreSafe) {
  for (const float largest : {1e-30F, 3e-5F, 1.0F, 511.9F, 512.0F, 65504.0F, 1e30F}) {
    Scaled scaled{{largest / 3, -largest, 0}, 0};
    Rescale(scaled);
    EXPECT_GE(-scaled.x[1], 256) << largest;
    EXPECT_LT(-scaled.x[1], 512) << largest;
    EXPECT_EQ(std::ldexp(scaled.x[1], scaled.exponent), -largest);
  }
}

TEST(Rescale, LeavesZerosAlone) {
  Scaled scaled{{0, 0}, 0};
  Rescale(scaled);
  EXPECT_EQ(scaled.exponent, 0);
  EXPECT_EQ(scaled.x[0], 0);
}

}  // namespace
}  // namespace oscarkv
