#include "server/rpc/codec_messages.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/rpc/fields.h"
#include "server/rpc/limits.h"

namespace oscarkv {
namespace {

// A value of the contract's enum and what it means here. Every enum of a codec is one such table,
// read in both directions.
template <typename Wire, typename Meaning>
struct Name {
  Wire wire;
  Meaning meaning;
  const char* text;
};

constexpr Name<v1::Profile, Profile> kProfiles[] = {
    {v1::PROFILE_DENSE, Profile::kDense, "PROFILE_DENSE"},
    {v1::PROFILE_PRECISE, Profile::kPrecise, "PROFILE_PRECISE"},
    {v1::PROFILE_PAPER, Profile::kPaper, "PROFILE_PAPER"},
    {v1::PROFILE_KIVI, Profile::kKivi, "PROFILE_KIVI"}};
constexpr Name<v1::Fit, Fit> kFits[] = {{v1::FIT_VARIANCE, Fit::kVariance, "FIT_VARIANCE"},
                                        {v1::FIT_MINMAX, Fit::kMinMax, "FIT_MINMAX"}};
constexpr Name<v1::Rotation, Rotation> kRotations[] = {
    {v1::ROTATION_HADAMARD, Rotation::kHadamard, "ROTATION_HADAMARD"},
    {v1::ROTATION_NONE, Rotation::kNone, "ROTATION_NONE"}};
constexpr Name<v1::GroupSize, int> kKeyGroups[] = {
    {v1::GROUP_SIZE_WHOLE, kPageTokens, "GROUP_SIZE_WHOLE"},
    {v1::GROUP_SIZE_32, kSmallGroup, "GROUP_SIZE_32"}};
constexpr Name<v1::GroupSize, int> kValueGroups[] = {
    {v1::GROUP_SIZE_WHOLE, 0, "GROUP_SIZE_WHOLE"},
    {v1::GROUP_SIZE_32, kSmallGroup, "GROUP_SIZE_32"}};
constexpr Name<v1::Scaling, Scaling> kScalings[] = {
    {v1::SCALING_JOINT, Scaling::kJoint, "SCALING_JOINT"},
    {v1::SCALING_PER_HEAD, Scaling::kPerHead, "SCALING_PER_HEAD"},
    {v1::SCALING_NONE, Scaling::kNone, "SCALING_NONE"}};
constexpr Name<v1::PlanMode, PlanMode> kPlanModes[] = {
    {v1::PLAN_MODE_AUTO, PlanMode::kAuto, "PLAN_MODE_AUTO"},
    {v1::PLAN_MODE_GIVEN, PlanMode::kGiven, "PLAN_MODE_GIVEN"}};
constexpr Name<v1::Residual, bool> kResiduals[] = {{v1::RESIDUAL_ON, true, "RESIDUAL_ON"},
                                                   {v1::RESIDUAL_OFF, false, "RESIDUAL_OFF"}};

// Sets `meaning` unless `wire` is 0, which keeps the profile's.
template <typename Wire, typename Meaning, std::size_t kCount>
absl::Status Decode(std::string_view field, Wire wire, const Name<Wire, Meaning> (&names)[kCount],
                    Meaning& meaning) {
  if (wire == 0) return absl::OkStatus();
  std::string expected;
  for (const Name<Wire, Meaning>& name : names) {
    if (name.wire == wire) {
      meaning = name.meaning;
      return absl::OkStatus();
    }
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", name.text);
  }
  return InvalidField(field, absl::StrCat(static_cast<int>(wire)), expected);
}

template <typename Wire, typename Meaning, std::size_t kCount>
Wire Encode(Meaning meaning, const Name<Wire, Meaning> (&names)[kCount]) {
  const auto* found =
      std::find_if(std::begin(names), std::end(names),
                   [&](const Name<Wire, Meaning>& name) { return name.meaning == meaning; });
  return found == std::end(names) ? Wire{} : found->wire;
}

absl::Status DecodeBits(std::string_view field, int wire, int& bits) {
  if (wire == 0) return absl::OkStatus();
  if (wire != 2 && wire != 4 && wire != 16) {
    return InvalidField(field, absl::StrCat(wire), "2, 4, 16, or 0 for the profile's");
  }
  bits = wire;
  return absl::OkStatus();
}

absl::Status DecodeValueRotation(std::string_view field, v1::Rotation wire, DecodedCodec& decoded) {
  decoded.values_folded = wire == v1::ROTATION_FOLDED;
  if (decoded.values_folded) {
    decoded.spec.value_rotation = Rotation::kNone;
    return absl::OkStatus();
  }
  const absl::Status status = Decode(field, wire, kRotations, decoded.spec.value_rotation);
  if (status.ok()) return status;
  return InvalidField(field, absl::StrCat(static_cast<int>(wire)),
                      "ROTATION_HADAMARD, ROTATION_NONE, ROTATION_FOLDED");
}

absl::Status DecodeKeyRotation(std::string_view field, v1::Rotation wire, DecodedCodec& decoded) {
  if (wire != v1::ROTATION_UNSPECIFIED && decoded.spec.plan == PlanMode::kAuto) {
    return InvalidField(field, v1::Rotation_Name(wire),
                        "unset, or plan PLAN_MODE_GIVEN: under PLAN_MODE_AUTO each page chooses");
  }
  return Decode(field, wire, kRotations, decoded.plan.rotation);
}

absl::Status DecodeCounts(std::string_view field, const v1::Codec& codec, CodecSpec& spec) {
  if (codec.has_window()) {
    spec.window = codec.window();
    if (absl::Status s = CheckRange(Joined(field, "window"), spec.window, 1, limits::kMaxWindow);
        !s.ok()) {
      return s;
    }
  }
  if (!codec.has_sinks()) return absl::OkStatus();
  spec.sinks = codec.sinks();
  return CheckRange(Joined(field, "sinks"), spec.sinks, 0, limits::kMaxSinks);
}

}  // namespace

v1::Codec CombinedCodec(const v1::Codec& session, const v1::Codec& layer) {
  if (layer.profile() != v1::PROFILE_UNSPECIFIED) return layer;
  v1::Codec combined = session;
  // It is of the plan that the layer does not want.
  if (layer.plan() == v1::PLAN_MODE_AUTO) combined.clear_key_rotation();
  combined.MergeFrom(layer);
  return combined;
}

absl::StatusOr<DecodedCodec> DecodeCodec(std::string_view field, const v1::Codec& codec,
                                         Profile default_profile) {
  const auto path = [&](std::string_view name) { return Joined(field, name); };
  Profile profile = default_profile;
  absl::Status s = Decode(path("profile"), codec.profile(), kProfiles, profile);
  DecodedCodec decoded;
  const ProfileSettings settings = SettingsOf(profile);
  decoded.spec = settings.codec;
  decoded.plan = settings.plan;
  CodecSpec& spec = decoded.spec;
  s.Update(DecodeBits(path("key_bits"), codec.key_bits(), spec.key_bits));
  s.Update(DecodeBits(path("value_bits"), codec.value_bits(), spec.value_bits));
  s.Update(Decode(path("key_group"), codec.key_group(), kKeyGroups, spec.key_group));
  s.Update(Decode(path("value_group"), codec.value_group(), kValueGroups, spec.value_group));
  s.Update(Decode(path("fit"), codec.fit(), kFits, spec.value_fit));
  s.Update(Decode(path("fit"), codec.fit(), kFits, decoded.plan.fit));
  s.Update(Decode(path("plan"), codec.plan(), kPlanModes, spec.plan));
  s.Update(DecodeKeyRotation(path("key_rotation"), codec.key_rotation(), decoded));
  s.Update(DecodeValueRotation(path("value_rotation"), codec.value_rotation(), decoded));
  s.Update(Decode(path("scaling"), codec.scaling(), kScalings, spec.scaling));
  s.Update(Decode(path("residual"), codec.residual(), kResiduals, spec.residual));
  s.Update(DecodeCounts(field, codec, spec));
  if (!s.ok()) return s;
  return decoded;
}

absl::StatusOr<HeadPlan> DecodeHeadPlan(std::string_view field, const v1::KeyPlan& plan) {
  HeadPlan decoded;
  if (plan.rotation() == v1::ROTATION_UNSPECIFIED) {
    return InvalidField(Joined(field, "rotation"), "unset", "ROTATION_HADAMARD, ROTATION_NONE");
  }
  if (plan.fit() == v1::FIT_UNSPECIFIED) {
    return InvalidField(Joined(field, "fit"), "unset", "FIT_VARIANCE, FIT_MINMAX");
  }
  absl::Status s = Decode(Joined(field, "rotation"), plan.rotation(), kRotations, decoded.rotation);
  s.Update(Decode(Joined(field, "fit"), plan.fit(), kFits, decoded.fit));
  if (!s.ok()) return s;
  return decoded;
}

v1::Profile EncodeProfile(Profile profile) { return Encode(profile, kProfiles); }

v1::Codec EncodeCodec(const LayerSpec& spec, bool values_folded) {
  const CodecSpec& codec = spec.codec;
  v1::Codec encoded;
  encoded.set_key_bits(codec.key_bits);
  encoded.set_value_bits(codec.value_bits);
  encoded.set_key_group(Encode(codec.key_group, kKeyGroups));
  encoded.set_value_group(Encode(codec.value_group, kValueGroups));
  encoded.set_fit(Encode(codec.value_fit, kFits));
  encoded.set_plan(Encode(codec.plan, kPlanModes));
  encoded.set_value_rotation(values_folded ? v1::ROTATION_FOLDED
                                           : Encode(codec.value_rotation, kRotations));
  encoded.set_scaling(Encode(codec.scaling, kScalings));
  encoded.set_residual(Encode(codec.residual, kResiduals));
  encoded.set_window(codec.window);
  encoded.set_sinks(codec.sinks);
  return encoded;
}

v1::KeyPlan EncodeKeyPlan(const LayerSpec& spec, int kv_head) {
  v1::KeyPlan encoded;
  const HeadPlan& plan = spec.given_plan[static_cast<std::size_t>(kv_head)];
  encoded.set_rotation(Encode(plan.rotation, kRotations));
  encoded.set_fit(Encode(plan.fit, kFits));
  if (!spec.given_directions.empty()) {
    const float* direction =
        spec.given_directions.data() + static_cast<std::ptrdiff_t>(kv_head) * spec.key_dim;
    encoded.mutable_direction()->Assign(direction, direction + spec.key_dim);
  }
  return encoded;
}

}  // namespace oscarkv
