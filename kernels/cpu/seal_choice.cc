#include "kernels/cpu/seal_choice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/api/dtype.h"
#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/rotate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/seal_choice.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Tokens that lie together, transposed: rows of them further apart would share few sets of the
// cache.
inline constexpr int kBlock = kLogitsMultiple;
static_assert(kBlock % (2 * kLanes) == 0);

// out[dim][kBlock] = keys[tokens][dim], transposed; zeros beyond the tokens.
// REQUIRES: tokens <= kBlock.
HWY_INLINE void TransposeKeys(const float* keys, int tokens, int dim, float* out) {
  const int whole = tokens / 4 * 4;  // rows that are transposed by fours
  Transpose({keys, dim}, whole, dim, {out, kBlock});
  if (tokens == kBlock) return;
  for (int c = 0; c < dim; ++c, out += kBlock) {
    for (int t = whole; t < tokens; ++t) out[t] = keys[static_cast<std::ptrdiff_t>(t) * dim + c];
    std::fill(out + tokens, out + kBlock, 0.0F);
  }
}

// Dot products of `count` queries with the keys of two vectors of tokens, keys[dim][kBlock]. Each
// runs in the order of channels.
template <int count>
HWY_INLINE void Dots(const float* queries, const float* keys, int dim, int stride, float* logits) {
  const F32 d;
  VF first[count];
  VF second[count];
  for (int i = 0; i < count; ++i) first[i] = second[i] = hn::Zero(d);
  for (int c = 0; c < dim; ++c, keys += kBlock) {
    const VF first_keys = hn::LoadU(d, keys);
    const VF second_keys = hn::LoadU(d, keys + kLanes);
    for (int i = 0; i < count; ++i) {
      const VF query = hn::Set(d, queries[i * dim + c]);
      first[i] = FusedMulAdd(query, first_keys, first[i]);
      second[i] = FusedMulAdd(query, second_keys, second[i]);
    }
  }
  for (int i = 0; i < count; ++i) {
    hn::StoreU(first[i], d, logits + i * stride);
    hn::StoreU(second[i], d, logits + i * stride + kLanes);
  }
}

// logits[num_queries][stride] = queries keys^T; -inf beyond the tokens.
// `transposed`: scratch [dim][kBlock].
void LogitsOfTarget(const float* queries, int num_queries, const float* keys, int tokens, int dim,
                    int stride, float* transposed, float* logits) {
  constexpr int kQueries = 4;  // at once
  for (int begin = 0; begin < tokens; begin += kBlock) {
    TransposeKeys(keys + static_cast<std::ptrdiff_t>(begin) * dim, std::min(kBlock, tokens - begin),
                  dim, transposed);
    for (int t = 0; t < kBlock; t += 2 * kLanes) {
      float* const out = logits + begin + t;
      int i = 0;
      for (; i + kQueries <= num_queries; i += kQueries) {
        Dots<kQueries>(queries + i * dim, transposed + t, dim, stride, out + i * stride);
      }
      for (; i < num_queries; ++i) {
        Dots<1>(queries + i * dim, transposed + t, dim, stride, out + i * stride);
      }
    }
  }
  for (int i = 0; i < num_queries; ++i) {
    std::fill(logits + i * stride + tokens, logits + (i + 1) * stride,
              -std::numeric_limits<float>::infinity());
  }
}

// out[i] = the dot product of queries[i][dim] with x[dim].
void ProjectOfTarget(const float* queries, int num_queries, const float* x, int dim, float* out) {
  const F32 d;
  for (int i = 0; i < num_queries; ++i, queries += dim) {
    GroupSum sum;
    for (int c = 0; c < dim; c += kGroup) {
      for (int part = 0; part < kParts; ++part) {
        const int at = c + part * kLanes;
        sum.AddProduct(part, hn::LoadU(d, queries + at), hn::LoadU(d, x + at));
      }
    }
    out[i] = sum.Fold();
  }
}

// logits[t] = logits[t] * sizes[t] + along * residuals[t], for a page.
void FinishLogitsOfTarget(const float* sizes, const float* residuals, float along, float* logits) {
  const F32 d;
  for (int t = 0; t < kPageTokens; t += kLanes) {
    const VF sized = hn::Mul(hn::LoadU(d, logits + t), hn::LoadU(d, sizes + t));
    hn::StoreU(FusedMulAdd(hn::Set(d, along), hn::LoadU(d, residuals + t), sized), d, logits + t);
  }
}

// exps[stride] = exp(logits - their largest), which is returned with the sum.
ExpSum SumExpOfTarget(const float* logits, int stride, float* exps) {
  const F32 d;
  VF largest = hn::LoadU(d, logits);
  for (int t = kLanes; t < stride; t += kLanes) {
    largest = hn::Max(largest, hn::LoadU(d, logits + t));
  }
  const float max = LargestLane(largest);
  GroupSum sum;
  for (int t = 0; t < stride; t += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = t + part * kLanes;
      const VF x = ExpNonPositive(hn::Sub(hn::LoadU(d, logits + at), hn::Set(d, max)));
      hn::StoreU(x, d, exps + at);
      sum.Add(part, x);
    }
  }
  return {max, sum.Fold()};
}

