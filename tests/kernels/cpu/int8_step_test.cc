// The int8 step, on every instruction set.
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/int8_step_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/int8_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

float QuantizeOfTarget(const float* x, int count, std::int8_t* codes, float* rest) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  GroupSum sum;
  const float step = QuantizeToInt8(x, count, largest, codes, sum);
  *rest = sum.Fold();
  return step;
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/support/each_target.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::cpu {
namespace {

HWY_EXPORT(QuantizeOfTarget);

using ::oscarkv::testing::ForEachTarget;

struct Quantized {
  float step;
  float rest;
  std::vector<std::int8_t> codes;
};

Quantized Quantize(const std::vector<float>& x) {
  Quantized out{0, 0, std::vector<std::int8_t>(x.size())};
  const auto aligned = hwy::AllocateAligned<float>(x.size());
  std::copy(x.begin(), x.end(), aligned.get());
  out.step = HWY_DYNAMIC_DISPATCH(QuantizeOfTarget)(aligned.get(), static_cast<int>(x.size()),
                                                    out.codes.data(), &out.rest);
  return out;
}

TEST(Int8Step, IsTheLargestMagnitudeOver127) {
  ForEachTarget([] {
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
  });
}

TEST(Int8Step, RoundsHalvesToEven) {
  ForEachTarget([] {
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
  });
}

TEST(Int8Step, OfZerosIsZero) {
  ForEachTarget([] {
    const Quantized got = Quantize(std::vector<float>(32, 0.0F));
    EXPECT_EQ(got.step, 0);
    EXPECT_EQ(got.rest, 0);
    for (const std::int8_t code : got.codes) EXPECT_EQ(code, 0);
  });
}

// Steps that are not normal, infinities and NaN give some codes, and no more harm.
TEST(Int8Step, SurvivesAnything) {
  ForEachTarget([] {
    for (const float strange : {1e-45F, 1e-44F, 1e-40F, std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x(16, strange);
      x[3] = -strange;
      for (const std::int8_t code : Quantize(x).codes) {
        EXPECT_GE(code, -127);
        EXPECT_LE(code, 127);
      }
    }
  });
}
// Whatever lies close to the middle between two codes is rounded as the quotient is.
TEST(Int8Step, RoundsAsDivisionDoes) {
  ForEachTarget([] {
    for (const float step : {0x1.8p-40F, 0.0123F, 0.7F, 1.1F, 3e20F}) {
      std::vector<float> x(512);
      for (int i = 0; i < 512; ++i) {
        x[i] = step * (static_cast<float>(i / 4 - 63) + 0.5F);
        for (int k = 0; k < i % 4; ++k) x[i] = std::nextafter(x[i], i % 8 < 4 ? 1e30F : -1e30F);
      }
      x[0] = 127 * step;
      const Quantized got = Quantize(x);
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(got.codes[i], std::nearbyint(x[i] / got.step)) << x[i] << " / " << got.step;
      }
    }
  });
}

}  // namespace
}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
