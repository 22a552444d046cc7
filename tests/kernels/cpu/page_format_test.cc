// The worked examples of kernels/PAGE_FORMAT.md, byte for byte.

#include <cstdint>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cpu/page_testing.h"

namespace oscarkv {
namespace {

struct Dump {
  std::map<std::int64_t, std::vector<int>> lines;  // offset -> bytes
  std::string hash;
};

// The blocks "```page NAME" of the document: lines "offset: bytes | remark", and "hash: digits".
std::map<std::string, Dump> ReadDumps() {
  std::ifstream file(OSCARKV_SOURCE_DIR "/kernels/PAGE_FORMAT.md");
  std::map<std::string, Dump> dumps;
  std::string line;
  Dump* dump = nullptr;
  while (std::getline(file, line)) {
    if (line.rfind("```page ", 0) == 0) {
      dump = &dumps[line.substr(8)];
    } else if (line.rfind("```", 0) == 0) {
      dump = nullptr;
    } else if (dump != nullptr && line.rfind("hash: ", 0) == 0) {
      dump->hash = line.substr(6);
    } else if (dump != nullptr) {
      std::istringstream words(line.substr(0, line.find('|')));
      std::int64_t offset = -1;
      char colon = 0;
      words >> std::hex >> offset >> colon;
      EXPECT_EQ(colon, ':') << line;
      for (int byte; words >> std::hex >> byte;) dump->lines[offset].push_back(byte);
      EXPECT_FALSE(dump->lines[offset].empty()) << line;
    }
  }
  return dumps;
}

std::string Hex(const std::byte* bytes, std::size_t count) {
  std::ostringstream out;
  for (std::size_t i = 0; i < count; ++i) {
    out << (i == 0 ? "" : " ") << std::hex << std::setw(2) << std::setfill('0')
        << std::to_integer<int>(bytes[i]);
  }
  return out.str();
}

// FNV-1a, 64 bits.
std::string Hash(const PageBytes& page) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::int64_t i = 0; i < page.size(); ++i) {
    hash = (hash ^ std::to_integer<std::uint64_t>(page.data()[i])) * 0x100000001b3;
  }
  std::ostringstream out;
  out << std::hex << std::setw(16) << std::setfill('0') << hash;
  return out.str();
}

void ExpectDump(const Dump& dump, const PageBytes& page) {
  ASSERT_FALSE(dump.lines.empty());
  for (const auto& [offset, bytes] : dump.lines) {
    ASSERT_LE(offset + std::ssize(bytes), page.size());
    std::vector<std::byte> expected;
    for (const int byte : bytes) expected.push_back(static_cast<std::byte>(byte));
    EXPECT_EQ(Hex(page.data() + offset, bytes.size()), Hex(expected.data(), expected.size()))
        << "at " << std::hex << offset;
  }
  EXPECT_EQ(Hash(page), dump.hash);
}

// Fills heads from formulas of head, token and channel.
template <typename Key, typename Value>
std::vector<HeadData> FromFormulas(const LayerSpec& spec, Key key, Value value) {
  std::vector<HeadData> heads(spec.kv_heads);
  for (int h = 0; h < spec.kv_heads; ++h) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < spec.key_dim; ++c) heads[h].keys.push_back(key(h, t, c));
      for (int c = 0; c < spec.value_dim; ++c) heads[h].values.push_back(value(h, t, c));
    }
  }
  return heads;
}

TEST(PageFormatTest, ExampleByHand) {
  LayerSpec spec = SmallSpec(1, 64, 64);
  spec.codec.scaling = Scaling::kNone;
  spec.codec.residual = false;
  spec.codec.value_rotation = Rotation::kNone;
  spec.codec.value_fit = Fit::kMinMax;
  GivePlan(spec, {Rotation::kNone, Fit::kMinMax});
  const std::vector<HeadData> heads = FromFormulas(
      spec, [](int, int t, int c) { return static_cast<float>((t + c + c / 4) % 4); },
      [](int, int t, int c) { return static_cast<float>((3 * t + c) % 4) / 2 - 1; });
  const SealedPage page = Seal(spec, heads);
  EXPECT_EQ(page.heads[0].key_error, 0);
  EXPECT_EQ(page.heads[0].value_error, 0);
  ExpectDump(ReadDumps()["by-hand"], page.bytes);
}

TEST(PageFormatTest, ExampleOfEveryPart) {
  LayerSpec spec = SmallSpec(2, 64, 80);
  spec.codec.key_bits = 4;
  spec.codec.value_group = kSmallGroup;
  GivePlan(spec, {Rotation::kHadamard, Fit::kVariance});
  std::vector<HeadData> heads = FromFormulas(
      spec,
      [](int h, int t, int c) {
        return static_cast<float>((7 * t + 5 * c + 3 * h + t * c) % 31 - 15) / 8;
      },
      [](int h, int t, int c) { return static_cast<float>((t * t + 3 * c + h) % 17 - 8) / 4; });
  for (HeadData& head : heads) {
    head.direction.assign(64, 0.0F);
    head.direction[0] = 0.6F;
    head.direction[1] = 0.8F;
  }
  ExpectDump(ReadDumps()["every-part"], Seal(spec, heads).bytes);
}

}  // namespace
}  // namespace oscarkv
