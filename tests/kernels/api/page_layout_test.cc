#include "kernels/api/page_layout.h"

#include <initializer_list>

#include "gtest/gtest.h"
#include "kernels/api/profiles.h"

namespace oscarkv {
namespace {

LayerSpec SpecOf(Profile profile, int kv_heads, int head_dim) {
  LayerSpec spec;
  spec.query_heads = kv_heads;
  spec.kv_heads = kv_heads;
  spec.key_dim = head_dim;
  spec.value_dim = head_dim;
  spec.codec = SettingsOf(profile).codec;
  return spec;
}

double BitsPerValue(Profile profile, int kv_heads, int head_dim) {
  const LayerSpec spec = SpecOf(profile, kv_heads, head_dim);
  return 16.0 * static_cast<double>(PageLayout(spec).bytes) /
         static_cast<double>(kPageTokens * spec.logical_bytes_per_token());
}

// What the profiles promise, with headers and alignment.
TEST(PageLayoutTest, BitsPerValue) {
  EXPECT_LE(BitsPerValue(Profile::kDense, 8, 128), 2.32);
  EXPECT_LE(BitsPerValue(Profile::kPrecise, 8, 128), 3.32);
  EXPECT_LE(BitsPerValue(Profile::kPaper, 8, 128), 3.03);
  EXPECT_LE(BitsPerValue(Profile::kKivi, 8, 128), 3.03);
  // As SmolLM2-135M and as Gemma-3-270M.
  EXPECT_LE(BitsPerValue(Profile::kDense, 3, 64), 2.48 + 0.015);
  EXPECT_LE(BitsPerValue(Profile::kPrecise, 3, 64), 3.48 + 0.015);
  EXPECT_LE(BitsPerValue(Profile::kPaper, 3, 64), 3.04 + 0.015);
  EXPECT_LE(BitsPerValue(Profile::kDense, 1, 256), 2.23 + 0.015);
  EXPECT_LE(BitsPerValue(Profile::kPrecise, 1, 256), 3.23 + 0.015);
  EXPECT_LE(BitsPerValue(Profile::kPaper, 1, 256), 3.03 + 0.015);
}

// Times less memory than 16 bits for `length` tokens: sinks and a window of 128 to 255 tokens stay.
double SessionRatio(Profile profile, std::int64_t length) {
  const LayerSpec spec = SpecOf(profile, 8, 128);
  const std::int64_t pages = (length - spec.codec.sinks - spec.codec.window) / kPageTokens;
  const std::int64_t unsealed = length - pages * kPageTokens;
  const double resident = static_cast<double>(pages * PageLayout(spec).bytes +
                                              unsealed * spec.logical_bytes_per_token());
  return static_cast<double>(length * spec.logical_bytes_per_token()) / resident;
}

TEST(PageLayoutTest, WholeSessionsSaveLessWhenShort) {
  EXPECT_GE(SessionRatio(Profile::kDense, 512), 1.74);
  EXPECT_GE(SessionRatio(Profile::kDense, 1024), 2.75);
  EXPECT_GE(SessionRatio(Profile::kDense, 4096), 5.05);
  EXPECT_GE(SessionRatio(Profile::kDense, 8192), 5.8);
  EXPECT_GE(SessionRatio(Profile::kDense, 131072), 6.8);
}

// Parts follow each other, aligned, each large enough, for every codec and shape.
TEST(PageLayoutTest, PartsDoNotOverlap) {
  for (const int key_dim : {64, 80, 96, 112, 128, 192, 256}) {
    for (const int value_dim : {64, 80, 96, 112, 128, 192, 256}) {
      for (const int bits : {2, 4, 16}) {
        for (const int group : {kSmallGroup, kPageTokens}) {
          for (const Scaling scaling : {Scaling::kNone, Scaling::kJoint, Scaling::kPerHead}) {
            LayerSpec spec = SpecOf(Profile::kDense, 9, key_dim);
            spec.value_dim = value_dim;
            spec.codec.key_bits = bits;
            spec.codec.value_bits = bits;
            spec.codec.key_group = group;
            spec.codec.value_group = group == kSmallGroup ? kSmallGroup : 0;
            spec.codec.scaling = scaling;
            const PageLayout layout(spec);
            const bool coded = bits < 16;
            const std::int64_t key_groups = coded ? kPageTokens / group : 0;
            const std::int64_t value_groups = !coded                 ? 0
                                              : group == kSmallGroup ? (value_dim + 31) / 32
                                                                     : 1;
            const std::int64_t norm_rows = !coded || scaling == Scaling::kNone ? 0
                                           : scaling == Scaling::kJoint        ? 1
                                                                               : spec.kv_heads;
            EXPECT_EQ(layout.key_groups, key_groups);
            EXPECT_EQ(layout.value_groups, value_groups);
            EXPECT_EQ(layout.norm_rows, norm_rows);
            EXPECT_GE(layout.norms, 8 * spec.kv_heads);
            EXPECT_EQ(layout.heads, layout.norms + AlignUp(norm_rows * 256));
            EXPECT_EQ(layout.key_codes, 0);
            EXPECT_GE(layout.key_params, key_dim * kPageTokens * bits / 8);
            EXPECT_GE(layout.residuals, layout.key_params + 4 * key_groups * key_dim);
            EXPECT_EQ(layout.value_codes, layout.residuals + (coded ? kPageTokens : 0));
            EXPECT_GE(layout.value_params, layout.value_codes + value_dim * kPageTokens * bits / 8);
            EXPECT_GE(layout.head_bytes, layout.value_params + 4 * value_groups * kPageTokens);
            EXPECT_EQ(layout.bytes, layout.heads + layout.head_bytes * spec.kv_heads);
            for (const std::int64_t offset :
                 {layout.norms, layout.heads, layout.key_params, layout.residuals,
                  layout.value_codes, layout.value_params, layout.head_bytes}) {
              EXPECT_EQ(offset % kPageAlignment, 0);
            }
          }
        }
      }
    }
  }
}

TEST(PageLayoutTest, TokenBlocksHoldKeysThenValuesOfEachHead) {
  LayerSpec spec = SpecOf(Profile::kDense, 3, 96);
  spec.value_dim = 64;
  const TokenBlockLayout block(spec, kWindowBlockTokens);
  EXPECT_EQ(block.value_offset, 2 * 32 * 96);
  EXPECT_EQ(block.head_bytes, 2 * 32 * (96 + 64));
  EXPECT_EQ(block.bytes, 3 * block.head_bytes);
  EXPECT_EQ(block.bytes, 32 * spec.logical_bytes_per_token());
}

}  // namespace
}  // namespace oscarkv
