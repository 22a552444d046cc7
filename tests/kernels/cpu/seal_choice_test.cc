#include "kernels/cpu/seal_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec/page_view.h"
#include "kernels/cpu/key_encoder.h"
#include "kernels/cpu/page_decode.h"
#include "tests/kernels/cpu/page_testing.h"

namespace oscarkv {
namespace {

using cpu::AttentionChange;
using cpu::CodedKeys;
using cpu::KeyEncoder;

// The criterion from its definition, in double.
double Change(const HeadData& head, const std::vector<float>& decoded, int dim, double scale) {
  const auto log_softmax = [&](const float* query, const std::vector<float>& page) {
    std::vector<double> logits;
    for (const std::vector<float>* keys : {&page, &head.context}) {
      for (std::size_t t = 0; t < keys->size() / dim; ++t) {
        double dot = 0;
        for (int c = 0; c < dim; ++c) dot += double{query[c]} * (*keys)[t * dim + c];
        logits.push_back(scale * dot);
      }
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - largest);
    for (double& logit : logits) logit -= largest + std::log(sum);
    return logits;
  };
  double change = 0;
  for (std::size_t i = 0; i < head.queries.size() / dim; ++i) {
    const std::vector<double> exact = log_softmax(&head.queries[i * dim], head.keys);
    const std::vector<double> changed = log_softmax(&head.queries[i * dim], decoded);
    double divergence = 0;
    for (std::size_t t = 0; t < exact.size(); ++t) {
      divergence += std::exp(exact[t]) * (exact[t] - changed[t]);
    }
    change += std::sqrt(std::max(0.0, divergence));
  }
  return change;
}

struct Case {
  int dim, context, num_queries;
};

class SealChoiceTest : public ::testing::TestWithParam<Case> {
 protected:
  SealChoiceTest()
      : spec_(SmallSpec(2, GetParam().dim, 64)),
        heads_(RandomHeads(spec_, 9, GetParam().context, GetParam().num_queries)) {}

  LayerSpec spec_;
  std::vector<HeadData> heads_;
};

INSTANTIATE_TEST_SUITE_P(Cases, SealChoiceTest,
                         ::testing::Values(Case{64, 128, 32}, Case{80, 1, 1}, Case{112, 0, 5},
                                           Case{128, 128, 32}, Case{256, 37, 16}));

constexpr HeadPlan kPlans[] = {{Rotation::kHadamard, Fit::kVariance},
                               {Rotation::kHadamard, Fit::kMinMax},
                               {Rotation::kNone, Fit::kVariance},
                               {Rotation::kNone, Fit::kMinMax}};

// The keys of a head as they decode under a plan.
std::vector<float> DecodedUnder(LayerSpec spec, const std::vector<HeadData>& heads, int head,
                                HeadPlan plan) {
  GivePlan(spec, plan);
  const SealedPage page = Seal(spec, heads);
  std::vector<float> keys(heads[head].keys.size());
  cpu::DecodeKeys(spec, PageView(spec, page.bytes.data()).Head(head), heads[head].direction.data(),
                  0, kPageTokens, keys.data());
  return keys;
}

// Of candidates as the encoder has them: by their codes, norms and residuals.
TEST_P(SealChoiceTest, MeasuresTheDivergence) {
  const SealedPage page = Seal(spec_, heads_);
  for (int i = 0; i < spec_.kv_heads; ++i) {
    const std::uint16_t* const norms = PageView(spec_, page.bytes.data()).Head(i).norms;
    const HeadInput input(spec_, heads_[i]);
    AttentionChange change(spec_, input.tokens(), norms);
    KeyEncoder encoder(spec_, input.tokens(), norms);
    for (const HeadPlan plan : kPlans) {
      const CodedKeys keys = encoder.Encode(plan);
      const double expected =
          Change(heads_[i], DecodedUnder(spec_, heads_, i, plan), spec_.key_dim, spec_.scale);
      EXPECT_NEAR(change.Of(keys), expected, 1e-3 * expected + 1e-3);
    }
  }
}

TEST_P(SealChoiceTest, NothingChangesUnderKeysThatCodesGiveExactly) {
  for (std::size_t i = 0; i < heads_[0].keys.size(); ++i) {
    const std::size_t t = i / spec_.key_dim;
    const std::size_t c = i % spec_.key_dim;
    heads_[0].keys[i] = static_cast<float>((t + c + c / 4) % 4);
  }
  const HeadInput input(spec_, heads_[0]);
  AttentionChange change(spec_, input.tokens(), nullptr);
  KeyEncoder encoder(spec_, input.tokens(), nullptr);
  const CodedKeys itself = encoder.Encode({Rotation::kNone, Fit::kMinMax});
  EXPECT_LE(itself.error, 1e-4);
  EXPECT_LE(change.Of(itself), 0.002 * input.tokens().num_queries);
}

// Whatever the heads are like, no single plan beats the one chosen.
TEST_P(SealChoiceTest, AutoIsNoWorseThanAnyPlan) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::vector<HeadData> heads =
        RandomHeads(spec_, seed, GetParam().context, GetParam().num_queries);
    // Heads differ in what suits them: one channel far out likes no rotation.
    if (seed % 2 == 1) {
      for (int t = 0; t < kPageTokens; ++t) heads[0].keys[t * spec_.key_dim + 3] *= 16;
    }
    for (const int bits : {2, 4}) {
      spec_.codec.key_bits = bits;
      const SealedPage page = Seal(spec_, heads);
      for (int i = 0; i < spec_.kv_heads; ++i) {
        std::vector<float> keys(heads[i].keys.size());
        cpu::DecodeKeys(spec_, PageView(spec_, page.bytes.data()).Head(i),
                        heads[i].direction.data(), 0, kPageTokens, keys.data());
        const double chosen = Change(heads[i], keys, spec_.key_dim, spec_.scale);
        for (const HeadPlan plan : kPlans) {
          const std::vector<float> candidate = DecodedUnder(spec_, heads, i, plan);
          // Up to the rounding of logits in fp32.
          EXPECT_LE(chosen, Change(heads[i], candidate, spec_.key_dim, spec_.scale) * 1.001);
          if (plan.rotation == page.heads[i].rotation && plan.fit == page.heads[i].fit) {
            EXPECT_EQ(keys, candidate);
          }
        }
      }
    }
  }
}

