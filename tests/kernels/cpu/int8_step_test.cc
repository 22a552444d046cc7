#include "kernels/cpu/int8_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/support/random_layer.h"

namespace oscarkv::cpu {
namespace {

struct Quantized {
  float step;
  float rest;
  std::vector<std::int8_t> codes;
};

Quantized Quantize(const std::vector<float>& x) {
  Quantized out{0, 0, std::vector<std::int8_t>(x.size())};
  out.step = QuantizeToInt8(x.data(), static_cast<int>(x.size()), out.codes.data(), &out.rest);
  return out;
}

TEST(Int8Step, IsTheLargestMagnitudeOver127) {
  oscarkv::testing::Random random(1);
  for (const float magnitude : {1e-30F, 1.0F, 1e30F}) {
    std::vector<float> x(128);
    for (float& value : x) value = magnitude * random.Normal();
    const Quantized got = Quantize(x);
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::fabs(value));
    EXPECT_EQ(got.step, largest / 127);
    double rest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(got.codes[i], std::nearbyint(x[i] / got.step));
      rest += static_cast<double>(x[i]) - static_cast<double>(got.step) * got.codes[i];
    }
    EXPECT_NEAR(got.rest, rest, 1e-5 * largest);
  }
}

TEST(Int8Step, RoundsHalvesToEven) {
  std::vector<float> x(16);
  x[0] = 127;
  x[1] = 0.5F;
  x[2] = 1.5F;
  x[3] = -2.5F;
  const Quantized got = Quantize(x);
  EXPECT_EQ(got.step, 1);
  EXPECT_EQ(got.codes[1], 0);
  EXPECT_EQ(got.codes[2], 2);
  EXPECT_EQ(got.codes[3], -2);
  EXPECT_EQ(got.rest, 0.5F - 0.5F - 0.5F);
}

TEST(Int8Step, OfZerosIsZero) {
  const Quantized got = Quantize(std::vector<float>(32, 0.0F));
  EXPECT_EQ(got.step, 0);
  EXPECT_EQ(got.rest, 0);
  for (const std::int8_t code : got.codes) EXPECT_EQ(code, 0);
}

// Steps that are not normal, infinities and NaN give some codes, and no more harm.
TEST(Int8Step, SurvivesAnything) {
  for (const float strange : {1e-45F, 1e-44F, 1e-40F, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(16, strange);
    x[3] = -strange;
    for (const std::int8_t code : Quantize(x).codes) {
      EXPECT_GE(code, -127);
      EXPECT_LE(code, 127);
    }
  }
}

TEST(Dot, SumsProducts) {
  std::vector<float> a(48);
  std::vector<float> b(48);
  float ought = 0;
  for (int i = 0; i < 48; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = static_cast<float>(i % 5 - 2);
    ought += a[i] * b[i];
  }
  EXPECT_EQ(Dot(a.data(), b.data(), 48), ought);
}

}  // namespace
}  // namespace oscarkv::cpu
