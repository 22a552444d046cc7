// Seal: pages against the oracle's own encoding, and what their bytes may depend on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "tests/kernels/support/backend_contract.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::testing {
namespace {

// The tokens of a page as they were stored.
oracle::Tokens TokensOfPage(const MiniSession& session, const PageRef& page) {
  const LayerSpec& spec = session.spec();
  const std::int64_t keys = std::int64_t{1} * spec.kv_heads * spec.key_dim;
  const std::int64_t values = std::int64_t{1} * spec.kv_heads * spec.value_dim;
  const oracle::Tokens& all = session.Exact();
  oracle::Tokens out;
  out.keys.assign(all.keys.begin() + page.begin * keys,
                  all.keys.begin() + (page.begin + kPageTokens) * keys);
  out.values.assign(all.values.begin() + page.begin * values,
                    all.values.begin() + (page.begin + kPageTokens) * values);
  return out;
}

struct Tally {
  std::int64_t codes = 0;
  std::int64_t wrong_codes = 0;
};

// Codes but for rounding next to a threshold, parameters but for one fp16 step (a group one of
// whose codes differs is fitted to another assignment: those are counted by their codes).
void Compare(const oracle::Quantized& got, const oracle::Quantized& ought, Tally& tally) {
  ASSERT_EQ(got.codes.size(), ought.codes.size());
  ASSERT_EQ(got.scales.size(), ought.scales.size());
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < got.codes.size(); ++i) wrong += got.codes[i] != ought.codes[i];
  std::int64_t wrong_params = 0;
  for (std::size_t i = 0; i < got.scales.size(); ++i) {
    const double scale_step = std::ldexp(std::fabs(ought.scales[i]), -10);
    // The zero point is a difference of numbers as large as the group's range.
    const double zero_step =
        std::ldexp(std::fabs(ought.zeros[i]), -10) + std::ldexp(ought.scales[i], -18);
    wrong_params += !(std::fabs(got.scales[i] - ought.scales[i]) <= scale_step) ||
                    !(std::fabs(got.zeros[i] - ought.zeros[i]) <= zero_step);
  }
  EXPECT_LE(wrong_params, wrong);
  tally.codes += static_cast<std::int64_t>(got.codes.size());
  tally.wrong_codes += wrong;
}