// Normal keys, and queries that look for none in particular.
HeadData PlainHead(const LayerSpec& spec) {
  std::mt19937 random(1);
  HeadData head;
  head.keys = RandomNumbers(random, kPageTokens * spec.key_dim, 1, spec.storage);
  head.context = RandomNumbers(random, 16 * spec.key_dim, 1, spec.storage);
  head.values = RandomNumbers(random, kPageTokens * spec.value_dim, 1, spec.storage);
  head.queries = RandomNumbers(random, 32 * spec.key_dim, 1, spec.storage);
  return head;
}

// A rotation would spread its error over all channels.
TEST(SealChoicesTest, ALargeChannelThatQueriesIgnoreStaysUnrotated) {
  LayerSpec spec = SmallSpec(1, 64, 64);
  spec.codec.scaling = Scaling::kNone;
  HeadData head = PlainHead(spec);
  EXPECT_EQ(Seal(spec, {head}).heads[0].fit, Fit::kVariance);
  for (int t = 0; t < kPageTokens; ++t) head.keys[t * 64 + 5] *= 64;
  for (int i = 0; i < 32; ++i) head.queries[i * 64 + 5] = 0;
  EXPECT_EQ(Seal(spec, {head}).heads[0].rotation, Rotation::kNone);
}

TEST(SealChoicesTest, LoneTokensThatQueriesLookForKeepTheWholeRange) {
  const LayerSpec spec = SmallSpec(1, 64, 64);
  HeadData head = PlainHead(spec);
  for (int c = 0; c < 64; ++c) {
    const float sign = c * c % 5 < 2 ? 1.0F : -1.0F;
    head.keys[77 * 64 + c] = 6 * sign;
    for (int i = 0; i < 32; ++i) head.queries[i * 64 + c] = 0.25F * sign;
  }
  EXPECT_EQ(Seal(spec, {head}).heads[0].fit, Fit::kMinMax);
}

TEST(SealChoicesTest, TiesGoToTheFirst) {
  LayerSpec spec = SmallSpec(1, 64, 64);
  std::vector<HeadData> heads = RandomHeads(spec, 1, 16, 8);
  for (float& x : heads[0].keys) x = 0;  // every candidate is exact
  const SealedHead sealed = Seal(spec, heads).heads[0];
  EXPECT_EQ(sealed.rotation, Rotation::kHadamard);
  EXPECT_EQ(sealed.fit, Fit::kVariance);
}

TEST(SealChoicesTest, WithoutQueriesRotatedVariance) {
  LayerSpec spec = SmallSpec(1, 128, 64);
  std::vector<HeadData> heads = RandomHeads(spec, 2, 128, 0);
  for (int t = 0; t < kPageTokens; ++t) heads[0].keys[t * 128] = 500;  // would not be chosen
  const SealedHead sealed = Seal(spec, heads).heads[0];
  EXPECT_EQ(sealed.rotation, Rotation::kHadamard);
  EXPECT_EQ(sealed.fit, Fit::kVariance);
}

TEST(SealChoicesTest, LogitsThatOverflowDoNoHarm) {
  LayerSpec spec = SmallSpec(1, 64, 64);
  std::vector<HeadData> heads = RandomHeads(spec, 3, 16, 8);
  for (float& x : heads[0].keys) x = RoundTo(spec.storage, x * 1e36F);
  for (float& x : heads[0].queries) x = RoundTo(spec.storage, x * 1e36F);
  const SealedPage page = Seal(spec, heads);
  EXPECT_EQ(page.heads[0].rotation, Rotation::kHadamard);
  EXPECT_EQ(page.heads[0].fit, Fit::kVariance);
  EXPECT_TRUE(std::isfinite(page.heads[0].key_error));
}

}  // namespace
}  // namespace oscarkv
