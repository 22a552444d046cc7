#include "kernels/codec/seal_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace oscarkv {
namespace {

constexpr float kNoLogit = -std::numeric_limits<float>::infinity();

// exp(x) for x <= 0 or NaN to about 2 units in the last place; 0 below -87. Free of branches and
// calls, so that loops over it become vector code.
float ExpNonPositive(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits: a whole multiple of it is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kUnit = 12582912.0F;  // 1.5 * 2^23: the last bits of a sum are a whole number
  const float clamped = std::max(x, -87.0F);
  const float shifted = clamped * kLog2E + kUnit;
  const float n = shifted - kUnit;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // The Taylor series to r^6; |r| <= ln(2) / 2.
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  // From the bits of the sum, since NaN, which stays NaN, has no whole number.
  const std::uint32_t whole =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kUnit);
  const std::uint32_t exponent = (whole + 127) << 23;
  return x < -87.0F ? 0.0F : p * std::bit_cast<float>(exponent);
}

void Transpose(const float* x, int rows, int columns, float* out) {
  constexpr int kBlock = 16;  // rows at a time, so that writes fill cache lines
  for (int begin = 0; begin < rows; begin += kBlock) {
    const int end = std::min(rows, begin + kBlock);
    for (int c = 0; c < columns; ++c) {
      for (int r = begin; r < end; ++r) {
        out[static_cast<std::ptrdiff_t>(c) * rows + r] =
            x[static_cast<std::ptrdiff_t>(r) * columns + c];
      }
    }
  }
}

// One query's dot products with `width` keys, transposed[dim][stride].
template <int width>
void Dots(const float* query, const float* transposed, int dim, std::ptrdiff_t stride, float* out) {
  float sum[width] = {};
  for (int c = 0; c < dim; ++c) {
    for (int t = 0; t < width; ++t) sum[t] += query[c] * transposed[c * stride + t];
  }
  std::copy_n(sum, width, out);
}

// logits[num_queries][tokens] = queries keys^T.
void Logits(const float* queries, int num_queries, const float* transposed, int tokens, int dim,
            float* logits) {
  constexpr int kWidth = 16;
  for (int t = 0; t < tokens; t += tokens - t >= kWidth ? kWidth : 1) {
    for (int i = 0; i < num_queries; ++i) {
      const float* const query = queries + static_cast<std::ptrdiff_t>(i) * dim;
      float* const out = logits + static_cast<std::ptrdiff_t>(i) * tokens + t;
      if (tokens - t >= kWidth) {
        Dots<kWidth>(query, transposed + t, dim, tokens, out);
      } else {
        Dots<1>(query, transposed + t, dim, tokens, out);
      }
    }
  }
}

float Largest(const float* x, int count) {
  float largest = kNoLogit;
  for (int i = 0; i < count; ++i) largest = std::max(largest, x[i]);
  return largest;
}

// The sum of exp(x - largest); writes the summands, which may take the place of x.
double SumExp(const float* x, int count, float largest, float* exponentials) {
  for (int i = 0; i < count; ++i) exponentials[i] = ExpNonPositive(x[i] - largest);
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += exponentials[i];
  return sum;
}

// ln(exp(max_a) sum_a + exp(max_b) sum_b).
double LogSumExp(float max_a, double sum_a, float max_b, double sum_b) {
  const double largest = std::max(max_a, max_b);
  return largest + std::log(sum_a * std::exp(max_a - largest) + sum_b * std::exp(max_b - largest));
}

}  // namespace

AttentionChange::AttentionChange(const float* keys, int page_tokens, const float* context,
                                 int context_tokens, const float* queries, int num_queries, int dim,
                                 float scale)
    : page_tokens_(page_tokens),
      num_queries_(num_queries),
      dim_(dim),
      queries_(queries, queries + static_cast<std::size_t>(num_queries) * dim),
      logits_(static_cast<std::size_t>(num_queries) * page_tokens),
      probabilities_(logits_.size()),
      context_max_(num_queries, kNoLogit),
      context_sum_(num_queries, 0.0),
      log_sum_exp_(num_queries),
      transposed_(static_cast<std::size_t>(dim) * std::max(page_tokens, context_tokens)),
      scratch_(static_cast<std::size_t>(num_queries) * std::max(page_tokens, context_tokens)) {
  for (float& q : queries_) q *= scale;
  if (context_tokens > 0) {
    Transpose(context, context_tokens, dim, transposed_.data());
    Logits(queries_.data(), num_queries, transposed_.data(), context_tokens, dim, scratch_.data());
    for (int i = 0; i < num_queries; ++i) {
      float* const row = scratch_.data() + static_cast<std::ptrdiff_t>(i) * context_tokens;
      context_max_[i] = Largest(row, context_tokens);
      context_sum_[i] = SumExp(row, context_tokens, context_max_[i], row);
    }
  }
  Transpose(keys, page_tokens, dim, transposed_.data());
  Logits(queries_.data(), num_queries, transposed_.data(), page_tokens, dim, logits_.data());
  for (int i = 0; i < num_queries; ++i) {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(i) * page_tokens;
    const float largest = Largest(&logits_[row], page_tokens);
    const double sum = SumExp(&logits_[row], page_tokens, largest, &probabilities_[row]);
    log_sum_exp_[i] = LogSumExp(largest, sum, context_max_[i], context_sum_[i]);
    const auto factor = static_cast<float>(std::exp(largest - log_sum_exp_[i]));
    for (int t = 0; t < page_tokens; ++t) probabilities_[row + t] *= factor;
  }
}

double AttentionChange::Of(const float* decoded) {
  Transpose(decoded, page_tokens_, dim_, transposed_.data());
  Logits(queries_.data(), num_queries_, transposed_.data(), page_tokens_, dim_, scratch_.data());
  double change = 0;
  for (int i = 0; i < num_queries_; ++i) {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(i) * page_tokens_;
    // The context's logits are the same on both sides, so of sum p (log p - log p^) only its
    // normalization is left: the difference of the log-sum-exps, once over all of p.
    double divergence = 0;
    for (int t = 0; t < page_tokens_; ++t) {
      divergence += static_cast<double>(probabilities_[row + t]) *
                    (static_cast<double>(logits_[row + t]) - scratch_[row + t]);
    }
    const float largest = Largest(&scratch_[row], page_tokens_);
    const double sum = SumExp(&scratch_[row], page_tokens_, largest, &scratch_[row]);
    divergence += LogSumExp(largest, sum, context_max_[i], context_sum_[i]) - log_sum_exp_[i];
    change += std::sqrt(std::max(0.0, divergence));
    if (std::isnan(divergence)) return std::numeric_limits<double>::infinity();
  }
  return change;
}

}  // namespace oscarkv
