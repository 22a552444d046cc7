#include "tests/bench/bf16_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/api/dtype.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/read_stream.h"

namespace oscarkv::bench {
namespace {

struct Case {
  AttentionShape shape;
  int threads = 1;
};

void Fill(std::uint16_t* data, std::int64_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < count; ++i) data[i] = ToBF16(normal(random));
}

// Attention in float64, of one query vector over [0, tokens) of one kv head.
std::vector<double> Reference(const std::uint16_t* keys, const std::uint16_t* values,
                              std::int64_t tokens, int dim, const std::uint16_t* query,
                              double scale) {
  std::vector<double> weights(tokens);
  for (std::int64_t t = 0; t < tokens; ++t) {
    double dot = 0;
    for (int c = 0; c < dim; ++c) {
      dot += static_cast<double>(FromBF16(query[c])) * FromBF16(keys[t * dim + c]);
    }
    weights[t] = std::exp(scale * dot);
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> out(dim);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (int c = 0; c < dim; ++c) {
      out[c] += weights[t] / sum * FromBF16(values[t * dim + c]);
    }
  }
  return out;
}

// The largest error of a case's outputs, relative to the largest output.
double RelativeError(const Case& test, const BF16Kernels& kernels) {
  const AttentionShape& shape = test.shape;
  const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  const HugeBuffer keys(2 * shape.cache_elements());
  const HugeBuffer values(2 * shape.cache_elements());
  std::vector<std::uint16_t> queries(shape.query_elements());
  Fill(keys.as<std::uint16_t>(), shape.cache_elements(), 1);
  Fill(values.as<std::uint16_t>(), shape.cache_elements(), 2);
  Fill(queries.data(), shape.query_elements(), 3);
  std::vector<float> outputs(shape.query_elements(), NAN);
  const auto executor = cpu::MakeExecutor(test.threads);
  BF16Attention attention(*executor, shape, scale, kernels);
  attention.Run(keys.as<std::uint16_t>(), values.as<std::uint16_t>(), queries.data(),
                outputs.data());

  double worst = 0, largest = 0;
  const int dim = shape.head_dim;
  for (int b = 0; b < shape.batch; ++b) {
    for (int i = 0; i < shape.queries; i += 1 + i % 7) {
      for (int h = 0; h < shape.query_heads; ++h) {
        const std::int64_t row =
            (std::int64_t{1} * (b * shape.queries + i) * shape.query_heads + h) * dim;
        const std::int64_t cache =
            (std::int64_t{1} * b * shape.kv_heads + h / shape.group()) * shape.context * dim;
        const std::vector<double> expected =
            Reference(keys.as<std::uint16_t>() + cache, values.as<std::uint16_t>() + cache,
                      shape.context - shape.queries + i + 1, dim, queries.data() + row, scale);
        for (int c = 0; c < dim; ++c) {
          if (!std::isfinite(outputs[row + c])) return INFINITY;
          worst = std::max(worst, std::abs(outputs[row + c] - expected[c]));
          largest = std::max(largest, std::abs(expected[c]));
        }
      }
    }
  }
  return worst / largest;
}

class BF16AttentionTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    kernels_ = GetParam() ? DotProductKernels() : MultiplyAddKernels();
    if (kernels_.decode == nullptr) GTEST_SKIP() << "this processor has no dpbf16";
  }
  BF16Kernels kernels_{};
};

// Weights are rounded to bf16 (2^-9 each) before they meet values.
constexpr double kBound = 4e-3;

TEST_P(BF16AttentionTest, DecodeAgreesWithFloat64) {
  for (const int dim : {64, 128, 256}) {
    for (const int group : {1, 2, 4, 8, 16}) {
      const Case test{{1280, 2, 2 * group, 2, dim, 1}, 2};
      ASSERT_STREQ(WhyUnsupported(test.shape), "");
      EXPECT_LT(RelativeError(test, kernels_), kBound) << "dim " << dim << " group " << group;
    }
  }
}

TEST_P(BF16AttentionTest, PrefillAgreesWithFloat64) {
  for (const int dim : {64, 128, 256}) {
    for (const int group : {1, 4}) {
      const Case test{{384, 2, 2 * group, 2, dim, 150}, 2};
      ASSERT_STREQ(WhyUnsupported(test.shape), "");
      EXPECT_LT(RelativeError(test, kernels_), kBound) << "dim " << dim << " group " << group;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BF16AttentionTest, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "DotProduct" : "MultiplyAdd");
});

TEST(AttentionShapeTest, RefusesShapesThatItCannotCompute) {
  const AttentionShape good{1024, 1, 32, 8, 128, 1};
  EXPECT_STREQ(WhyUnsupported(good), "");
  for (auto change : std::vector<void (*)(AttentionShape&)>{
           [](AttentionShape& s) { s.query_heads = 24; },
           [](AttentionShape& s) { s.query_heads = 33; }, [](AttentionShape& s) { s.kv_heads = 0; },
           [](AttentionShape& s) { s.head_dim = 80; }, [](AttentionShape& s) { s.context = 1000; },
           [](AttentionShape& s) { s.context = 0; }, [](AttentionShape& s) { s.queries = 0; },
           [](AttentionShape& s) { s.queries = 1025; }}) {
    AttentionShape shape = good;
    change(shape);
    EXPECT_STRNE(WhyUnsupported(shape), "");
  }
}

TEST(ReadStreamTest, ReadsEveryWordOnce) {
  const auto executor = cpu::MakeExecutor(3);
  for (const std::int64_t bytes : {64, 4096, 640 << 10, (3 << 20) + 192}) {
    const HugeBuffer buffer(bytes);
    std::uint64_t expected = 0;
    for (std::int64_t i = 0; i < bytes / 8; ++i) {
      buffer.as<std::uint64_t>()[i] = static_cast<std::uint64_t>(i * i + 1);
      expected += static_cast<std::uint64_t>(i * i + 1);
    }
    EXPECT_EQ(ReadAll(*executor, buffer.data(), bytes), expected) << bytes;
  }
}

}  // namespace
}  // namespace oscarkv::bench
