#include "server/base/crc32c.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace oscarkv {
namespace {

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32cTest, GivesThePublishedValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283U);
  std::array<std::uint8_t, 32> bytes = {};
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x8a9136aaU);
  bytes.fill(0xff);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x62a8ab43U);
  for (int i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x46dd794eU);
}

TEST(Crc32cTest, OfNothingIsZero) { EXPECT_EQ(Crc32c(nullptr, 0), 0U); }

TEST(Crc32cTest, GoesOnWhereItStopped) {
  constexpr std::string_view kText = "keys, then values";
  const std::uint32_t whole = Crc32c(kText.data(), kText.size());
  for (std::size_t i = 0; i <= kText.size(); ++i) {
    EXPECT_EQ(Crc32c(kText.data() + i, kText.size() - i, Crc32c(kText.data(), i)), whole);
  }
}

}  // namespace
}  // namespace oscarkv