// The sum of p (logits - changed).
float ExpectedDropOfTarget(const float* p, const float* logits, const float* changed, int stride) {
  const F32 d;
  GroupSum sum;
  for (int t = 0; t < stride; t += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = t + part * kLanes;
      const VF drop = hn::Sub(hn::LoadU(d, logits + at), hn::LoadU(d, changed + at));
      sum.Add(part, hn::Mul(hn::LoadU(d, p + at), drop));
    }
  }
  return sum.Fold();
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {
namespace {

HWY_EXPORT(LogitsOfTarget);
HWY_EXPORT(ProjectOfTarget);
HWY_EXPORT(FinishLogitsOfTarget);
HWY_EXPORT(SumExpOfTarget);
HWY_EXPORT(ExpectedDropOfTarget);

constexpr int RowOf(int tokens) {
  return (tokens + kLogitsMultiple - 1) / kLogitsMultiple * kLogitsMultiple;
}

// log(a.sum * exp(a.max) + b.sum * exp(b.max)). REQUIRES: a.sum > 0.
double LogSumExp(const ExpSum& a, const ExpSum& b) {
  const ExpSum& larger = a.max >= b.max ? a : b;
  const ExpSum& smaller = a.max >= b.max ? b : a;
  const double rest = smaller.sum * std::exp(double{smaller.max} - larger.max);
  return larger.max + std::log(larger.sum + rest);
}

}  // namespace

AttentionChange::AttentionChange(const LayerSpec& spec, const HeadTokens& tokens,
                                 const std::uint16_t* norms)
    : num_queries_(tokens.num_queries),
      dim_(spec.key_dim),
      queries_(static_cast<std::size_t>(num_queries_) * dim_),
      rotated_(queries_.size()),
      along_(num_queries_),
      norms_(kPageTokens),
      logits_(static_cast<std::size_t>(num_queries_) * kPageTokens),
      probabilities_(logits_.size()),
      context_(num_queries_),
      log_sum_exp_(num_queries_),
      transposed_(static_cast<std::size_t>(dim_) * kLogitsMultiple),
      scratch_(static_cast<std::size_t>(num_queries_) *
               std::max(kPageTokens, RowOf(tokens.context))) {
  for (std::size_t i = 0; i < queries_.size(); ++i) queries_[i] = tokens.queries[i] * spec.scale;
  std::copy(queries_.begin(), queries_.end(), rotated_.begin());
  RotateRows(rotated_.data(), num_queries_, dim_);
  std::fill(along_.begin(), along_.end(), 0.0F);
  if (tokens.direction != nullptr) {
    HWY_DYNAMIC_DISPATCH(ProjectOfTarget)
    (queries_.data(), num_queries_, tokens.direction, dim_, along_.data());
  }
  for (int t = 0; t < kPageTokens; ++t) norms_[t] = norms == nullptr ? 1.0F : FromBF16(norms[t]);
  std::fill(context_.begin(), context_.end(), ExpSum{-std::numeric_limits<float>::infinity(), 0});
  if (tokens.context > 0) {
    const int row = RowOf(tokens.context);
    Logits(tokens.context_keys, tokens.context, scratch_.data());
    for (int i = 0; i < num_queries_; ++i) {
      float* const logits = scratch_.data() + static_cast<std::ptrdiff_t>(i) * row;
      context_[i] = HWY_DYNAMIC_DISPATCH(SumExpOfTarget)(logits, row, logits);
    }
  }
  Logits(tokens.keys, kPageTokens, logits_.data());
  for (int i = 0; i < num_queries_; ++i) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * kPageTokens;
    const ExpSum sum =
        HWY_DYNAMIC_DISPATCH(SumExpOfTarget)(&logits_[at], kPageTokens, &probabilities_[at]);
    log_sum_exp_[i] = LogSumExp(sum, context_[i]);
    const auto factor = static_cast<float>(std::exp(sum.max - log_sum_exp_[i]));
    for (int t = 0; t < kPageTokens; ++t) probabilities_[at + t] *= factor;
  }
}

void AttentionChange::Logits(const TokenRows& rows, int tokens, float* logits) {
  Scratch<float> keys(static_cast<std::size_t>(tokens) * dim_);
  WidenRows(rows, tokens, keys.data());
  HWY_DYNAMIC_DISPATCH(LogitsOfTarget)
  (queries_.data(), num_queries_, keys.data(), tokens, dim_, RowOf(tokens), transposed_.data(),
   logits);
}

double AttentionChange::Of(const CodedKeys& keys) {
  const bool rotated = keys.plan.rotation == Rotation::kHadamard;
  CodeLogits(rotated ? rotated_.data() : queries_.data(), num_queries_, keys.Codes(),
             scratch_.data());
  // Of each token: what its dot products are multiplied by, and what is left along the direction.
  float sizes[kPageTokens];
  float residuals[kPageTokens];
  const float power = std::ldexp(1.0F, keys.exponent);
  const float step = keys.residual_scale.Step();
  for (int t = 0; t < kPageTokens; ++t) {
    sizes[t] = norms_[t] * power;
    residuals[t] = keys.residuals.empty() ? 0.0F : step * static_cast<float>(keys.residuals[t]);
  }
  double change = 0;
  for (int i = 0; i < num_queries_; ++i) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * kPageTokens;
    HWY_DYNAMIC_DISPATCH(FinishLogitsOfTarget)(sizes, residuals, along_[i], &scratch_[at]);
    // The context's logits are the same on both sides, so of sum p (log p - log p^) only its
    // normalization is left: the difference of the log-sum-exps, once over all of p.
    double divergence = HWY_DYNAMIC_DISPATCH(ExpectedDropOfTarget)(
        &probabilities_[at], &logits_[at], &scratch_[at], kPageTokens);
    const ExpSum sum =
        HWY_DYNAMIC_DISPATCH(SumExpOfTarget)(&scratch_[at], kPageTokens, &scratch_[at]);
    divergence += LogSumExp(sum, context_[i]) - log_sum_exp_[i];
    change += std::sqrt(std::max(0.0, divergence));
    if (std::isnan(divergence)) return std::numeric_limits<double>::infinity();
  }
  return change;
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
