#include "kernels/codec/token_norm.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/dtype.h"

namespace oscarkv {
namespace {

TEST(TokenNormTest, IsTheRootMeanSquareInBF16) {
  EXPECT_EQ(TokenNorm(4.0 * 64, 64), ToBF16(2.0F));
  EXPECT_EQ(TokenNorm(2.0 * 64, 64), ToBF16(std::sqrt(2.0F)));
  EXPECT_EQ(TokenNorm(1e10 * 1024, 1024), ToBF16(1e5F));
}

TEST(TokenNormTest, IsNeverZeroOrInfinite) {
  EXPECT_EQ(TokenNorm(0, 128), ToBF16(1.0F));
  const double denormal = std::ldexp(1.0, -133);  // the smallest bf16, alone among 1024
  EXPECT_EQ(TokenNorm(denormal * denormal, 1024), ToBF16(1.0F));
  EXPECT_EQ(TokenNorm(denormal * denormal * 1024, 1024), 1);
  const double largest = FromBF16(0x7f7f);
  EXPECT_EQ(TokenNorm(largest * largest * 256, 256), 0x7f7f);
}

TEST(TokenNormTest, ImbalanceIsLargestOverMedian) {
  const auto imbalance = [](const std::vector<float>& norms) {
    std::vector<std::uint16_t> bits;
    for (const float norm : norms) bits.push_back(ToBF16(norm));
    return NormImbalance(bits.data(), static_cast<int>(bits.size()));
  };
  EXPECT_EQ(imbalance({1, 1, 1, 1}), 1);
  EXPECT_EQ(imbalance({8, 1, 2, 3}), 8 / 2.5F);
  EXPECT_EQ(imbalance({2, 100, 2, 2, 0.5F, 2}), 50);
}

}  // namespace
}  // namespace oscarkv
