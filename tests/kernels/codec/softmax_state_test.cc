#include "kernels/codec/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace oscarkv {
namespace {

// The state of tokens with these logits, and `out` with the values given.
SoftmaxState StateOf(const std::vector<float>& logits, const std::vector<float>& values,
                     float* out) {
  SoftmaxState state;
  *out = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    *out *= state.Raise(logits[i]);
    const float weight = std::exp(logits[i] - state.max);
    state.sum += weight;
    *out += weight * values[i];
  }
  return state;
}

TEST(SoftmaxState, TheEmptyStateIsNeutral) {
  const SoftmaxState empty;
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.LogSumExp(), -INFINITY);

  SoftmaxState both;
  float out = 0;
  Merge(both, &out, empty, &out, 1);
  EXPECT_TRUE(both.empty());
  EXPECT_EQ(both.sum, 0);
  EXPECT_EQ(out, 0);

  float some_out = 0;
  const SoftmaxState some = StateOf({1, 2}, {3, 4}, &some_out);
  SoftmaxState into;
  Merge(into, &out, some, &some_out, 1);
  EXPECT_EQ(into.max, some.max);
  EXPECT_EQ(into.sum, some.sum);
  EXPECT_EQ(out, some_out);
  const float zero = 0;
  Merge(into, &out, empty, &zero, 1);
  EXPECT_EQ(into.sum, some.sum);
  EXPECT_EQ(out, some_out);
}

TEST(SoftmaxState, PartsMergeToTheWhole) {
  const std::vector<float> logits = {0.5F, -3, 90, 88, -200, 91.5F, 0};
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  float whole_out = 0;
  const SoftmaxState whole = StateOf(logits, values, &whole_out);
  for (std::size_t cut = 0; cut <= logits.size(); ++cut) {
    const auto at = static_cast<std::ptrdiff_t>(cut);
    float out = 0;
    float tail_out = 0;
    SoftmaxState state =
        StateOf({logits.begin(), logits.begin() + at}, {values.begin(), values.begin() + at}, &out);
    const SoftmaxState tail = StateOf({logits.begin() + at, logits.end()},
                                      {values.begin() + at, values.end()}, &tail_out);
    Merge(state, &out, tail, &tail_out, 1);
    EXPECT_EQ(state.max, whole.max);
    EXPECT_NEAR(state.sum, whole.sum, 1e-6F * whole.sum);
    EXPECT_NEAR(out, whole_out, 1e-6F * std::fabs(whole_out));
    EXPECT_NEAR(state.LogSumExp(), whole.LogSumExp(), 1e-5F);
  }
}

TEST(SoftmaxState, RaisingToLessChangesNothing) {
  SoftmaxState state;
  EXPECT_EQ(state.Raise(2), 0);
  state.sum = 1;
  EXPECT_EQ(state.Raise(1), 1);
  EXPECT_EQ(state.Raise(-INFINITY), 1);
  EXPECT_EQ(state.max, 2);
  EXPECT_EQ(state.sum, 1);
  EXPECT_EQ(state.Raise(3), std::exp(-1.0F));
  EXPECT_EQ(state.sum, std::exp(-1.0F));
}

}  // namespace
}  // namespace oscarkv