TEST_P(BackendContract, GivenPagesAreTheOraclesPages) {
  const auto backend = Make(2);
  Tally tally;
  for (int seed = 400; seed < 400 + Trials(30); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LayerSpec spec = RandomSpec(random);
    spec.sliding_window = 0;
    spec.codec.plan = PlanMode::kGiven;
    spec.given_plan.clear();
    for (int head = 0; head < spec.kv_heads; ++head) {
      spec.given_plan.push_back({random.Pick({Rotation::kHadamard, Rotation::kNone}),
                                 random.Pick({Fit::kVariance, Fit::kMinMax})});
    }
    MiniSession session(*backend, spec);
    const bool with_queries = random.Chance(0.7);
    while (session.pages().empty()) Fill(session, 40, 40, with_queries, random);
    const oracle::Tokens tokens = TokensOfPage(session, session.pages()[0]);
    const std::vector<std::byte> bytes = session.PageBytes(0);
    const float* directions = session.View().directions;
    for (int head = 0; head < spec.kv_heads; ++head) {
      const auto got = oracle::ReadPageHead(spec, bytes.data(), head);
      const auto ought = oracle::EncodePageHead(
          spec, tokens, head, spec.given_plan[head],
          directions == nullptr ? nullptr : directions + head * spec.key_dim);
      EXPECT_EQ(got.rotated, ought.rotated);
      EXPECT_EQ(got.has_residual, ought.has_residual);
      EXPECT_EQ(got.norms, ought.norms);
      EXPECT_EQ(got.raw_keys, ought.raw_keys);
      EXPECT_EQ(got.raw_values, ought.raw_values);
      Compare(got.keys, ought.keys, tally);
      Compare(got.values, ought.values, tally);
      ASSERT_EQ(got.residuals.size(), ought.residuals.size());
      for (std::size_t t = 0; t < got.residuals.size(); ++t) {
        EXPECT_NEAR(got.residuals[t] * got.residual_step, ought.residuals[t] * ought.residual_step,
                    1.1 * ought.residual_step);
      }
    }
  }
  EXPECT_GT(tally.codes, Trials(30) * 16'000);
  EXPECT_LE(tally.wrong_codes, tally.codes / 100'000);
}

TEST_P(BackendContract, SealReportsWhatItDid) {
  const auto backend = Make(2);
  for (int seed = 500; seed < 500 + Trials(12); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LayerSpec spec = RandomSpec(random);
    spec.sliding_window = 0;
    MiniSession session(*backend, spec);
    while (session.pages().empty()) Fill(session, 20, 20, true, random);
    const oracle::Tokens exact = TokensOfPage(session, session.pages()[0]);
    const std::vector<std::byte> bytes = session.PageBytes(0);
    double imbalance = 1;
    for (int head = 0; head < spec.kv_heads; ++head) {
      const SealedHead& sealed = session.sealed_heads()[head];
      const auto page = oracle::ReadPageHead(spec, bytes.data(), head);
      if (spec.keys_are_coded()) {
        EXPECT_EQ(page.rotated, sealed.rotation == Rotation::kHadamard);
      }
      std::vector<double> norms = page.norms;
      std::sort(norms.begin(), norms.end());
      imbalance = std::max(imbalance, norms.back() / ((norms[63] + norms[64]) / 2));

      std::vector<double> keys;
      std::vector<double> values;
      const float* directions = session.View().directions;
      oracle::DecodePageHead(spec, page,
                             directions == nullptr ? nullptr : directions + head * spec.key_dim,
                             &keys, &values);
      const auto relative = [&](const std::vector<double>& decoded, const std::vector<double>& all,
                                int dim) {
        std::vector<double> own;
        for (int t = 0; t < kPageTokens; ++t) {
          const auto row = all.begin() + (t * spec.kv_heads + head) * dim;
          own.insert(own.end(), row, row + dim);
        }
        return RmsDifference(decoded, own) / Rms(own);
      };
      const double key_error = relative(keys, exact.keys, spec.key_dim);
      const double value_error = relative(values, exact.values, spec.value_dim);
      EXPECT_NEAR(sealed.key_error, key_error, 1e-3 * key_error);
      EXPECT_NEAR(sealed.value_error, value_error, 1e-3 * value_error);
    }
    EXPECT_NEAR(session.norm_imbalance(), imbalance, 1e-5 * imbalance);
  }
}

// A page is a function of its tokens, their context, the query sample and the directions.
TEST_P(BackendContract, PagesDependOnNothingBeyondTheirContext) {
  const auto backend = Make(2);
  for (int seed = 600; seed < 600 + Trials(8); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<std::byte> pages[3];
    for (const int variant : {0, 1, 2}) {  // the same tokens, then others and more of them
      Random random(seed);
      LayerSpec spec = RandomSpec(random);
      spec.sliding_window = 0;
      MiniSession session(*backend, spec);
      const int needed = spec.codec.sinks + kPageTokens + spec.codec.window;
      const Rows rows = RandomRows(spec, needed, random);
      const std::vector<float> queries = RandomQueries(spec, needed, random);
      Rows more = rows;  // in the same step, so that nothing is sealed before they are there
      if (variant > 0) {
        Random other(1000 + variant);
        const Rows others = RandomRows(spec, 45 * variant, other);
        more.keys.insert(more.keys.end(), others.keys.begin(), others.keys.end());
        more.values.insert(more.values.end(), others.values.begin(), others.values.end());
        session.Sample(needed, RandomQueries(spec, 45 * variant, other));
      }
      session.Append(more.keys, more.values);
      session.Sample(0, queries);
      session.Seal();
      ASSERT_EQ(session.pages().size(), 1U);
      pages[variant] = session.PageBytes(0);
    }
    EXPECT_EQ(pages[0], pages[1]);
    EXPECT_EQ(pages[0], pages[2]);
  }
}

// How much a decoded page changes the attention of the sampled queries, by the definition.
double AttentionChange(const MiniSession& session, int head, const std::vector<float>& queries,
                       const std::vector<double>& decoded) {
  const LayerSpec& spec = session.spec();
  const int group = spec.queries_per_kv_head();
  const std::int64_t begin = session.pages()[0].begin;
  const std::int64_t end = begin + kPageTokens + spec.codec.window;
  double change = 0;
  for (std::int64_t position = begin; position < end; ++position) {
    if (position % spec.query_sample_stride() != 0) continue;
    for (int g = 0; g < group; ++g) {
      std::vector<double> logits[2];
      const std::int64_t row = (position * spec.query_heads + head * group + g) * spec.key_dim;
      for (std::int64_t t = begin; t < end; ++t) {
        double exact = 0;
        double changed = 0;
        for (int c = 0; c < spec.key_dim; ++c) {
          const double q = queries[row + c];
          const double k = session.Exact().keys[(t * spec.kv_heads + head) * spec.key_dim + c];
          exact += q * k;
          changed += q * (t - begin < kPageTokens ? decoded[(t - begin) * spec.key_dim + c] : k);
        }
        logits[0].push_back(exact * spec.scale);
        logits[1].push_back(changed * spec.scale);
      }
      double log_sum[2];
      for (int i = 0; i < 2; ++i) {
        const double max = *std::max_element(logits[i].begin(), logits[i].end());
        double sum = 0;
        for (const double logit : logits[i]) sum += std::exp(logit - max);
        log_sum[i] = max + std::log(sum);
      }
      double divergence = 0;
      for (std::size_t t = 0; t < logits[0].size(); ++t) {
        const double log_p = logits[0][t] - log_sum[0];
        divergence += std::exp(log_p) * (log_p - (logits[1][t] - log_sum[1]));
      }
      change += std::sqrt(std::max(0.0, divergence));
    }
  }
  return change;
}

TEST_P(BackendContract, AutoChoosesThePlanThatChangesAttentionLeast) {
  const auto backend = Make(2);
  int rotated = 0;
  int heads = 0;
  for (int seed = 700; seed < 700 + Trials(24); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LayerSpec spec = MakeSpec(static_cast<int>(2 * random.Int(1, 4)), 2, 64, 64);
    spec.codec.residual = random.Chance(0.7);
    spec.codec.sinks = 0;
    if (seed % 4 >= 2) spec.codec.window = 1;
    MiniSession session(*backend, spec);
    const int needed = kPageTokens + spec.codec.window;
    Rows rows = RandomRows(spec, needed, random);
    // Every other layer has no channels that stand out: there the rotation has less to gain from.
    if (seed % 2 == 0) {
      for (float& k : rows.keys) k = random.Normal();
    }
    // A token of context that many queries look at decides which of them count.
    for (int i = 0; i < spec.kv_heads * spec.key_dim; ++i) {
      rows.keys[kPageTokens * spec.kv_heads * spec.key_dim + i] *= 8;
    }
    std::vector<float> queries = RandomQueries(spec, needed, random);
    for (float& q : queries) q = FromBF16(ToBF16(q));
    session.Append(rows.keys, rows.values);
    session.Sample(0, queries);
    session.Seal();
    const oracle::Tokens tokens = TokensOfPage(session, session.pages()[0]);
    for (int head = 0; head < spec.kv_heads; ++head) {
      const float* directions = session.View().directions;
      const float* direction = directions == nullptr ? nullptr : directions + head * spec.key_dim;
      const SealedHead& sealed = session.sealed_heads()[head];
      double least = INFINITY;
      double chosen = INFINITY;
      for (const Rotation rotation : {Rotation::kHadamard, Rotation::kNone}) {
        for (const Fit fit : {Fit::kVariance, Fit::kMinMax}) {
          std::vector<double> keys;
          std::vector<double> values;
          oracle::DecodePageHead(
              spec, oracle::EncodePageHead(spec, tokens, head, {rotation, fit}, direction),
              direction, &keys, &values);
          const double change = AttentionChange(session, head, queries, keys);
          least = std::min(least, change);
          if (rotation == sealed.rotation && fit == sealed.fit) chosen = change;
        }
      }
      EXPECT_LE(chosen, least * 1.001);
      rotated += sealed.rotation == Rotation::kHadamard;
      ++heads;
    }
  }
  EXPECT_GT(rotated, 0);
  EXPECT_LT(rotated, heads);
}

TEST_P(BackendContract, WithoutQueriesPagesAreRotatedAndHaveNoResidual) {
  const auto backend = Make(2);
  Random random(720);
  MiniSession session(*backend, MakeSpec(4, 2, 64, 64));
  Fill(session, 300, 20, /*with_queries=*/false, random);
  const std::vector<std::byte> bytes = session.PageBytes(0);
  for (int head = 0; head < 2; ++head) {
    const auto page = oracle::ReadPageHead(session.spec(), bytes.data(), head);
    EXPECT_TRUE(page.rotated);
    EXPECT_FALSE(page.has_residual);
    EXPECT_EQ(session.sealed_heads()[head].fit, Fit::kVariance);
  }
}

// A page that is sealed by several calls, each for some of its heads, has the bytes and the report
// of one that is sealed at once.
TEST_P(BackendContract, HeadsMayBeSealedByCallsOfTheirOwn) {
  const auto backend = Make(2);
  for (const auto scaling : {Scaling::kJoint, Scaling::kPerHead, Scaling::kNone}) {
    Random random(725);
    constexpr int kHeads = 4;
    LayerSpec spec = MakeSpec(8, kHeads, 64, 64);
    spec.codec.scaling = scaling;
    MiniSession session(*backend, spec);
    const int needed = spec.codec.sinks + kPageTokens + spec.codec.window;
    const Rows rows = RandomRows(spec, needed, random);
    session.Append(rows.keys, rows.values);
    const std::vector<std::uint16_t> queries =
        Round16(spec.storage, RandomQueries(spec, 8, random));
    const std::vector<float> directions = PrincipalDirections(spec, queries.data(), 8);
    const auto seal = [&](const std::vector<int>& cuts, std::vector<SealedHead>& heads) {
      const std::int64_t bytes = PageLayout(spec).bytes;
      SealItem item{.spec = &spec,
                    .tokens = session.View().window,
                    .context = spec.codec.window,
                    .queries = queries.data(),
                    .num_queries = 8,
                    .directions = directions.data(),
                    .heads = heads.data()};
      EXPECT_TRUE(backend->Allocate(bytes, {&item.page, 1}).ok());
      std::vector<std::byte> page(static_cast<std::size_t>(bytes), std::byte{0x5a});
      EXPECT_TRUE(backend->WriteBlock(item.page, page).ok());
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        item.head_begin = cuts[i];
        item.head_end = cuts[i + 1];
        EXPECT_TRUE(backend->Seal({&item, 1}).ok());
      }
      EXPECT_TRUE(backend->ReadBlock(item.page, page).ok());
      backend->Free({&item.page, 1});
      return std::pair(page, item.norm_imbalance);
    };
    std::vector<SealedHead> expected_heads(kHeads);
    const auto expected = seal({0, kHeads}, expected_heads);
    for (const std::vector<int>& cuts :
         {std::vector{0, 1, 2, 3, 4}, std::vector{0, 3, 4}, std::vector{0, 1, 4}}) {
      std::vector<SealedHead> heads(kHeads);
      EXPECT_TRUE(seal(cuts, heads) == expected);
      for (int head = 0; head < kHeads; ++head) {
        EXPECT_EQ(heads[head].rotation, expected_heads[head].rotation);
        EXPECT_EQ(heads[head].fit, expected_heads[head].fit);
        EXPECT_EQ(heads[head].key_error, expected_heads[head].key_error);
        EXPECT_EQ(heads[head].value_error, expected_heads[head].value_error);
      }
    }
  }
}

// Values far beyond fp16, all zeros, and single spikes come back finite and near what went in.
TEST_P(BackendContract, ExtremeTokensSurvive) {
  const auto backend = Make(2);
  for (const float magnitude : {0.0F, 1e-30F, 1e5F, 1e30F}) {
    SCOPED_TRACE("magnitude " + std::to_string(magnitude));
    Random random(730);
    LayerSpec spec = MakeSpec(1, 1, 64, 64);
    spec.codec.sinks = 0;
    MiniSession session(*backend, spec);
    const int needed = kPageTokens + spec.codec.window;
    Rows rows = RandomRows(spec, needed, random);
    for (float& x : rows.keys) x *= magnitude;
    for (float& x : rows.values) x *= magnitude;
    session.Append(rows.keys, rows.values);
    session.Seal();
    const oracle::Tokens decoded = session.Decoded();
    EXPECT_LE(RmsDifference(decoded.keys, session.Exact().keys), 0.5 * Rms(session.Exact().keys));
    EXPECT_LE(RmsDifference(decoded.values, session.Exact().values),
              0.5 * Rms(session.Exact().values));
    const std::vector<float> queries(64, magnitude > 1 ? 1 / magnitude : 1.0F);
    const Answer answer = Attend(*backend, session.View(), queries, {needed - 1});
    for (const float x : answer.outputs) EXPECT_TRUE(std::isfinite(x));
    EXPECT_TRUE(std::isfinite(answer.log_sum_exps[0]));
  }
}

}  // namespace
}  // namespace oscarkv::testing
