#include "kernels/cpu/affine_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/dtype.h"
#include "kernels/codec/scaled.h"

namespace oscarkv {
namespace {

struct Result {
  std::vector<AffineFP16> params;
  std::vector<std::uint8_t> codes;
  std::vector<float> decoded;
  cpu::FitSums sums;
};

Result FitAll(const std::vector<float>& x, int count, int lanes, int bits, Fit fit) {
  Result r;
  r.params.resize(lanes);
  r.codes.assign(x.size(), 0xff);
  r.decoded.resize(x.size());
  r.sums = cpu::FitGroups(x.data(), 1, count, lanes, bits, fit, r.params.data(), r.codes.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const AffineFP16& affine = r.params[i % lanes];
    r.decoded[i] = FromFP16(affine.scale) * r.codes[i] + FromFP16(affine.zero);
  }
  return r;
}

// One group, in lane 5 of 16; the other lanes hold other numbers.
Result FitOne(const std::vector<float>& group, int bits, Fit fit) {
  const int count = static_cast<int>(group.size());
  std::vector<float> x(group.size() * 16);
  for (int i = 0; i < count; ++i) {
    for (int l = 0; l < 16; ++l) x[i * 16 + l] = l == 5 ? group[i] : static_cast<float>(i * l % 7);
  }
  const Result all = FitAll(x, count, 16, bits, fit);
  Result one;
  one.params = {all.params[5]};
  for (int i = 0; i < count; ++i) {
    one.codes.push_back(all.codes[i * 16 + 5]);
    one.decoded.push_back(all.decoded[i * 16 + 5]);
  }
  return one;
}

std::vector<float> Normal(std::size_t count, float mean, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  return x;
}

double Mean(const std::vector<float>& x) {
  double sum = 0;
  for (const float value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

double Deviation(const std::vector<float>& x) {
  const double mean = Mean(x);
  double sum = 0;
  for (const float value : x) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

double SquaredError(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  }
  return sum;
}

// The algorithm of the header, for one group, in double.
struct Reference {
  double scale = 0;
  double zero = 0;

  Reference(const std::vector<float>& x, int bits) {
    const double top = (1 << bits) - 1;
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const double n = static_cast<double>(x.size());
    const double mean = Mean(x);
    const double half = (double{*high} - *low) / 2 * (bits == 2 ? 0.75 : 0.95);
    scale = 2 * half / top;
    zero = (double{*low} + *high) / 2 - half;
    for (int step = 0; step < 3; ++step) {
      double code_mean = 0;
      for (const float value : x) code_mean += Code(value, top) / n;
      double covariance = 0;
      double variance = 0;
      for (const float value : x) {
        const double d = Code(value, top) - code_mean;
        covariance += d * (value - mean) / n;
        variance += d * d / n;
      }
      scale = step < 2 ? covariance / variance : Deviation(x) / std::sqrt(variance);
      zero = mean - scale * code_mean;
    }
  }
  double Code(double x, double top) const {
    return std::clamp(std::nearbyint((x - zero) / scale), 0.0, top);
  }
};

struct Setting {
  int bits;
  int count;
};

class AffineFitTest : public ::testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(Settings, AffineFitTest,
                         ::testing::Values(Setting{2, 16}, Setting{2, 32}, Setting{2, 128},
                                           Setting{2, 256}, Setting{4, 32}, Setting{4, 128},
                                           Setting{4, 256}));

TEST_P(AffineFitTest, MinMaxIsWithinHalfAStep) {
  const auto [bits, count] = GetParam();
  for (const float mean : {0.0F, -40.0F, 300.0F}) {
    const std::vector<float> x = Normal(count, mean, 60, count);
    const Result r = FitOne(x, bits, Fit::kMinMax);
    const float scale = FromFP16(r.params[0].scale);
    const float zero = FromFP16(r.params[0].zero);
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const auto top = static_cast<float>((1 << bits) - 1);
    EXPECT_EQ(r.params[0].zero, ToFP16(*low));
    EXPECT_EQ(r.params[0].scale, ToFP16((*high - *low) / top));
    // Half a step, and what rounding zero and scale to fp16 may cut off at either end.
    const float slack = std::abs(zero - *low) + top * std::abs(scale - (*high - *low) / top);
    for (int i = 0; i < count; ++i) {
      ASSERT_LE(std::abs(r.decoded[i] - x[i]), scale / 2 + slack + 1e-4F);
      ASSERT_LE(r.codes[i], (1 << bits) - 1);
    }
  }
}

TEST_P(AffineFitTest, CodesAreTheNearest) {
  const auto [bits, count] = GetParam();
  const std::vector<float> x = Normal(count, 10, 100, count);
  const Result r = FitOne(x, bits, Fit::kMinMax);
  const float scale = FromFP16(r.params[0].scale);
  const float zero = FromFP16(r.params[0].zero);
  for (int i = 0; i < count; ++i) {
    for (int code = 0; code < 1 << bits; ++code) {
      ASSERT_LE(std::abs(r.decoded[i] - x[i]),
                std::abs(scale * static_cast<float>(code) + zero - x[i]) * 1.0001F);
    }
  }
}

TEST_P(AffineFitTest, HalvesGoToTheEvenCode) {
  const auto [bits, count] = GetParam();
  if (bits != 2) return;
  // Range 0 to 3, so that scale is 1 and zero 0.
  std::vector<float> x(count, 0.0F);
  const std::vector<float> start = {0, 3, 0.5F, 1.5F, 2.5F, 0.49F, 0.51F, 1.49F, 1.51F};
  std::copy(start.begin(), start.end(), x.begin());
  const Result r = FitOne(x, bits, Fit::kMinMax);
  const std::vector<std::uint8_t> expected = {0, 3, 0, 2, 2, 0, 1, 1, 2};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), r.codes.begin()));
}

TEST_P(AffineFitTest, VarianceMatchesMeanAndDeviation) {
  const auto [bits, count] = GetParam();
  for (const float mean : {0.0F, -40.0F, 200.0F}) {
    const std::vector<float> x = Normal(count, mean, 60, count + 1);
    const Result r = FitOne(x, bits, Fit::kVariance);
    // Up to fp16: 2^-11 of the scale, and of the zero.
    const double ulp = (std::abs(FromFP16(r.params[0].zero)) + 300) / 2048;
    EXPECT_NEAR(Mean(r.decoded), Mean(x), ulp);
    EXPECT_NEAR(Deviation(r.decoded), Deviation(x), Deviation(x) / 1024);
  }
}

TEST_P(AffineFitTest, VarianceFollowsItsDefinition) {
  const auto [bits, count] = GetParam();
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<float> x = Normal(count, 5, 90, seed);
    const Result r = FitOne(x, bits, Fit::kVariance);
    const Reference expected(x, bits);
    EXPECT_NEAR(FromFP16(r.params[0].scale), expected.scale, expected.scale / 1000);
    EXPECT_NEAR(FromFP16(r.params[0].zero), expected.zero, 0.2);
  }
}

