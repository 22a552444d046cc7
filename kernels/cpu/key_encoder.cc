#include "kernels/cpu/key_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "kernels/api/dtype.h"
#include "kernels/cpu/affine_fit.h"
#include "kernels/cpu/key_errors.h"
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
  keys.group = group;
  keys.params = Scratch<AffineFP16>(static_cast<std::size_t>(kPageTokens / group) * dim);
  keys.codes = Scratch<std::uint8_t>(scaled.x.size());
  for (int begin = 0; begin < kPageTokens; begin += group) {
    const std::size_t row = static_cast<std::size_t>(begin) * dim;
    AffineFP16* const params = &keys.params[static_cast<std::size_t>(begin / group) * dim];
    FitGroups(&scaled.x[row], scaled.factor, group, dim, spec_.codec.key_bits, plan.fit, params,
              &keys.codes[row]);
  }
  Finish(scaled, keys);
  return keys;
}

CodedKeys KeyEncoder::EncodeBest(int head) {
  if (spec_.codec.plan == PlanMode::kGiven) return Encode(spec_.given_plan[head]);
  if (tokens_.num_queries == 0) return Encode(kCandidates[0]);
  AttentionChange change(spec_, tokens_, norms_);
  std::optional<CodedKeys> best;
  double least = 0;
  for (const HeadPlan plan : kCandidates) {
    CodedKeys candidate = Encode(plan);
    const double changed = change.Of(candidate);
    if (best && changed >= least) continue;
    least = changed;
    best = std::move(candidate);
  }
  return *std::move(best);
}

const Scaled& KeyEncoder::ScaledKeys(Rotation rotation) {
  const bool rotated = rotation == Rotation::kHadamard;
  std::optional<Scaled>& scaled = rotated ? rotated_ : plain_;
  if (!scaled) scaled = ScaleRows(tokens_.keys, norms_, rotated, &tokens_.values);
  return *scaled;
}

// Measures what the codes leave of the keys, and keeps it along the direction.
void KeyEncoder::Finish(const Scaled& scaled, CodedKeys& keys) const {
  const bool keeps = spec_.has_residual() && tokens_.direction != nullptr;
  Scratch<float> direction;
  double direction_squares = 0;
  if (keeps) {
    direction = Scratch<float>(static_cast<std::size_t>(spec_.key_dim));
    std::copy_n(tokens_.direction, spec_.key_dim, direction.data());
    if (keys.plan.rotation == Rotation::kHadamard) RotateRows(direction.data(), 1, spec_.key_dim);
    for (const float x : direction) direction_squares += static_cast<double>(x) * x;
  }
  TokenErrors errors;
  MeasureErrors(scaled.x.data(), scaled.factor, keys.Codes(), keeps ? direction.data() : nullptr,
                &errors);
  double sizes[kPageTokens];  // of keys over what was fitted
  const double power = std::ldexp(1.0, keys.exponent);
  for (int t = 0; t < kPageTokens; ++t) {
    sizes[t] = norms_ == nullptr ? power : power * FromBF16(norms_[t]);
  }
  double along[kPageTokens] = {};
  if (keeps) {
    for (int t = 0; t < kPageTokens; ++t) along[t] = sizes[t] * errors.along[t];
    keys.residuals = Scratch<std::int8_t>(kPageTokens);
    keys.residual_scale = EncodeResiduals(along, kPageTokens, keys.residuals.data());
  }
  double error_squares = 0;
  double squares = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    const double square = sizes[t] * sizes[t];
    const double kept =
        keeps ? static_cast<double>(keys.residual_scale.Step()) * keys.residuals[t] : 0;
    const double gained = kept * (2 * along[t] - kept * direction_squares);
    error_squares += std::max(0.0, square * errors.errors[t] - gained);
    squares += square * errors.squares[t];
  }
  keys.error = squares > 0 ? static_cast<float>(std::sqrt(error_squares / squares)) : 0.0F;
}

}  // namespace oscarkv::cpu
