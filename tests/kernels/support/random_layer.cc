#include "tests/kernels/support/random_layer.h"

#include <cmath>

#include "kernels/api/profiles.h"

namespace oscarkv::testing {
namespace {

void Override(CodecSpec& codec, Random& random) {
  if (random.Chance(0.2)) codec.key_bits = random.Pick({2, 4, 16});
  if (random.Chance(0.2)) codec.value_bits = random.Pick({2, 4, 16});
  if (random.Chance(0.2)) codec.key_group = random.Pick({kSmallGroup, kPageTokens});
  if (random.Chance(0.2)) codec.value_group = random.Pick({kSmallGroup, 0});
  if (random.Chance(0.2)) codec.value_fit = random.Pick({Fit::kVariance, Fit::kMinMax});
  if (random.Chance(0.2)) {
    codec.scaling = random.Pick({Scaling::kNone, Scaling::kJoint, Scaling::kPerHead});
  }
  if (random.Chance(0.2)) codec.plan = random.Pick({PlanMode::kAuto, PlanMode::kGiven});
  if (random.Chance(0.2)) codec.residual = !codec.residual;
  if (random.Chance(0.2)) {
    codec.value_rotation = random.Pick({Rotation::kHadamard, Rotation::kNone});
  }
  if (random.Chance(0.4)) codec.window = static_cast<int>(random.Int(1, 200));
  if (random.Chance(0.4)) codec.sinks = static_cast<int>(random.Int(0, 40));
}

}  // namespace

LayerSpec MakeSpec(int query_heads, int kv_heads, int key_dim, int value_dim) {
  LayerSpec spec;
  spec.query_heads = query_heads;
  spec.kv_heads = kv_heads;
  spec.key_dim = key_dim;
  spec.value_dim = value_dim;
  spec.scale = 1 / std::sqrt(static_cast<float>(key_dim));
  return spec;
}

LayerSpec RandomSpec(Random& random) {
  const int kv_heads = static_cast<int>(random.Int(1, 3));
  const int per_head = static_cast<int>(random.Int(1, kMaxQueryHeadsPerKvHead));
  const int key_dim = kHeadDims[random.Int(0, 6)];
  const int value_dim = random.Chance(0.7) ? key_dim : kHeadDims[random.Int(0, 6)];
  LayerSpec spec = MakeSpec(kv_heads * per_head, kv_heads, key_dim, value_dim);
  spec.storage = random.Pick({DType::kBF16, DType::kFP16});
  const ProfileSettings profile = SettingsOf(
      random.Pick({Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi}));
  spec.codec = profile.codec;
  Override(spec.codec, random);
  if (random.Chance(0.2)) spec.softcap = 3;
  if (random.Chance(0.2)) spec.sliding_window = random.Int(1, 500);
  if (random.Chance(0.3)) {
    for (int head = 0; head < spec.query_heads; ++head) spec.sink_logits.push_back(random.Normal());
  }
  if (spec.codec.plan == PlanMode::kGiven) {
    for (int head = 0; head < kv_heads; ++head) {
      spec.given_plan.push_back({random.Pick({Rotation::kHadamard, Rotation::kNone}),
                                 random.Pick({Fit::kVariance, Fit::kMinMax})});
    }
  }
  return spec;
}

Rows RandomRows(const LayerSpec& spec, int tokens, Random& random) {
  std::vector<float> bias(static_cast<std::size_t>(spec.kv_heads) * spec.key_dim, 0.0F);
  for (float& b : bias) {
    if (random.Chance(0.03)) b = 4 * random.Normal();
  }
  Rows rows;
  for (int t = 0; t < tokens; ++t) {
    const float norm = std::exp(0.4F * random.Normal());
    for (const float b : bias) rows.keys.push_back(norm * (random.Normal() + b));
    for (int i = 0; i < spec.kv_heads * spec.value_dim; ++i) {
      rows.values.push_back(random.Normal());
    }
  }
  return rows;
}

std::vector<float> RandomQueries(const LayerSpec& spec, int count, Random& random) {
  std::vector<float> common(spec.key_dim);
  for (float& c : common) c = random.Normal();
  std::vector<float> queries;
  for (int i = 0; i < count * spec.query_heads; ++i) {
    const float along = random.Normal();
    for (const float c : common) queries.push_back(0.8F * random.Normal() + 0.6F * along * c);
  }
  return queries;
}

std::vector<std::uint16_t> Round16(DType storage, std::span<const float> x) {
  std::vector<std::uint16_t> out(x.size());
  ToStorage(DType::kFP32, x.data(), x.size(), storage, out.data());
  return out;
}

std::vector<double> Widen(std::span<const float> x) { return {x.begin(), x.end()}; }

}  // namespace oscarkv::testing