// On normal numbers at 2 bits a fitted range beats the full one, as it must to be worth its time.
TEST(AffineFitsTest, VarianceBeatsMinMaxOnNormalNumbers) {
  const std::vector<float> x = Normal(128, 0, 100, 4);
  EXPECT_LT(SquaredError(x, FitOne(x, 2, Fit::kVariance).decoded),
            0.8 * SquaredError(x, FitOne(x, 2, Fit::kMinMax).decoded));
}

TEST(AffineFitsTest, LanesDoNotTouchEachOther) {
  for (const int lanes : {16, 80, 112, 128, 256}) {
    const std::vector<float> x = Normal(static_cast<std::size_t>(32) * lanes, 0, 100, lanes);
    for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
      const Result all = FitAll(x, 32, lanes, 2, fit);
      for (int lane = 0; lane < lanes; lane += 7) {
        std::vector<float> group;
        for (int i = 0; i < 32; ++i) group.push_back(x[i * lanes + lane]);
        const Result one = FitOne(group, 2, fit);
        ASSERT_EQ(all.params[lane].scale, one.params[0].scale);
        ASSERT_EQ(all.params[lane].zero, one.params[0].zero);
        for (int i = 0; i < 32; ++i) ASSERT_EQ(all.codes[i * lanes + lane], one.codes[i]);
      }
    }
  }
}

// A power of two changes the scale's and zero's exponents and nothing else.
TEST(AffineFitsTest, FitsMultiplesByPowersOfTwo) {
  const std::vector<float> x = Normal(128 * 16, 30, 100, 9);
  for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
    const Result once = FitAll(x, 128, 16, 2, fit);
    std::vector<float> larger = x;
    for (float& value : larger) value *= 0x1p70F;
    Result scaled;
    scaled.params.resize(16);
    scaled.codes.resize(x.size());
    scaled.sums = cpu::FitGroups(larger.data(), 0x1p-70F, 128, 16, 2, fit, scaled.params.data(),
                                 scaled.codes.data());
    EXPECT_EQ(scaled.codes, once.codes);
    EXPECT_EQ(scaled.sums.squares, once.sums.squares);
    EXPECT_EQ(scaled.sums.errors, once.sums.errors);
    for (int lane = 0; lane < 16; ++lane) {
      EXPECT_EQ(scaled.params[lane].scale, once.params[lane].scale);
      EXPECT_EQ(scaled.params[lane].zero, once.params[lane].zero);
    }
  }
}

