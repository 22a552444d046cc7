// The oracle against what can be said without it.
#include "kernels/codec/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/api/dtype.h"
#include "tests/kernels/support/backend_contract.h"

namespace oscarkv::oracle {
namespace {

using ::oscarkv::testing::kHeadDims;
using ::oscarkv::testing::MakeSpec;
using ::oscarkv::testing::Random;
using ::oscarkv::testing::RandomRows;
using ::oscarkv::testing::Rms;
using ::oscarkv::testing::RmsDifference;

TEST(Oracle, HadamardMatricesAreOrthogonalWithEntriesOfOneMagnitude) {
  for (const int dim : kHeadDims) {
    const std::vector<double> h = HadamardMatrix(dim);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        EXPECT_NEAR(std::fabs(h[i * dim + j]), 1 / std::sqrt(dim), 1e-12);
        double dot = 0;
        for (int c = 0; c < dim; ++c) dot += h[i * dim + c] * h[j * dim + c];
        ASSERT_NEAR(dot, i == j ? 1 : 0, 1e-12) << dim << ": " << i << ", " << j;
      }
    }
  }
}

TEST(Oracle, RoundsAsTheElementTypesDo) {
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    const auto exponent = static_cast<int>(random.Int(-26, 15));
    const float x = std::ldexp(random.Normal(), exponent);
    EXPECT_EQ(RoundToBF16(x), FromBF16(ToBF16(x)));
    const float fp16 = FromFP16(ToFP16(x));
    if (std::isfinite(fp16)) {
      EXPECT_EQ(RoundToFP16(x), fp16) << x;
    }
  }
  EXPECT_EQ(RoundToFP16(1e9), 65504);
  EXPECT_EQ(RoundToFP16(-1e9), -65504);
  for (int bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    if (std::isfinite(FromBF16(b))) {
      ASSERT_EQ(Value16(DType::kBF16, b), FromBF16(b));
    }
    if (std::isfinite(FromFP16(b))) {
      ASSERT_EQ(Value16(DType::kFP16, b), FromFP16(b));
    }
  }
}

TEST(Oracle, MoreBitsDecodeCloser) {
  Random random(2);
  LayerSpec spec = MakeSpec(1, 1, 96, 112);
  const oscarkv::testing::Rows rows = RandomRows(spec, kPageTokens, random);
  const Tokens page{{rows.keys.begin(), rows.keys.end()}, {rows.values.begin(), rows.values.end()}};
  double key_error[2];
  double value_error[2];
  for (const int i : {0, 1}) {
    spec.codec.key_bits = spec.codec.value_bits = i == 0 ? 2 : 4;
    const PageHead head = EncodePageHead(spec, page, 0, {}, nullptr);
    std::vector<double> keys;
    std::vector<double> values;
    DecodePageHead(spec, head, nullptr, &keys, &values);
    key_error[i] = RmsDifference(keys, page.keys) / Rms(page.keys);
    value_error[i] = RmsDifference(values, page.values) / Rms(page.values);
  }
  EXPECT_LT(key_error[0], 0.4);
  EXPECT_LT(value_error[0], 0.4);
  EXPECT_LT(key_error[1], key_error[0] / 3);
  EXPECT_LT(value_error[1], value_error[0] / 3);
}

TEST(Oracle, ResidualsTakeTheErrorAlongTheirDirection) {
  Random random(3);
  LayerSpec spec = MakeSpec(1, 1, 64, 64);
  const oscarkv::testing::Rows rows = RandomRows(spec, kPageTokens, random);
  const Tokens page{{rows.keys.begin(), rows.keys.end()}, {rows.values.begin(), rows.values.end()}};
  const std::vector<float> direction(64, 0.125F);
  const auto error_along = [&](const float* u) {
    std::vector<double> keys;
    std::vector<double> values;
    DecodePageHead(spec, EncodePageHead(spec, page, 0, {}, u), u, &keys, &values);
    double sum = 0;
    for (int t = 0; t < kPageTokens; ++t) {
      double along = 0;
      for (int c = 0; c < 64; ++c) {
        along += direction[c] * (keys[t * 64 + c] - page.keys[t * 64 + c]);
      }
      sum += along * along;
    }
    return std::sqrt(sum);
  };
  EXPECT_LT(error_along(direction.data()), 0.02 * error_along(nullptr));
}

TEST(Oracle, AttentionOverTwoTokensByHand) {
  LayerSpec spec = MakeSpec(1, 1, 64, 64);
  spec.scale = 0.5F;
  Tokens tokens;
  tokens.keys.assign(128, 0.0);
  tokens.values.assign(128, 0.0);
  tokens.keys[0] = 2;    // token 0: q . k = 2, logit 1
  tokens.keys[64] = -2;  // token 1: logit -1
  tokens.values[0] = 10;
  tokens.values[64] = 20;
  AttentionRequest request;
  request.spec = &spec;
  request.tokens = &tokens;
  request.positions = {0, 1};
  request.queries.assign(64, 0.0);
  request.queries[0] = 1;
  request.query_begin = 1;
  const double e = std::exp(1.0);
  EXPECT_NEAR(Attend(request).log_sum_exps[0], std::log(e + 1 / e), 1e-12);
  EXPECT_NEAR(Attend(request).outputs[0], (10 * e + 20 / e) / (e + 1 / e), 1e-12);
  request.query_begin = 0;  // causal: token 0 only
  EXPECT_NEAR(Attend(request).log_sum_exps[0], 1, 1e-12);
  request.causal = false;
  EXPECT_NEAR(Attend(request).log_sum_exps[0], std::log(e + 1 / e), 1e-12);
  request.query_begin = 1;
  spec.sliding_window = 1;
  EXPECT_NEAR(Attend(request).outputs[0], 20, 1e-12);
  spec.sink_logits = {-1};
  EXPECT_NEAR(Attend(request).outputs[0], 10, 1e-12);
  spec.softcap = 0.5F;
  request.count_sink_logits = false;
  EXPECT_NEAR(Attend(request).log_sum_exps[0], 0.5 * std::tanh(-2.0), 1e-12);
}

}  // namespace
}  // namespace oscarkv::oracle
