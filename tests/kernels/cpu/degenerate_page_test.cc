// Input that breaks naive quantizers: pages must stay finite, and as exact as a fit allows.

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/profiles.h"
#include "kernels/codec/page_view.h"
#include "kernels/cpu/page_decode.h"
#include "tests/kernels/cpu/page_testing.h"

namespace oscarkv {
namespace {

struct Degenerate {
  std::string name;
  // Changes a random number: token, channel, x.
  std::function<float(int, int, float)> shape;
  double bound;  // of the relative error of keys and values at 2 bits, whatever the plan

  friend void PrintTo(const Degenerate& test, std::ostream* out) { *out << test.name; }
};

std::vector<Degenerate> Cases() {
  return {
      {"zeros", [](int, int, float) { return 0.0F; }, 0},
      {"ones", [](int, int, float) { return 1.0F; }, 0.002},
      {"constant_channels", [](int, int c, float) { return static_cast<float>(c % 9 - 4); }, 0.8},
      {"constant_tokens", [](int t, int, float) { return static_cast<float>(t % 5 + 1); }, 0.5},
      {"zero_tokens", [](int t, int, float x) { return t % 3 == 0 ? 0.0F : x; }, 0.55},
      {"all_tokens_but_one_zero", [](int t, int, float x) { return t == 40 ? x : 0.0F; }, 0.55},
      {"one_outlier", [](int t, int c, float x) { return t == 7 && c == 9 ? 1e4F : x; }, 0.55},
      {"outlier_channel", [](int, int c, float x) { return c == 9 ? 1e4F + x : x; }, 0.55},
      {"outlier_token", [](int t, int, float x) { return t == 7 ? 1e4F * x : x; }, 0.55},
      {"bias_60", [](int, int c, float x) { return c % 2 == 0 ? 60 + x : -60 + x; }, 0.55},
      {"large", [](int, int, float x) { return 1e5F * x; }, 0.55},
      {"huge", [](int, int, float x) { return 1e30F * x; }, 0.55},
      {"near_overflow", [](int, int, float x) { return x > 0 ? 3e37F : -3e37F; }, 0.55},
      {"tiny", [](int, int, float x) { return 1e-30F * x; }, 0.55},
      {"denormal", [](int, int, float x) { return 1e-39F * x; }, 0.6},
      {"one_denormal", [](int t, int c, float) { return t + c == 0 ? 1e-40F : 0.0F; }, 1.01},
      {"mixed", [](int t, int, float x) { return std::ldexp(x, t % 60 - 30); }, 0.65},
  };
}

class DegeneratePageTest : public ::testing::TestWithParam<Degenerate> {};

INSTANTIATE_TEST_SUITE_P(All, DegeneratePageTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

void Check(const LayerSpec& spec, const std::vector<HeadData>& heads, double bound) {
  const SealedPage page = Seal(spec, heads);
  ASSERT_TRUE(std::isfinite(page.imbalance));
  for (int i = 0; i < spec.kv_heads; ++i) {
    const HeadView view = PageView(spec, page.bytes.data()).Head(i);
    std::vector<float> keys(heads[i].keys.size());
    std::vector<float> values(heads[i].values.size());
    cpu::DecodeKeys(spec, view, heads[i].direction.data(), 0, kPageTokens, keys.data());
    cpu::DecodeValues(spec, view, 0, kPageTokens, values.data());
    const auto finite = [](float x) { return std::isfinite(x); };
    EXPECT_TRUE(std::all_of(keys.begin(), keys.end(), finite));
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), finite));
    EXPECT_LE(page.heads[i].key_error, bound);
    EXPECT_LE(page.heads[i].value_error, bound);
  }
}

