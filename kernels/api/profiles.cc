#include "kernels/api/profiles.h"

namespace oscarkv {
namespace {

// What PAPER and KIVI share: both fit ranges of 32 values, and neither looks at queries.
CodecSpec SmallGroupsMinMax() {
  CodecSpec codec;
  codec.key_group = kSmallGroup;
  codec.value_group = kSmallGroup;
  codec.value_fit = Fit::kMinMax;
  codec.plan = PlanMode::kGiven;
  codec.residual = false;
  codec.sinks = 0;
  return codec;
}

}  // namespace

const char* NameOf(Profile profile) {
  switch (profile) {
    case Profile::kDense:
      return "DENSE";
    case Profile::kPrecise:
      return "PRECISE";
    case Profile::kPaper:
      return "PAPER";
    case Profile::kKivi:
      return "KIVI";
  }
  return "?";
}

ProfileSettings SettingsOf(Profile profile) {
  ProfileSettings settings;
  switch (profile) {
    case Profile::kDense:
      break;
    case Profile::kPrecise:
      settings.codec.key_bits = 4;
      break;
    case Profile::kPaper:
      settings.codec = SmallGroupsMinMax();
      settings.plan = {Rotation::kHadamard, Fit::kMinMax};
      break;
    case Profile::kKivi:
      settings.codec = SmallGroupsMinMax();
      settings.codec.scaling = Scaling::kNone;
      settings.codec.value_rotation = Rotation::kNone;
      settings.plan = {Rotation::kNone, Fit::kMinMax};
      break;
  }
  return settings;
}

}  // namespace oscarkv
