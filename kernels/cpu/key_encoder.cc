#include "kernels/cpu/key_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/cpu/affine_fit.h"
#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/seal_choice.h"

namespace oscarkv::cpu {
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
  keys.params = Scratch<AffineFP16>(static_cast<std::size_t>(kPageTokens / group) * dim);
  keys.codes = Scratch<std::uint8_t>(scaled.x.size());
  keys.decoded = Scratch<float>(scaled.x.size());
  for (int begin = 0; begin < kPageTokens; begin += group) {
    const std::size_t row = static_cast<std::size_t>(begin) * dim;
    AffineFP16* const params = &keys.params[static_cast<std::size_t>(begin / group) * dim];
    FitGroups(&scaled.x[row], group, dim, spec_.codec.key_bits, plan.fit, params, &keys.codes[row],
              &keys.decoded[row]);
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
    plain_->x = Scratch<float>(static_cast<std::size_t>(kPageTokens) * spec_.key_dim);
    DivideByNorms(tokens_.keys, norms_, kPageTokens, spec_.key_dim, plain_->x.data());
    Rescale(plain_->x.data(), plain_->x.size(), plain_->exponent);
  }
  if (rotation == Rotation::kNone) return *plain_;
  if (!rotated_) {
    // Scaled before, too, so that the sums of the rotation do not overflow; powers of two change
    // no other rounding.
    rotated_.emplace();
    rotated_->x = Scratch<float>(plain_->x.size());
    rotated_->exponent = plain_->exponent;
    std::copy(plain_->x.begin(), plain_->x.end(), rotated_->x.begin());
    RotateRows(rotated_->x.data(), kPageTokens, spec_.key_dim);
    Rescale(rotated_->x.data(), rotated_->x.size(), rotated_->exponent);
  }
  return *rotated_;
}

void KeyEncoder::EncodeResidual(CodedKeys& keys) const {
  double errors[kPageTokens];
  ProjectErrors(tokens_.keys, keys.decoded.data(), tokens_.direction, kPageTokens, spec_.key_dim,
                errors);
  keys.residuals = Scratch<std::int8_t>(kPageTokens);
  keys.residual_scale = EncodeResiduals(errors, kPageTokens, keys.residuals.data());
  AddResiduals(keys.residuals.data(), keys.residual_scale.Step(), tokens_.direction, kPageTokens,
               spec_.key_dim, keys.decoded.data());
}

}  // namespace oscarkv::cpu
