// Pages from end to end: what is sealed comes back as well as its codec allows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/profiles.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/page_view.h"
#include "kernels/codec/tile.h"
#include "kernels/cpu/page_decode.h"
#include "kernels/cpu/page_encoder.h"
#include "tests/kernels/cpu/page_testing.h"

namespace oscarkv {
namespace {

struct Decoded {
  std::vector<float> keys;
  std::vector<float> values;
};

Decoded Decode(const LayerSpec& spec, const SealedPage& page, const HeadData& head, int index) {
  const HeadView view = PageView(spec, page.bytes.data()).Head(index);
  Decoded decoded;
  decoded.keys.resize(head.keys.size());
  decoded.values.resize(head.values.size());
  const float* const direction = head.direction.empty() ? nullptr : head.direction.data();
  cpu::DecodeKeys(spec, view, direction, 0, kPageTokens, decoded.keys.data());
  cpu::DecodeValues(spec, view, 0, kPageTokens, decoded.values.data());
  return decoded;
}

// Relative error that normal numbers must stay below.
double Bound(int bits) { return bits == 2 ? 0.52 : bits == 4 ? 0.13 : 0.0; }

void ExpectRoundTrip(const LayerSpec& spec, const std::vector<HeadData>& heads) {
  const SealedPage page = Seal(spec, heads);
  for (int i = 0; i < spec.kv_heads; ++i) {
    const Decoded decoded = Decode(spec, page, heads[i], i);
    const double key_error = RelativeDistance(heads[i].keys, decoded.keys);
    const double value_error = RelativeDistance(heads[i].values, decoded.values);
    EXPECT_LE(key_error, Bound(spec.codec.key_bits));
    EXPECT_LE(value_error, Bound(spec.codec.value_bits));
    EXPECT_NEAR(page.heads[i].key_error, key_error, 1e-5);
    EXPECT_NEAR(page.heads[i].value_error, value_error, 1e-5);
  }
}

// {key bits, value bits, key group, value group}
using Bits = std::tuple<int, int, int, int>;
class PageCodecTest : public ::testing::TestWithParam<Bits> {};

INSTANTIATE_TEST_SUITE_P(All, PageCodecTest,
                         ::testing::Combine(::testing::Values(2, 4, 16),
                                            ::testing::Values(2, 4, 16),
                                            ::testing::Values(kSmallGroup, kPageTokens),
                                            ::testing::Values(kSmallGroup, 0)));

LayerSpec SpecOf(const Bits& bits, int key_dim, int value_dim) {
  LayerSpec spec = SmallSpec(2, key_dim, value_dim);
  std::tie(spec.codec.key_bits, spec.codec.value_bits, spec.codec.key_group,
           spec.codec.value_group) = bits;
  return spec;
}

TEST_P(PageCodecTest, EveryScalingAndPlan) {
  LayerSpec spec = SpecOf(GetParam(), 64, 80);
  for (const DType storage : {DType::kBF16, DType::kFP16}) {
    spec.storage = storage;
    const std::vector<HeadData> heads = RandomHeads(spec, 1, 32, 8);
    for (const Scaling scaling : {Scaling::kNone, Scaling::kJoint, Scaling::kPerHead}) {
      spec.codec.scaling = scaling;
      for (const Rotation rotation : {Rotation::kHadamard, Rotation::kNone}) {
        spec.codec.value_rotation = rotation;
        for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
          spec.codec.value_fit = fit;
          GivePlan(spec, {rotation, fit});
          ExpectRoundTrip(spec, heads);
        }
      }
      spec.codec.plan = PlanMode::kAuto;
      spec.given_plan.clear();
      ExpectRoundTrip(spec, heads);
    }
  }
}

TEST_P(PageCodecTest, EveryWidth) {
  constexpr int kDims[] = {64, 80, 96, 112, 128, 192, 256};
  for (std::size_t i = 0; i < std::size(kDims); ++i) {
    LayerSpec spec = SpecOf(GetParam(), kDims[i], kDims[(i + 3) % std::size(kDims)]);
    GivePlan(spec, {Rotation::kHadamard, Fit::kVariance});
    ExpectRoundTrip(spec, RandomHeads(spec, 2, 0, 0));
  }
}

// Attention may read any tokens of a page, by themselves.
TEST_P(PageCodecTest, TokensDecodeAloneAsTheyDoTogether) {
  const LayerSpec spec = SpecOf(GetParam(), 80, 112);
  const std::vector<HeadData> heads = RandomHeads(spec, 3, 32, 8);
  const SealedPage page = Seal(spec, heads);
  const Decoded all = Decode(spec, page, heads[1], 1);
  const HeadView view = PageView(spec, page.bytes.data()).Head(1);
  for (const auto& [begin, tokens] :
       std::vector<std::pair<int, int>>{{0, 1}, {127, 1}, {5, 40}, {16, 16}, {31, 2}, {64, 0}}) {
    std::vector<float> keys(tokens * 80 + 1, -9.0F);
    std::vector<float> values(tokens * 112 + 1, -9.0F);
    cpu::DecodeKeys(spec, view, heads[1].direction.data(), begin, tokens, keys.data());
    cpu::DecodeValues(spec, view, begin, tokens, values.data());
    EXPECT_TRUE(std::equal(keys.begin(), keys.end() - 1, all.keys.begin() + begin * 80));
    EXPECT_TRUE(std::equal(values.begin(), values.end() - 1, all.values.begin() + begin * 112));
    EXPECT_EQ(keys.back(), -9.0F);
    EXPECT_EQ(values.back(), -9.0F);
  }
}

TEST_P(PageCodecTest, EveryByteIsWrittenAndTheSameEachTime) {
  const LayerSpec spec = SpecOf(GetParam(), 80, 96);
  const std::vector<HeadData> heads = RandomHeads(spec, 4, 32, 8);
  const SealedPage page = Seal(spec, heads);
  SealedPage over_zeros(spec);
  std::memset(over_zeros.bytes.data(), 0, over_zeros.bytes.size());
  SealOnto(spec, heads, over_zeros);
  EXPECT_EQ(std::memcmp(page.bytes.data(), over_zeros.bytes.data(), page.bytes.size()), 0);
}

// A token decodes from its own codes and parameters, by the formulas of the format.
TEST(PageTest, DecodesByTheFormulas) {
  for (const int bits : {2, 4}) {
    LayerSpec spec = SpecOf({bits, bits, kSmallGroup, kSmallGroup}, 96, 80);
    spec.codec.scaling = Scaling::kPerHead;
    GivePlan(spec, {Rotation::kHadamard, Fit::kVariance});
    const std::vector<HeadData> heads = RandomHeads(spec, 5, 0, 0);
    const SealedPage page = Seal(spec, heads);
    const PageLayout layout(spec);
    const int head = 1;
    const Decoded decoded = Decode(spec, page, heads[head], head);
    const std::byte* const bytes = page.bytes.data();
    const std::byte* const region = bytes + layout.heads + layout.head_bytes * head;
    PageHeadHeader header;
    std::memcpy(&header, bytes + 8 * head, 8);
    EXPECT_EQ(header.flags, kKeysRotated | kHasResidual);
    EXPECT_EQ(header.reserved, 0);
    const auto param = [&](std::int64_t offset, std::int64_t index) {
      AffineFP16 p;
      std::memcpy(&p, region + offset + index * 4, 4);
      return std::pair<double, double>{FromFP16(p.scale), FromFP16(p.zero)};
    };
    for (const int t : {0, 17, 63, 127}) {
      std::uint16_t norm_bits;
      std::memcpy(&norm_bits, bytes + layout.norms + 2 * (head * kPageTokens + t), 2);
      double squares = 0;
      for (int c = 0; c < 96; ++c) squares += std::pow(double{heads[head].keys[t * 96 + c]}, 2);
      EXPECT_EQ(norm_bits, ToBF16(static_cast<float>(std::sqrt(squares / 96))));
      const double residual =
          static_cast<std::int8_t>(region[layout.residuals + t]) *
          std::ldexp(double{FromFP16(header.residual_step)}, header.residual_exponent);
      for (int c = 0; c < 96; ++c) {
        double key = 0;
        for (int r = 0; r < 96; ++r) {
          const auto [scale, zero] = param(layout.key_params, t / 32 * 96 + r);
          const int code = CodeAt(region + layout.key_codes, kPageTokens, 96, bits, t, r);
          key += (scale * code + zero) * HadamardSign(96, c, r) / std::sqrt(96.0);
        }
        key = std::ldexp(key, header.key_exponent) * FromBF16(norm_bits);
        key += residual * heads[head].direction[c];
        ASSERT_NEAR(decoded.keys[t * 96 + c], key, 1e-4);
      }
      for (int c = 0; c < 80; ++c) {
        double value = 0;
        for (int r = 0; r < 80; ++r) {
          const auto [scale, zero] = param(layout.value_params, r / 32 * kPageTokens + t);
          const int code = CodeAt(region + layout.value_codes, 80, kPageTokens, bits, r, t);
          value += (scale * code + zero) * HadamardSign(80, c, r) / std::sqrt(80.0);
        }
        ASSERT_NEAR(decoded.values[t * 80 + c], std::ldexp(value, header.value_exponent), 1e-4);
      }
    }
  }
}

TEST(PageTest, JointNormsCoverAllHeads) {
  LayerSpec spec = SmallSpec(3, 64, 64);
  const std::vector<HeadData> heads = RandomHeads(spec, 6, 0, 0);
  const SealedPage page = Seal(spec, heads);
  const PageView view(spec, page.bytes.data());
  std::vector<float> norms;
  for (int t = 0; t < kPageTokens; ++t) {
    double squares = 0;
    for (const HeadData& head : heads) {
      for (int c = 0; c < 64; ++c) squares += std::pow(double{head.keys[t * 64 + c]}, 2);
    }
    norms.push_back(RoundTo(DType::kBF16, static_cast<float>(std::sqrt(squares / 192))));
    for (int head = 0; head < 3; ++head) ASSERT_EQ(FromBF16(view.Head(head).norms[t]), norms[t]);
  }
  std::sort(norms.begin(), norms.end());
  EXPECT_FLOAT_EQ(page.imbalance, norms.back() / ((norms[63] + norms[64]) / 2));
}

// Heads sealed on their own shard have the bytes of the unsharded page.
TEST(PageTest, PerHeadNormsDoNotDependOnSharding) {
  LayerSpec spec = SmallSpec(4, 64, 64);
  spec.codec.scaling = Scaling::kPerHead;
  const std::vector<HeadData> heads = RandomHeads(spec, 7, 32, 8);
  const SealedPage whole = Seal(spec, heads);
  LayerSpec shard = SmallSpec(1, 64, 64);
  shard.codec = spec.codec;
  const PageLayout layout(spec);
  const PageLayout shard_layout(shard);
  ASSERT_EQ(layout.head_bytes, shard_layout.head_bytes);
  for (int head = 0; head < 4; ++head) {
    const SealedPage page = Seal(shard, {heads[head]});
    EXPECT_EQ(std::memcmp(whole.bytes.data() + layout.heads + head * layout.head_bytes,
                          page.bytes.data() + shard_layout.heads, layout.head_bytes),
              0);
    EXPECT_EQ(std::memcmp(whole.bytes.data() + layout.norms + head * 256,
                          page.bytes.data() + shard_layout.norms, 256),
              0);
  }
}

TEST(PageTest, SixteenBitSidesAreStoredAsSent) {
  LayerSpec spec = SpecOf({16, 16, kPageTokens, 0}, 64, 80);
  spec.storage = DType::kFP16;
  const std::vector<HeadData> heads = RandomHeads(spec, 8, 32, 8);
  const SealedPage page = Seal(spec, heads);
  EXPECT_FALSE(HasNorms(spec));
  EXPECT_EQ(page.imbalance, 1);
  const PageView view(spec, page.bytes.data());
  for (int i = 0; i < 2; ++i) {
    const HeadView head = view.Head(i);
    EXPECT_EQ(page.heads[i].rotation, Rotation::kNone);
    EXPECT_FALSE(head.keys_rotated);
    EXPECT_FALSE(head.has_residual);
    EXPECT_EQ(head.norms, nullptr);
    EXPECT_EQ(head.key_params, nullptr);
    EXPECT_EQ(head.value_params, nullptr);
    const Decoded decoded = Decode(spec, page, heads[i], i);
    EXPECT_EQ(decoded.keys, heads[i].keys);
    EXPECT_EQ(decoded.values, heads[i].values);
  }
}

// The error of logits that matter, with and without the residual.
TEST(PageTest, ResidualHalvesTheErrorOfLogits) {
  LayerSpec spec = SmallSpec(1, 128, 64);
  GivePlan(spec, {Rotation::kHadamard, Fit::kVariance});
  double with = 0;
  double without = 0;
  for (unsigned seed = 0; seed < 5; ++seed) {
    std::vector<HeadData> heads = RandomHeads(spec, seed, 0, 32);
    // As in models, most of a query lies along its head's principal direction.
    for (std::size_t i = 0; i < heads[0].queries.size(); ++i) {
      heads[0].queries[i] += 20 * heads[0].direction[i % 128];
    }
    const auto error = [&](const HeadData& head) {
      const Decoded decoded = Decode(spec, Seal(spec, {head}), head, 0);
      double squares = 0;
      for (std::size_t q = 0; q < head.queries.size(); q += 128) {
        for (std::size_t t = 0; t < head.keys.size(); t += 128) {
          double dot = 0;
          for (int c = 0; c < 128; ++c) {
            dot += head.queries[q + c] * (double{head.keys[t + c]} - decoded.keys[t + c]);
          }
          squares += dot * dot;
        }
      }
      return std::sqrt(squares);
    };
    with += error(heads[0]);
    heads[0].direction.clear();
    without += error(heads[0]);
  }
  EXPECT_LT(with, 0.55 * without);
}

TEST(PageTest, NoDirectionNoResidual) {
  LayerSpec spec = SmallSpec(1, 64, 64);
  std::vector<HeadData> heads = RandomHeads(spec, 9, 32, 8);
  heads[0].direction.clear();
  const SealedPage page = Seal(spec, heads);
  const HeadView head = PageView(spec, page.bytes.data()).Head(0);
  EXPECT_FALSE(head.has_residual);
  for (int t = 0; t < kPageTokens; ++t) EXPECT_EQ(head.residuals[t], 0);
  // Where the codec keeps none there is no room for one either.
  spec.codec.residual = false;
  const std::vector<HeadData> given = RandomHeads(spec, 9, 32, 8);
  const SealedPage without = Seal(spec, given);
  EXPECT_LT(without.bytes.size(), page.bytes.size());
  EXPECT_FALSE(PageView(spec, without.bytes.data()).Head(0).has_residual);
}

TEST(PageTest, ProfilesAreAsExactAsTheyCost) {
  double errors[4] = {};
  for (const Profile profile :
       {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi}) {
    LayerSpec spec = SmallSpec(2, 128, 128);
    UseProfile(spec, profile);
    const std::vector<HeadData> heads = RandomHeads(spec, 10, 128, 16);
    ExpectRoundTrip(spec, heads);
    for (const SealedHead& head : Seal(spec, heads).heads) {
      errors[static_cast<int>(profile)] += head.key_error / 2;
    }
  }
  EXPECT_LT(errors[1], 0.4 * errors[0]);  // PRECISE against DENSE
  EXPECT_LT(errors[2], errors[3]);        // PAPER against KIVI: tokens differ in size
}

}  // namespace
}  // namespace oscarkv
