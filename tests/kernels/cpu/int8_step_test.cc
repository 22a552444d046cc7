// The int8 step, on every instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/cpu/int8_step_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/int8_step-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Returns the step.
float QuantizeOfTarget(const float* x, int count, std::int8_t* codes, float* sum) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  const Int8Step step = StepOf(largest);
  GroupSum sums;
  QuantizeToInt8(x, count, step, codes, sums);
  *sum = sums.Fold();
  return step.step;
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/scratch.h"
#include "tests/kernels/support/each_target.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::cpu {
namespace {

HWY_EXPORT(QuantizeOfTarget);

using ::oscarkv::testing::ForEachTarget;

struct Quantized {
  float step;
  float sum;  // of codes
  std::vector<std::int8_t> codes;
};

Quantized Quantize(const std::vector<float>& x) {
  Quantized out{0, 0, std::vector<std::int8_t>(x.size())};
  Scratch<float> aligned(x.size());
  std::copy(x.begin(), x.end(), aligned.begin());
  out.step = HWY_DYNAMIC_DISPATCH(QuantizeOfTarget)(aligned.data(), static_cast<int>(x.size()),
                                                    out.codes.data(), &out.sum);
  return out;
}

// codes = x * (127 / max|x|), rounded once, to nearest even.
TEST(Int8Step, CodesAreRoundedProducts) {
  ForEachTarget([] {
    oscarkv::testing::Random random(1);
    for (const float magnitude : {1e-34F, 1e-30F, 1.0F, 1e30F}) {
      std::vector<float> x(128);
      for (float& value : x) value = magnitude * random.Normal();
      const Quantized got = Quantize(x);
      float largest = 0;
      for (const float value : x) largest = std::max(largest, std::fabs(value));
      EXPECT_EQ(got.step, largest / 127);
      float sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(got.codes[i], std::nearbyint(static_cast<double>(x[i]) * (127 / largest)));
        sum += got.codes[i];
      }
      EXPECT_EQ(got.sum, sum);
    }
  });
}

TEST(Int8Step, TheLargestHasTheCode127) {
  ForEachTarget([] {
    oscarkv::testing::Random random(2);
    for (int trial = 0; trial < 1000; ++trial) {
      std::vector<float> x(16);
      x[5] = -std::exp(20 * random.Normal());
      EXPECT_EQ(Quantize(x).codes[5], -127) << x[5];
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
  });
}

TEST(Int8Step, OfNumbersThatVanishIsZero) {
  ForEachTarget([] {
    for (const float tiny : {0.0F, 1e-45F, 1e-40F, 1e-37F}) {
      const Quantized got = Quantize(std::vector<float>(32, tiny));
      EXPECT_EQ(got.step, 0);
      for (const std::int8_t code : got.codes) EXPECT_EQ(code, 0);
    }
  });
}

// Infinities and NaN, of pages that are nonsense, give some codes, and no more harm.
TEST(Int8Step, SurvivesAnything) {
  ForEachTarget([] {
    for (const float strange :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x(16, strange);
      x[3] = -strange;
      Quantize(x);
    }
  });
}

}  // namespace
}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
