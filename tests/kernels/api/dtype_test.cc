#include "kernels/api/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace oscarkv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A 16-bit type by its definition: sign, exponent, fraction.
struct Format {
  DType dtype;
  int fraction_bits;
  int bias;
  int infinity;  // bits

  double Value(int bits) const {
    const int magnitude = bits & 0x7fff;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const int exponent = magnitude >> fraction_bits;
    const int fraction = magnitude & ((1 << fraction_bits) - 1);
    if (magnitude == infinity) return sign * kInfinity;
    if (magnitude > infinity) return kNaN;
    const int unit = 1 - bias - fraction_bits;
    if (exponent == 0) return sign * std::ldexp(fraction, unit);
    return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - 1 + unit);
  }
  // As if the exponents went on: infinity stands for the next power of two.
  double ValueOrOverflow(int magnitude) const {
    return magnitude == infinity ? NextPower() : Value(magnitude);
  }
  double NextPower() const { return std::ldexp(1.0, dtype == DType::kBF16 ? 128 : 16); }
};

constexpr Format kFormats[] = {{DType::kBF16, 7, 127, 0x7f80}, {DType::kFP16, 10, 15, 0x7c00}};

class DTypeTest : public testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(All, DTypeTest, testing::ValuesIn(kFormats), [](const auto& format) {
  return std::string(NameOf(format.param.dtype));
});

TEST_P(DTypeTest, EveryPatternHasItsValue) {
  const Format& format = GetParam();
  for (int bits = 0; bits < 65536; ++bits) {
    const double expected = format.Value(bits);
    const float value = FromBits16(format.dtype, static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), bits >= 0x8000) << bits;
    }
  }
}

TEST_P(DTypeTest, EveryPatternComesBack) {
  const Format& format = GetParam();
  for (int bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float value = FromBits16(format.dtype, pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FromBits16(format.dtype, ToBits16(format.dtype, value)))) << bits;
    } else {
      ASSERT_EQ(ToBits16(format.dtype, value), pattern);
    }
  }
}

