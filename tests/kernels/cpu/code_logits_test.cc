#include "kernels/cpu/code_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/api/dtype.h"
#include "kernels/api/layer_spec.h"
#include "tests/kernels/support/each_target.h"

namespace oscarkv::cpu {
namespace {

struct Input {
  std::vector<AffineFP16> params;
  std::vector<std::uint8_t> codes;  // no longer than they are
  std::vector<float> queries;
  KeyCodes keys;

  Input(int dim, int group, int num_queries, int codes_below) {
    std::mt19937 random(dim + group);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kPageTokens * dim; ++i) {
      codes.push_back(static_cast<std::uint8_t>(random() % codes_below));
    }
    for (int i = 0; i < kPageTokens / group * dim; ++i) {
      params.push_back({ToFP16(std::abs(normal(random))), ToFP16(10 * normal(random))});
    }
    for (int i = 0; i < num_queries * dim; ++i) queries.push_back(normal(random));
    if (num_queries > 1) queries[dim + 5] *= 1000;  // one channel beside which others are small
    codes.shrink_to_fit();
    keys = {.dim = dim, .group = group, .params = params.data(), .codes = codes.data()};
  }
};

TEST(CodeLogitsTest, AreTheDotProductsOnEveryInstructionSet) {
  for (const int dim : kHeadDims) {
    for (const int group : {kSmallGroup, kPageTokens}) {
      for (const int num_queries : {1, 4, 7}) {
        const Input input(dim, group, num_queries, group == kSmallGroup ? 4 : 16);
        std::vector<float> first;
        ::oscarkv::testing::ForEachTarget([&] {
          std::vector<float> logits(static_cast<std::size_t>(num_queries) * kPageTokens);
          CodeLogits(input.queries.data(), num_queries, input.keys, logits.data());
          if (first.empty()) first = logits;
          ASSERT_EQ(std::memcmp(logits.data(), first.data(), sizeof(float) * logits.size()), 0);
        });
        for (int i = 0; i < num_queries; ++i) {
          for (int t = 0; t < kPageTokens; ++t) {
            double expected = 0;
            double magnitudes = 0;
            double codes = 0;
            double largest = 0;
            for (int c = 0; c < dim; ++c) {
              const AffineFP16 affine = input.params[t / group * dim + c];
              const double key =
                  double{FromFP16(affine.scale)} * input.codes[t * dim + c] + FromFP16(affine.zero);
              expected += key * input.queries[i * dim + c];
              magnitudes += std::abs(key * input.queries[i * dim + c]);
              codes += input.codes[t * dim + c];
              largest = std::max(
                  largest, std::abs(double{input.queries[i * dim + c]} * FromFP16(affine.scale)));
            }
            ASSERT_NEAR(first[i * kPageTokens + t], expected,
                        largest * codes * 0x1p-16 + magnitudes * 0x1p-20);
          }
        }
      }
    }
  }
}

TEST(CodeLogitsTest, QueriesThatVanishGiveZeros) {
  Input input(64, kPageTokens, 2, 4);
  for (int c = 0; c < 64; ++c) input.queries[c] = 0;
  for (int c = 64; c < 128; ++c) input.queries[c] *= 1e-40F;
  std::vector<float> logits(2 * kPageTokens, -1.0F);
  CodeLogits(input.queries.data(), 2, input.keys, logits.data());
  for (const float logit : logits) EXPECT_NEAR(logit, 0, 1e-37);
}

}  // namespace
}  // namespace oscarkv::cpu
