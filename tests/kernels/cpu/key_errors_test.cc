#include "kernels/cpu/key_errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "kernels/api/dtype.h"
#include "kernels/api/layer_spec.h"
#include "tests/kernels/support/each_target.h"

namespace oscarkv::cpu {
namespace {

struct Input {
  std::vector<float> x;
  std::vector<AffineFP16> params;
  std::vector<std::uint8_t> codes;
  std::vector<float> direction;
  KeyCodes keys;

  Input(int dim, int group) {
    std::mt19937 random(dim);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kPageTokens * dim; ++i) {
      x.push_back(100 * normal(random));
      codes.push_back(static_cast<std::uint8_t>(random() % 16));
    }
    for (int i = 0; i < kPageTokens / group * dim; ++i) {
      params.push_back({ToFP16(std::abs(normal(random))), ToFP16(10 * normal(random))});
    }
    for (int i = 0; i < dim; ++i) direction.push_back(normal(random));
    keys = {.dim = dim, .group = group, .params = params.data(), .codes = codes.data()};
  }
};

TEST(KeyErrorsTest, AreThoseOfTheDecodedKeys) {
  for (const int dim : kHeadDims) {
    for (const int group : {kSmallGroup, kPageTokens}) {
      const Input input(dim, group);
      TokenErrors errors;
      MeasureErrors(input.x.data(), 0.25F, input.keys, input.direction.data(), &errors);
      for (int t = 0; t < kPageTokens; ++t) {
        double along = 0;
        double error_squares = 0;
        double squares = 0;
        for (int c = 0; c < dim; ++c) {
          const int at = t * dim + c;
          const AffineFP16 affine = input.params[t / group * dim + c];
          const double x = 0.25 * input.x[at];
          const double near =
              double{FromFP16(affine.scale)} * input.codes[at] + FromFP16(affine.zero);
          along += (x - near) * input.direction[c];
          error_squares += (x - near) * (x - near);
          squares += x * x;
        }
        ASSERT_NEAR(errors.along[t], along, 1e-5 * error_squares);
        ASSERT_NEAR(errors.errors[t], error_squares, 1e-5 * error_squares);
        ASSERT_NEAR(errors.squares[t], squares, 1e-5 * squares);
      }
    }
  }
}

TEST(KeyErrorsTest, AreTheSameOnEveryInstructionSet) {
  const Input input(80, kSmallGroup);
  std::optional<TokenErrors> first;
  ::oscarkv::testing::ForEachTarget([&] {
    TokenErrors errors;
    MeasureErrors(input.x.data(), 0.25F, input.keys, input.direction.data(), &errors);
    if (!first) first = errors;
    EXPECT_EQ(std::memcmp(&errors, &*first, sizeof(errors)), 0);
  });
}

TEST(KeyErrorsTest, WithoutADirectionNothingIsAlongIt) {
  const Input input(64, kPageTokens);
  TokenErrors errors;
  MeasureErrors(input.x.data(), 0.25F, input.keys, nullptr, &errors);
  for (const float along : errors.along) EXPECT_EQ(along, 0);
}

}  // namespace
}  // namespace oscarkv::cpu
