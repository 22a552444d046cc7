// Pages have the same bytes, and decode to the same bits, whatever instructions are used.

#include <cstring>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/profiles.h"
#include "kernels/codec/page_view.h"
#include "kernels/cpu/page_decode.h"
#include "tests/kernels/cpu/page_testing.h"
#include "tests/kernels/support/each_target.h"

namespace oscarkv {
namespace {

// Keys and values of all heads.
std::vector<float> Decode(const LayerSpec& spec, const std::vector<HeadData>& heads,
                          const SealedPage& page) {
  std::vector<float> out;
  for (int head = 0; head < spec.kv_heads; ++head) {
    const HeadView view = PageView(spec, page.bytes.data()).Head(head);
    std::vector<float> keys(kPageTokens * spec.key_dim);
    std::vector<float> values(kPageTokens * spec.value_dim);
    cpu::DecodeKeys(spec, view, heads[head].direction.data(), 0, kPageTokens, keys.data());
    cpu::DecodeValues(spec, view, 0, kPageTokens, values.data());
    out.insert(out.end(), keys.begin(), keys.end());
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

// Seals and decodes on each target; all must agree in every bit and in what is reported.
void ExpectTheSame(const LayerSpec& spec, const std::vector<HeadData>& heads) {
  std::optional<SealedPage> first;
  std::vector<float> decoded_first;
  testing::ForEachTarget([&] {
    const SealedPage page = Seal(spec, heads);
    const std::vector<float> decoded = Decode(spec, heads, page);
    if (!first) {
      first.emplace(page);
      decoded_first = decoded;
      return;
    }
    EXPECT_EQ(std::memcmp(page.bytes.data(), first->bytes.data(), page.bytes.size()), 0);
    EXPECT_EQ(std::memcmp(decoded.data(), decoded_first.data(), 4 * decoded.size()), 0);
    EXPECT_EQ(page.imbalance, first->imbalance);
    for (int i = 0; i < spec.kv_heads; ++i) {
      EXPECT_EQ(page.heads[i].rotation, first->heads[i].rotation);
      EXPECT_EQ(page.heads[i].fit, first->heads[i].fit);
      EXPECT_EQ(page.heads[i].key_error, first->heads[i].key_error);
      EXPECT_EQ(page.heads[i].value_error, first->heads[i].value_error);
    }
  });
}

TEST(PageTargetsTest, EveryWidthAndProfile) {
  for (std::size_t i = 0; i < kHeadDims.size(); ++i) {
    for (const Profile profile :
         {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi}) {
      SCOPED_TRACE(::testing::Message() << NameOf(profile) << ", dim " << kHeadDims[i]);
      LayerSpec spec = SmallSpec(1, kHeadDims[i], kHeadDims[(i + 3) % kHeadDims.size()]);
      UseProfile(spec, profile);
      ExpectTheSame(spec, RandomHeads(spec, static_cast<unsigned>(i), 37, 5));
    }
  }
}

TEST(PageTargetsTest, EveryPlanAndGroup) {
  for (const int bits : {2, 4}) {
    for (const int group : {kSmallGroup, 0}) {
      for (const Rotation rotation : {Rotation::kHadamard, Rotation::kNone}) {
        for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
          LayerSpec spec = SmallSpec(2, 80, 112);
          spec.storage = bits == 2 ? DType::kFP16 : DType::kBF16;
          spec.codec.key_bits = bits;
          spec.codec.value_bits = 6 - bits;
          spec.codec.key_group = group == 0 ? kPageTokens : group;
          spec.codec.value_group = group;
          spec.codec.scaling = Scaling::kPerHead;
          spec.codec.value_rotation = rotation;
          spec.codec.value_fit = fit;
          GivePlan(spec, {rotation, fit});
          ExpectTheSame(spec, RandomHeads(spec, 7, 0, 0));
        }
      }
    }
  }
}

TEST(PageTargetsTest, NumbersFarFromOne) {
  for (const float size : {1e-30F, 1e-5F, 1e9F}) {
    LayerSpec spec = SmallSpec(1, 96, 64);
    std::vector<HeadData> heads = RandomHeads(spec, 3, 16, 4);
    for (float& x : heads[0].keys) x = RoundTo(spec.storage, x * size);
    for (float& x : heads[0].values) x = RoundTo(spec.storage, x / size);
    for (int t = 0; t < kPageTokens; ++t) heads[0].keys[t * 96 + 7] = 0;
    ExpectTheSame(spec, heads);
  }
}

}  // namespace
}  // namespace oscarkv