// Between two neighbours the nearer one is taken, and halfway the one whose last bit is zero.
TEST_P(DTypeTest, RoundsToNearestEven) {
  const Format& format = GetParam();
  for (int bits = 0; bits < format.infinity; ++bits) {
    const double low = format.Value(bits);
    const double high = format.ValueOrOverflow(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(middle, (low + high) / 2);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    for (const int sign : {0, 0x8000}) {
      const float s = sign == 0 ? 1.0F : -1.0F;
      ASSERT_EQ(ToBits16(format.dtype, s * middle), sign | even) << bits;
      ASSERT_EQ(ToBits16(format.dtype, s * std::nextafter(middle, 0.0F)), sign | bits) << bits;
      ASSERT_EQ(ToBits16(format.dtype, s * std::nextafter(middle, kInfinity)), sign | (bits + 1))
          << bits;
    }
  }
}

TEST_P(DTypeTest, Extremes) {
  const Format& format = GetParam();
  EXPECT_EQ(ToBits16(format.dtype, std::numeric_limits<float>::max()), format.infinity);
  EXPECT_EQ(ToBits16(format.dtype, -kInfinity), 0x8000 | format.infinity);
  EXPECT_EQ(ToBits16(format.dtype, std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(ToBits16(format.dtype, -0.0F), 0x8000);
  // NaNs whose fraction has only bits that the 16-bit type lacks stay NaNs.
  const auto faint = std::bit_cast<float>(0x7f800001U);
  EXPECT_TRUE(std::isnan(FromBits16(format.dtype, ToBits16(format.dtype, faint))));
}

TEST_P(DTypeTest, ArraysConvertLikeSingleValuesAtAnyAlignment) {
  const DType dtype = GetParam().dtype;
  std::vector<char> bytes(1 + 2 * 65536);
  for (int bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    std::memcpy(&bytes[1 + 2 * bits], &pattern, 2);
  }
  std::vector<float> floats(65536);
  ToFloats(dtype, &bytes[1], floats.size(), floats.data());
  for (int bits = 0; bits < 65536; ++bits) {
    const float expected = FromBits16(dtype, static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[bits]), std::bit_cast<std::uint32_t>(expected));
  }

  std::mt19937 random(7);
  std::vector<char> raw(1 + 4 * 100003);
  for (char& byte : raw) byte = static_cast<char>(random());
  std::vector<std::uint16_t> stored(100003);
  ToStorage(DType::kFP32, &raw[1], stored.size(), dtype, stored.data());
  for (std::size_t i = 0; i < stored.size(); ++i) {
    float value;
    std::memcpy(&value, &raw[1 + 4 * i], 4);
    ASSERT_EQ(stored[i], ToBits16(dtype, value)) << value;
  }
}

TEST(DTypesTest, SameTypeIsCopied) {
  const std::vector<std::uint16_t> values = {0x0000, 0x8001, 0x7fff, 0x1234};
  std::vector<std::uint16_t> stored(values.size());
  ToStorage(DType::kFP16, values.data(), values.size(), DType::kFP16, stored.data());
  EXPECT_EQ(stored, values);
  const std::vector<float> floats = {1.5F, -0.0F, 3e38F};
  std::vector<float> out(floats.size());
  ToFloats(DType::kFP32, floats.data(), floats.size(), out.data());
  EXPECT_EQ(out, floats);
}

TEST(DTypesTest, SizesAndNames) {
  EXPECT_EQ(SizeOf(DType::kBF16), 2U);
  EXPECT_EQ(SizeOf(DType::kFP16), 2U);
  EXPECT_EQ(SizeOf(DType::kFP32), 4U);
  EXPECT_STREQ(NameOf(DType::kBF16), "bf16");
  EXPECT_STREQ(NameOf(DType::kFP16), "fp16");
  EXPECT_STREQ(NameOf(DType::kFP32), "fp32");
}

template <typename T>
std::optional<std::size_t> FindIn(DType dtype, const std::vector<T>& values, DType storage,
                                  float limit = kInfinity) {
  // From an odd address, as out of a message.
  std::vector<char> bytes(1 + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(&bytes[1], values.data(), values.size() * sizeof(T));
  return FindUnusable(dtype, bytes.data() + 1, values.size(), storage, limit);
}

TEST_P(DTypeTest, FindsExactlyThePatternsThatAreNotFinite) {
  const Format& format = GetParam();
  for (int bits = 0; bits < 65536; ++bits) {
    const std::vector<std::uint16_t> one = {static_cast<std::uint16_t>(bits)};
    const bool finite = (bits & 0x7fff) < format.infinity;
    for (const DType storage : {format.dtype, DType::kFP32}) {
      ASSERT_EQ(FindIn(format.dtype, one, storage).has_value(), !finite) << bits;
    }
    // A 16-bit type of another kind counts as it would be rounded.
    const DType other = format.dtype == DType::kBF16 ? DType::kFP16 : DType::kBF16;
    const float rounded = FromBits16(other, ToBits16(other, FromBits16(format.dtype, one.front())));
    ASSERT_EQ(FindIn(format.dtype, one, other).has_value(), !std::isfinite(rounded)) << bits;
  }
}

TEST_P(DTypeTest, FloatsThatOverflowTheStorageAreNotFinite) {
  const Format& format = GetParam();
  const double largest = format.Value(format.infinity - 1);
  const auto threshold = static_cast<float>((largest + format.NextPower()) / 2);
  for (const float sign : {1.0F, -1.0F}) {
    const auto find = [&](float x, DType storage) {
      return FindIn<float>(DType::kFP32, {sign * x}, storage).has_value();
    };
    EXPECT_TRUE(find(threshold, format.dtype));
    EXPECT_FALSE(find(std::nextafter(threshold, 0.0F), format.dtype));
    EXPECT_FALSE(find(threshold, DType::kFP32));
    EXPECT_FALSE(find(std::numeric_limits<float>::max(), DType::kFP32));
    EXPECT_TRUE(find(kInfinity, DType::kFP32));
    EXPECT_TRUE(find(kNaN, DType::kFP32));
    EXPECT_TRUE(find(kNaN, format.dtype));
  }
}

TEST_P(DTypeTest, FindsExactlyWhatIsBeyondTheLimit) {
  const Format& format = GetParam();
  for (const float limit : {1.0F, 0x1p-20F, 0x1p10F, kLargestInput}) {
    for (int bits = 0; bits < 65536; ++bits) {
      const std::vector<std::uint16_t> one = {static_cast<std::uint16_t>(bits)};
      const bool usable = std::fabs(FromBits16(format.dtype, one.front())) <= limit &&
                          (bits & 0x7fff) < format.infinity;
      ASSERT_EQ(FindIn(format.dtype, one, format.dtype, limit).has_value(), !usable) << bits;
    }
    for (const float x : {limit, std::nextafter(limit, 0.0F)}) {
      if (x > LargestFinite(format.dtype)) continue;
      EXPECT_FALSE(FindIn<float>(DType::kFP32, {-x}, format.dtype, limit).has_value());
    }
    const float beyond = std::nextafter(limit, kInfinity);
    EXPECT_TRUE(FindIn<float>(DType::kFP32, {beyond}, DType::kFP32, limit).has_value());
  }
}

// The first of several, wherever it is.
TEST(DTypesTest, TheLargestFiniteIsNextToInfinity) {
  EXPECT_EQ(LargestFinite(DType::kBF16), FromBF16(0x7f7f));
  EXPECT_EQ(LargestFinite(DType::kFP16), FromFP16(0x7bff));
  EXPECT_EQ(LargestFinite(DType::kFP32), std::numeric_limits<float>::max());
}

TEST(DTypesTest, FindsTheFirst) {
  for (const std::size_t count : {1, 7, 64, 1023, 1024, 1025, 5000}) {
    for (std::size_t at = 0; at < count; at += 1 + count / 37) {
      std::vector<float> floats(count, -1.0F);
      std::vector<std::uint16_t> halves(count, 0xbc00);
      floats[at] = -kInfinity;
      halves[at] = 0xfc01;
      floats[count - 1] = kNaN;
      halves[count - 1] = 0x7c00;
      ASSERT_EQ(FindIn(DType::kFP32, floats, DType::kBF16), at);
      ASSERT_EQ(FindIn(DType::kFP16, halves, DType::kFP16), at);
    }
  }
  EXPECT_EQ(FindIn<float>(DType::kFP32, {}, DType::kBF16), std::nullopt);
}

}  // namespace
}  // namespace oscarkv
