#include "kernels/api/profiles.h"

#include "gtest/gtest.h"

namespace oscarkv {
namespace {

TEST(ProfilesTest, DenseIsTheDefaultCodec) {
  const auto [codec, plan] = SettingsOf(Profile::kDense);
  EXPECT_EQ(codec.key_bits, 2);
  EXPECT_EQ(codec.value_bits, 2);
  EXPECT_EQ(codec.key_group, kPageTokens);
  EXPECT_EQ(codec.value_group, 0);
  EXPECT_EQ(codec.value_fit, Fit::kVariance);
  EXPECT_EQ(codec.scaling, Scaling::kJoint);
  EXPECT_EQ(codec.plan, PlanMode::kAuto);
  EXPECT_TRUE(codec.residual);
  EXPECT_EQ(codec.value_rotation, Rotation::kHadamard);
  EXPECT_EQ(codec.window, 128);
  EXPECT_EQ(codec.sinks, 4);
  EXPECT_EQ(plan.rotation, Rotation::kHadamard);
  EXPECT_EQ(plan.fit, Fit::kVariance);
}

TEST(ProfilesTest, PreciseHasFourBitKeys) {
  const CodecSpec codec = SettingsOf(Profile::kPrecise).codec;
  EXPECT_EQ(codec.key_bits, 4);
  EXPECT_EQ(codec.value_bits, 2);
  EXPECT_EQ(codec.plan, PlanMode::kAuto);
  EXPECT_TRUE(codec.residual);
}

TEST(ProfilesTest, PaperAndKiviDifferInWhatThePaperAdds) {
  const ProfileSettings paper = SettingsOf(Profile::kPaper);
  const ProfileSettings kivi = SettingsOf(Profile::kKivi);
  for (const ProfileSettings& settings : {paper, kivi}) {
    EXPECT_EQ(settings.codec.key_group, kSmallGroup);
    EXPECT_EQ(settings.codec.value_group, kSmallGroup);
    EXPECT_EQ(settings.codec.value_fit, Fit::kMinMax);
    EXPECT_EQ(settings.codec.plan, PlanMode::kGiven);
    EXPECT_EQ(settings.plan.fit, Fit::kMinMax);
    EXPECT_FALSE(settings.codec.residual);
    EXPECT_EQ(settings.codec.sinks, 0);
    EXPECT_EQ(settings.codec.window, 128);
  }
  EXPECT_EQ(paper.codec.scaling, Scaling::kJoint);
  EXPECT_EQ(paper.codec.value_rotation, Rotation::kHadamard);
  EXPECT_EQ(paper.plan.rotation, Rotation::kHadamard);
  EXPECT_EQ(kivi.codec.scaling, Scaling::kNone);
  EXPECT_EQ(kivi.codec.value_rotation, Rotation::kNone);
  EXPECT_EQ(kivi.plan.rotation, Rotation::kNone);
}

TEST(ProfilesTest, Names) {
  EXPECT_STREQ(NameOf(Profile::kDense), "DENSE");
  EXPECT_STREQ(NameOf(Profile::kPrecise), "PRECISE");
  EXPECT_STREQ(NameOf(Profile::kPaper), "PAPER");
  EXPECT_STREQ(NameOf(Profile::kKivi), "KIVI");
}

}  // namespace
}  // namespace oscarkv
