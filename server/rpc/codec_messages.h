// Codec messages: a profile, and what is set otherwise.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/api/profiles.h"
#include "oscarkv/v1/kv_cache.pb.h"

namespace oscarkv {

struct DecodedCodec {
  CodecSpec spec;
  HeadPlan plan;               // under PlanMode::kGiven, where a layer has no key_plans
  bool values_folded = false;  // the worker rotates the values: spec.value_rotation is kNone
};

// What a layer's codec says, with what it takes over from the session's.
v1::Codec CombinedCodec(const v1::Codec& session, const v1::Codec& layer);

// `codec` with every default filled in. INVALID_ARGUMENT names fields under `field`.
absl::StatusOr<DecodedCodec> DecodeCodec(std::string_view field, const v1::Codec& codec,
                                         Profile default_profile);

// Rotation and fit that a key plan requires.
absl::StatusOr<HeadPlan> DecodeHeadPlan(std::string_view field, const v1::KeyPlan& plan);

v1::Profile EncodeProfile(Profile profile);
// The codec of a layer in full; `profile` stays unspecified, since any field may differ from it.
v1::Codec EncodeCodec(const LayerSpec& spec, bool values_folded);
v1::KeyPlan EncodeKeyPlan(const LayerSpec& spec, int kv_head);

}  // namespace oscarkv
