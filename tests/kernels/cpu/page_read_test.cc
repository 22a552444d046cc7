// Tokens read in 16 bits are the decoded ones rounded, wherever they go.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/api/profiles.h"
#include "kernels/codec/page_view.h"
#include "kernels/cpu/page_decode.h"
#include "tests/kernels/cpu/page_testing.h"
#include "tests/kernels/support/each_target.h"

namespace oscarkv {
namespace {

constexpr std::uint16_t kUntouched = 0xABCD;

std::uint16_t Rounded(DType storage, float x) {
  const float most = LargestFinite(storage);
  return ToBits16(storage, std::clamp(x, -most, most));
}

// `rows`: what read(out) is to put, as it was decoded, into rows of a matrix `stride` wide, and
// nothing between them. No row is aligned to more than an element.
template <typename Read>
void ExpectRows(DType storage, const std::vector<float>& rows, int dim, int stride,
                const Read& read) {
  const std::size_t tokens = rows.size() / dim;
  std::vector<std::uint16_t> out(1 + tokens * stride, kUntouched);
  read(out.data() + 1);
  std::vector<std::uint16_t> expected(out.size(), kUntouched);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    expected[1 + i / dim * stride + i % dim] = Rounded(storage, rows[i]);
  }
  EXPECT_EQ(out, expected);
}

void ExpectReads(const LayerSpec& spec, const std::vector<HeadData>& heads) {
  const SealedPage page = Seal(spec, heads);
  const HeadView view = PageView(spec, page.bytes.data()).Head(1);
  const float* const direction = heads[1].direction.data();
  for (const auto& run :
       std::vector<std::pair<int, int>>{{0, kPageTokens}, {127, 1}, {5, 40}, {16, 16}, {64, 0}}) {
    const int begin = run.first;
    const int tokens = run.second;
    SCOPED_TRACE(::testing::Message() << begin << " + " << tokens);
    std::vector<float> keys(tokens * spec.key_dim);
    std::vector<float> values(tokens * spec.value_dim);
    cpu::DecodeKeys(spec, view, direction, begin, tokens, keys.data());
    cpu::DecodeValues(spec, view, begin, tokens, values.data());
    const int key_stride = 3 * spec.key_dim;
    ExpectRows(spec.storage, keys, spec.key_dim, key_stride, [&](std::uint16_t* out) {
      cpu::ReadKeys(spec, view, direction, begin, tokens, key_stride, out);
    });
    const int value_stride = spec.value_dim + 16;
    ExpectRows(spec.storage, values, spec.value_dim, value_stride, [&](std::uint16_t* out) {
      cpu::ReadValues(spec, view, begin, tokens, value_stride, out);
    });
  }
}

LayerSpec SpecOf(Profile profile, DType storage, std::size_t width) {
  LayerSpec spec = SmallSpec(2, kHeadDims[width], kHeadDims[(width + 3) % kHeadDims.size()]);
  UseProfile(spec, profile);
  spec.storage = storage;
  return spec;
}

TEST(PageReadTest, EveryWidthProfileAndStorage) {
  testing::ForEachTarget([] {
    for (std::size_t i = 0; i < kHeadDims.size(); ++i) {
      for (const Profile profile :
           {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi}) {
        const DType storage = i % 2 == 0 ? DType::kBF16 : DType::kFP16;
        SCOPED_TRACE(::testing::Message() << NameOf(profile) << ", dim " << kHeadDims[i]);
        const LayerSpec spec = SpecOf(profile, storage, i);
        ExpectReads(spec, RandomHeads(spec, static_cast<unsigned>(i), 0, 0));
      }
    }
  });
}

TEST(PageReadTest, SidesThatAreNotCoded) {
  for (const DType storage : {DType::kBF16, DType::kFP16}) {
    LayerSpec spec = SpecOf(Profile::kDense, storage, 1);
    spec.codec.key_bits = 16;
    spec.codec.value_bits = 16;
    ExpectReads(spec, RandomHeads(spec, 5, 0, 0));
  }
}

// Decoded numbers may lie beyond those that were stored, and those that can be.
TEST(PageReadTest, NothingBecomesInfinite) {
  testing::ForEachTarget([] {
    for (const DType storage : {DType::kBF16, DType::kFP16}) {
      LayerSpec spec = SpecOf(Profile::kKivi, storage, 0);
      std::vector<HeadData> heads = RandomHeads(spec, 3, 0, 0);
      const float large = storage == DType::kFP16 ? LargestFinite(storage) : kLargestInput;
      for (HeadData& head : heads) {
        for (float& x : head.keys) x = x < 0 ? -large : large;
        for (float& x : head.values) x = x < 0 ? -large : large;
      }
      ExpectReads(spec, heads);
      const SealedPage page = Seal(spec, heads);
      // The header's exponents come first: as large as they can be.
      PageBytes nonsense = page.bytes;
      for (int head = 0; head < spec.kv_heads; ++head) {
        nonsense.data()[head * sizeof(PageHeadHeader) + 1] = std::byte{127};
      }
      const HeadView view = PageView(spec, nonsense.data()).Head(0);
      std::vector<std::uint16_t> keys(kPageTokens * spec.key_dim);
      cpu::ReadKeys(spec, view, nullptr, 0, kPageTokens, spec.key_dim, keys.data());
      const float most = LargestFinite(storage);
      std::int64_t at_most = 0;
      for (const std::uint16_t bits : keys) {
        const float x = FromBits16(storage, bits);
        EXPECT_LE(x, most);
        EXPECT_GE(x, -most);
        if (x == most) ++at_most;
      }
      EXPECT_GT(at_most, 0);
    }
  });
}

}  // namespace
}  // namespace oscarkv