TEST_P(DegeneratePageTest, StaysFiniteAndExact) {
  const Degenerate& test = GetParam();
  for (const Profile profile :
       {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi}) {
    LayerSpec spec = SmallSpec(2, 96, 64);
    UseProfile(spec, profile);
    std::vector<HeadData> heads = RandomHeads(spec, 1, 32, 8);
    for (HeadData& head : heads) {
      std::mt19937 random(3);
      head.keys = RandomNumbers(random, head.keys.size(), 1, spec.storage);
      for (std::size_t i = 0; i < head.keys.size(); ++i) {
        const int t = static_cast<int>(i) / 96;
        const int c = static_cast<int>(i) % 96;
        head.keys[i] = RoundTo(spec.storage, test.shape(t, c, head.keys[i]));
      }
      for (std::size_t i = 0; i < head.values.size(); ++i) {
        const int t = static_cast<int>(i) / 64;
        const int c = static_cast<int>(i) % 64;
        head.values[i] = RoundTo(spec.storage, test.shape(t, c, head.values[i]));
      }
    }
    SCOPED_TRACE(NameOf(profile));
    Check(spec, heads, test.bound);
  }
}

// A bias in every channel costs nothing: the fit takes it away.
TEST(DegeneratePagesTest, BiasDoesNotCostPrecision) {
  LayerSpec spec = SmallSpec(1, 128, 128);
  spec.codec.scaling = Scaling::kNone;
  GivePlan(spec, {Rotation::kNone, Fit::kVariance});
  const std::vector<HeadData> plain = RandomHeads(spec, 5, 0, 0);
  std::vector<HeadData> biased = plain;
  std::mt19937 random(1);
  biased[0].direction.clear();
  biased[0].keys = RandomNumbers(random, 128 * 128, 1, DType::kFP16);
  for (std::size_t i = 0; i < biased[0].keys.size(); ++i) {
    biased[0].keys[i] += i % 2 == 0 ? 60.0F : -60.0F;
  }
  const SealedPage page = Seal(spec, biased);
  std::vector<float> keys(biased[0].keys.size());
  cpu::DecodeKeys(spec, PageView(spec, page.bytes.data()).Head(0), nullptr, 0, kPageTokens,
                  keys.data());
  double squares = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) squares += std::pow(biased[0].keys[i] - keys[i], 2);
  EXPECT_LT(std::sqrt(squares / static_cast<double>(keys.size())), 0.45);
}

// One value of 9984 is its group's own trouble: other groups decode as without it.
TEST(DegeneratePagesTest, OutlierStaysInItsGroup) {
  LayerSpec spec = SmallSpec(1, 64, 64);
  spec.codec.scaling = Scaling::kNone;
  spec.codec.value_rotation = Rotation::kNone;
  spec.codec.residual = false;
  GivePlan(spec, {Rotation::kNone, Fit::kMinMax});
  std::vector<HeadData> heads = RandomHeads(spec, 6, 0, 0);
  constexpr float kOutlier = 9984;
  heads[0].keys[70 * 64 + 20] = kOutlier;
  heads[0].values[70 * 64 + 20] = kOutlier;
  const SealedPage page = Seal(spec, heads);
  const HeadView view = PageView(spec, page.bytes.data()).Head(0);
  std::vector<float> keys(heads[0].keys.size());
  std::vector<float> values(heads[0].values.size());
  cpu::DecodeKeys(spec, view, nullptr, 0, kPageTokens, keys.data());
  cpu::DecodeValues(spec, view, 0, kPageTokens, values.data());
  EXPECT_NEAR(keys[70 * 64 + 20], kOutlier, 10);
  EXPECT_NEAR(values[70 * 64 + 20], kOutlier, 10);
  double key_error = 0;
  double key_squares = 0;
  double value_error = 0;
  double value_squares = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < 64; ++c) {
      const int i = t * 64 + c;
      if (c != 20) key_error += std::pow(heads[0].keys[i] - keys[i], 2);
      if (c != 20) key_squares += std::pow(heads[0].keys[i], 2);
      if (t != 70) value_error += std::pow(heads[0].values[i] - values[i], 2);
      if (t != 70) value_squares += std::pow(heads[0].values[i], 2);
    }
  }
  EXPECT_LT(std::sqrt(key_error / key_squares), 0.5);
  EXPECT_LT(std::sqrt(value_error / value_squares), 0.55);
}

}  // namespace
}  // namespace oscarkv