TEST(AffineFitsTest, SumsTellTheError) {
  for (const int bits : {2, 4}) {
    for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
      for (const float mean : {0.0F, -300.0F}) {
        std::vector<float> x = Normal(128 * 16, mean, 40, 5);
        for (int i = 0; i < 128; ++i) x[i * 16 + 3] = 7;  // a group without variance
        const Result r = FitAll(x, 128, 16, bits, fit);
        double squares = 0;
        for (const float value : x) squares += double{value} * value;
        EXPECT_NEAR(r.sums.squares, squares, 2e-6 * squares);
        EXPECT_NEAR(r.sums.errors, SquaredError(x, r.decoded), 2e-6 * squares);
      }
    }
  }
}

void ExpectDegenerate(const std::vector<float>& x, float mean) {
  for (const int bits : {2, 4}) {
    for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
      const Result r = FitOne(x, bits, fit);
      EXPECT_EQ(r.params[0].scale, 0);
      EXPECT_EQ(FromFP16(r.params[0].zero), FromFP16(ToFP16(mean)));
      EXPECT_EQ(r.codes, std::vector<std::uint8_t>(x.size(), 0));
    }
  }
}

TEST(AffineFitsTest, ConstantGroupsBecomeTheirMean) {
  for (const float value : {0.0F, 1.0F, -511.0F, 0.1F, 3e-7F}) {
    ExpectDegenerate(std::vector<float>(128, value), value);
    ExpectDegenerate(std::vector<float>(16, value), value);
  }
}

// Whatever an instruction set takes for the least of 0 and -0.
TEST(AffineFitsTest, ZerosOfBothSignsGiveOneZero) {
  for (const bool negative_first : {false, true}) {
    std::vector<float> zeros(32, 0.0F);
    for (std::size_t i = negative_first ? 0 : 1; i < zeros.size(); i += 2) zeros[i] = -0.0F;
    std::vector<float> with_ones = zeros;
    with_ones[9] = 1;
    for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
      EXPECT_EQ(FitOne(zeros, 2, fit).params[0].zero, 0);
    }
    EXPECT_EQ(FitOne(with_ones, 2, Fit::kMinMax).params[0].zero, 0);
  }
}

TEST(AffineFitsTest, RangesThatVanishInFP16BecomeTheirMean) {
  std::vector<float> tiny(128, 1e-12F);
  tiny[7] = -1e-12F;
  ExpectDegenerate(tiny, 1e-12F);
  std::vector<float> denormal(32, std::numeric_limits<float>::denorm_min());
  denormal[1] = 0;
  ExpectDegenerate(denormal, 0);
}

// All codes alike, because zero moves by more than the range when it is rounded.
TEST(AffineFitsTest, MinMaxWithoutVarianceInCodesBecomesTheMean) {
  std::vector<float> x(128, 400.03F);
  for (int i = 0; i < 64; ++i) x[i] = 400.05F;
  const Result r = FitOne(x, 2, Fit::kMinMax);
  EXPECT_EQ(r.params[0].scale, 0);
  EXPECT_EQ(FromFP16(r.params[0].zero), 400);
  EXPECT_EQ(r.codes, std::vector<std::uint8_t>(128, 0));
}

TEST(AffineFitsTest, OneOutlierKeepsItsPlace) {
  std::vector<float> x(128, 0.0F);
  x[100] = 500;
  for (const int bits : {2, 4}) {
    const int top = (1 << bits) - 1;
    const Result minmax = FitOne(x, bits, Fit::kMinMax);
    EXPECT_NEAR(minmax.decoded[100], 500, 0.5);
    EXPECT_EQ(minmax.decoded[0], 0);
    const Result variance = FitOne(x, bits, Fit::kVariance);
    EXPECT_EQ(variance.codes[100], top);
    EXPECT_NEAR(variance.decoded[100], 500, 1);
    EXPECT_NEAR(variance.decoded[0], 0, 1);
  }
}

// Whatever comes in, what is decoded is finite and not far outside of the range.
TEST(AffineFitsTest, DecodedNumbersStayNearTheRange) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> x(trial % 2 == 0 ? 32 : 128);
    const float spread = std::ldexp(1.0F, static_cast<int>(random() % 40) - 30);
    const float bias = trial % 3 == 0 ? 400.0F : 0.0F;
    std::cauchy_distribution<float> heavy(bias, spread);
    for (float& value : x) value = std::clamp(heavy(random), -511.0F, 511.0F);
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const float slack = (*high - *low) * 0.5F + (std::abs(*high) + std::abs(*low)) / 1024 + 1e-6F;
    for (const int bits : {2, 4}) {
      for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
        for (const float value : FitOne(x, bits, fit).decoded) {
          ASSERT_GE(value, *low - slack);
          ASSERT_LE(value, *high + slack);
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscarkv
