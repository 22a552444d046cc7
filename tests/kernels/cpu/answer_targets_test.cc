// Answers of Attend and what ReadTokens reads have the same bits, whatever instructions are used.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/support/backend_contract.h"
#include "tests/kernels/support/each_target.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::testing {
namespace {

// Bits, so that NaNs and the signs of zeros count.
struct Bits {
  std::vector<std::uint32_t> outputs;
  std::vector<std::uint32_t> log_sum_exps;
  std::vector<std::uint16_t> keys;
  std::vector<std::uint16_t> values;
};

std::vector<std::uint32_t> BitsOf(const std::vector<float>& x) {
  std::vector<std::uint32_t> bits;
  for (const float value : x) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

// What `num_queries` queries at the end of a session of `tokens` tokens find, and all that can be
// read.
Bits Compute(const LayerSpec& spec, int tokens, int num_queries, std::uint64_t seed) {
  CpuBackend backend(1);
  Random random(seed);
  MiniSession session(backend, spec);
  Fill(session, tokens, 64, /*with_queries=*/true, random);
  const std::vector<float> queries = RandomQueries(spec, num_queries, random);
  const LayerView view = session.View();
  const Answer answer = Attend(backend, view, queries, {session.length() - num_queries});

  Bits bits;
  bits.outputs = BitsOf(answer.outputs);
  bits.log_sum_exps = BitsOf(answer.log_sum_exps);
  bits.keys.resize(static_cast<std::size_t>(tokens) * spec.kv_heads * spec.key_dim);
  bits.values.resize(static_cast<std::size_t>(tokens) * spec.kv_heads * spec.value_dim);
  ReadItem item;
  item.layer = view;
  item.tokens = tokens;
  item.keys = bits.keys.data();
  item.values = bits.values.data();
  const KernelStatus status = backend.ReadTokens({&item, 1});
  EXPECT_TRUE(status.ok()) << status.message;
  return bits;
}

void ExpectTheSame(const LayerSpec& spec, int tokens, int num_queries, std::uint64_t seed) {
  std::optional<Bits> first;
  ForEachTarget([&] {
    const Bits bits = Compute(spec, tokens, num_queries, seed);
    if (!first) first.emplace(bits);
    EXPECT_EQ(bits.outputs, first->outputs);
    EXPECT_EQ(bits.log_sum_exps, first->log_sum_exps);
    EXPECT_EQ(bits.keys, first->keys);
    EXPECT_EQ(bits.values, first->values);
  });
}

TEST(AnswerTargetsTest, LayersOfAllKinds) {
  for (int seed = 0; seed < Trials(32, 300); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const LayerSpec spec = RandomSpec(random);
    const auto tokens = static_cast<int>(random.Int(1, 700));
    const auto num_queries = static_cast<int>(random.Int(1, 5));
    ExpectTheSame(spec, tokens, num_queries, static_cast<std::uint64_t>(seed));
  }
}

// As many query heads as there may be, and as many queries as make more than one tile.
TEST(AnswerTargetsTest, EveryWidthAndNumberOfQueryHeads) {
  std::uint64_t seed = 100;
  for (const int dim : kHeadDims) {
    for (const int group : {1, 3, 4, kMaxQueryHeadsPerKvHead}) {
      for (const int bits : {2, 4}) {
        SCOPED_TRACE("head_dim " + std::to_string(dim) + ", query heads " + std::to_string(group) +
                     ", bits " + std::to_string(bits));
        LayerSpec spec = MakeSpec(group, 1, dim, dim);
        spec.codec.key_bits = bits;
        spec.codec.value_bits = bits;
        ExpectTheSame(spec, 300, group == 4 ? 20 : 1, seed++);
      }
    }
  }
}

}  // namespace
}  // namespace oscarkv::testing
