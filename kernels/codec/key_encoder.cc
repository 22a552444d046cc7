#include "kernels/codec/key_encoder.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/api/dtype.h"
#include "kernels/codec/affine_fit.h"
#include "kernels/codec/hadamard.h"
#include "kernels/codec/page_decoder.h"
#include "kernels/codec/seal_choice.h"

namespace oscarkv {
namespace {

// What kAuto chooses from; on a tie the first.
constexpr HeadPlan kCandidates[] = {
    {Rotation::kHadamard, Fit::kVariance},
    {Rotation::kHadamard, Fit::kMinMax},
    {Rotation::kNone, Fit::kVariance},
    {Rotation::kNone, Fit::kMinMax},
};

}  // namespace

CodedKeys KeyEncoder::Encode(HeadPlan plan) {
  const int dim = spec_.key_dim;
  const int group = spec_.codec.key_group;
  const Scaled& scaled = ScaledKeys(plan.rotation);
  CodedKeys keys;
  keys.plan = plan;
  keys.exponent = scaled.exponent;
  keys.params.resize(static_cast<std::size_t>(kPageTokens / group) * dim);
  keys.codes.resize(scaled.x.size());
  keys.decoded.resize(scaled.x.size());
  for (int begin = 0; begin < kPageTokens; begin += group) {
    const std::size_t row = static_cast<std::size_t>(begin) * dim;
    AffineFP16* const params = &keys.params[static_cast<std::size_t>(begin / group) * dim];
    FitGroups(&scaled.x[row], group, dim, spec_.codec.key_bits, plan.fit, params, &keys.codes[row]);
    DecodeGroups(&keys.codes[row], params, group, dim, &keys.decoded[row]);
  }
  RestoreKeys(plan.rotation == Rotation::kHadamard, std::ldexp(1.0F, keys.exponent), norms_,
              kPageTokens, dim, keys.decoded.data());
  if (spec_.has_residual() && tokens_.direction != nullptr) EncodeResidual(keys);
  return keys;
}

CodedKeys KeyEncoder::EncodeBest(int head) {
  if (spec_.codec.plan == PlanMode::kGiven) return Encode(spec_.given_plan[head]);
  if (tokens_.num_queries == 0) return Encode(kCandidates[0]);
  AttentionChange change(tokens_.keys, kPageTokens, tokens_.context_keys, tokens_.context,
                         tokens_.queries, tokens_.num_queries, spec_.key_dim, spec_.scale);
  CodedKeys best = Encode(kCandidates[0]);
  double least = change.Of(best.decoded.data());
  for (const HeadPlan plan : {kCandidates[1], kCandidates[2], kCandidates[3]}) {
    CodedKeys candidate = Encode(plan);
    const double changed = change.Of(candidate.decoded.data());
    if (changed >= least) continue;
    least = changed;
    best = std::move(candidate);
  }
  return best;
}

const Scaled& KeyEncoder::ScaledKeys(Rotation rotation) {
  if (!plain_) {
    plain_.emplace();
    plain_->x.assign(tokens_.keys, tokens_.keys + kPageTokens * spec_.key_dim);
    if (norms_ != nullptr) DivideByNorms(plain_->x.data());
    Rescale(*plain_);
  }
  if (rotation == Rotation::kNone) return *plain_;
  if (!rotated_) {
    // Scaled before, too, so that the sums of the rotation do not overflow; powers of two change
    // no other rounding.
    rotated_ = plain_;
    RotateRows(rotated_->x.data(), kPageTokens, spec_.key_dim);
    Rescale(*rotated_);
  }
  return *rotated_;
}

void KeyEncoder::DivideByNorms(float* keys) const {
  for (int t = 0; t < kPageTokens; ++t) {
    const float norm = FromBF16(norms_[t]);
    float* const key = keys + static_cast<std::ptrdiff_t>(t) * spec_.key_dim;
    for (int c = 0; c < spec_.key_dim; ++c) key[c] /= norm;
  }
}

void KeyEncoder::EncodeResidual(CodedKeys& keys) const {
  double errors[kPageTokens];
  ProjectErrors(tokens_.keys, keys.decoded.data(), tokens_.direction, kPageTokens, spec_.key_dim,
                errors);
  keys.residuals.resize(kPageTokens);
  keys.residual_scale = EncodeResiduals(errors, kPageTokens, keys.residuals.data());
  AddResiduals(keys.residuals.data(), keys.residual_scale.Step(), tokens_.direction, kPageTokens,
               spec_.key_dim, keys.decoded.data());
}

}  // namespace oscarkv
