// Pages have the same bytes whatever instructions sealed them.

#include <cstring>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/profiles.h"
#include "tests/kernels/cpu/page_testing.h"
#include "tests/kernels/support/each_target.h"

namespace oscarkv {
namespace {

// Seals on each target; all must agree in the bytes and in what is reported.
void ExpectTheSame(const LayerSpec& spec, const std::vector<HeadData>& heads) {
  std::optional<SealedPage> first;
  testing::ForEachTarget([&] {
    const SealedPage page = Seal(spec, heads);
    if (!first) {
      first.emplace(page);
      return;
    }
    EXPECT_EQ(std::memcmp(page.bytes.data(), first->bytes.data(), page.bytes.size()), 0);
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
      const ProfileSettings settings = SettingsOf(profile);
      spec.codec = settings.codec;
      if (spec.codec.plan == PlanMode::kGiven) GivePlan(spec, settings.plan);
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
